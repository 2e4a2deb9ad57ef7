package kafka_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"

	"edgegateway/test/rig"
	"edgegateway/uplink"
	"edgegateway/uplink/kafka"
)

func TestProbeSaysWhatIsWrong(t *testing.T) {
	server := rig.Kafka(t, "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer", "allow.everyone.if.no.acl.found=true")
	admin := kadm.NewClient(connect(t, server.Addr))
	prepare(t, server.Addr, "probed")
	allow := kadm.NewACLs().Topics("read-only-gw1").ResourcePatternType(kadm.ACLPatternLiteral).Operations(kadm.OpDescribe).Allow("User:ANONYMOUS").AllowHosts("*")
	if made, err := admin.CreateACLs(t.Context(), allow); err != nil || made[0].Err != nil {
		t.Fatalf("allow: %v %+v", err, made)
	}
	denied := func(b *kadm.ACLBuilder, op kadm.ACLOperation) {
		t.Helper()
		made, err := admin.CreateACLs(t.Context(), b.ResourcePatternType(kadm.ACLPatternLiteral).Operations(op).Deny("User:ANONYMOUS").DenyHosts("*"))
		if err != nil || made[0].Err != nil {
			t.Fatalf("deny: %v %+v", err, made)
		}
	}
	prepare(t, server.Addr, "read-only")
	prepare(t, server.Addr, "write-only")
	describe := kadm.NewACLs().Topics("write-only-gw1").ResourcePatternType(kadm.ACLPatternLiteral).Operations(kadm.OpDescribe, kadm.OpWrite)
	if made, err := admin.CreateACLs(t.Context(), describe.Allow("User:ANONYMOUS").AllowHosts("*")); err != nil || made[0].Err != nil {
		t.Fatalf("allow: %v %+v", err, made)
	}
	denied(kadm.NewACLs().Topics("read-only-gw1"), kadm.OpWrite)
	denied(kadm.NewACLs().TransactionalIDs("gw/gw1/line/denied"), kadm.OpDescribe)
	denied(kadm.NewACLs().TransactionalIDs("gw/gw1/line/watched"), kadm.OpWrite)
	if _, err := admin.CreateTopic(t.Context(), 1, 1, nil, "expires"); err != nil {
		t.Fatal(err)
	}
	env := exactEnv()
	probe := func(topic string, change func(*kafka.Config, *uplink.Env)) []uplink.Step {
		driver, env := exactly(server.Addr, topic).Config, env
		if change != nil {
			change(driver, &env)
		}
		var steps []uplink.Step
		driver.Probe(t.Context(), env, func(s uplink.Step) {
			t.Logf("%s: %s %v", s.Name, s.Note, s.Err)
			steps = append(steps, s)
		})
		return steps
	}
	// A session runs, has its cursor and its transactional id, and lives on.
	s := openWith(t, exactly(server.Addr, "probed-gw1"), env)
	wantAcks(t, send(t, s, records(1, 10)))
	steps := probe("probed-gw1", nil)
	names := []string{}
	for _, s := range steps {
		if s.Err != nil {
			t.Errorf("%s: %v, want no error", s.Name, s.Err)
		}
		names = append(names, s.Name)
	}
	want := []string{"connect to " + server.Addr, "topic probed-gw1", "rights to write to topic probed-gw1", "transactional id gw/gw1/line/far", "cursor topic probed-gw1-cursors"}
	if !slices.Equal(names, want) {
		t.Errorf("steps %q, want %q", names, want)
	}
	if !strings.Contains(steps[0].Note, "1 brokers, Kafka v4") || !strings.Contains(steps[1].Note, "up to 100000 bytes") {
		t.Errorf("notes %q and %q, want version and size", steps[0].Note, steps[1].Note)
	}
	if err := s.(uplink.Watcher).Alive(t.Context()); err != nil {
		t.Errorf("Alive after a probe = %v, want nil: a probe fences nobody", err)
	}
	wantAcks(t, send(t, s, records(11, 20)))
	for _, test := range []struct {
		name, topic, want string
		change            func(*kafka.Config, *uplink.Env)
	}{
		{"nobody listens", "probed-gw1", "refuses the connection", func(c *kafka.Config, _ *uplink.Env) { c.Brokers = []string{"127.0.0.1:1"} }},
		{"topic missing", "not-there", "topic not-there does not exist", nil},
		{"no right to write", "read-only-gw1", "want the rights WRITE", nil},
		{"no right to read", "write-only-gw1", "want the rights READ on it", nil},
		{"no right on the transactional id", "probed-gw1", "may not use the transactional id", func(_ *kafka.Config, e *uplink.Env) { e.Uplink = "denied" }},
		{"no right to write with the transactional id", "probed-gw1", "may not use the transactional id", func(_ *kafka.Config, e *uplink.Env) { e.Uplink = "watched" }},
		{"cursors expire", "probed-gw1", "cleanup.policy=delete", func(c *kafka.Config, _ *uplink.Env) { c.CursorTopic = "expires" }},
	} {
		t.Run(test.name, func(t *testing.T) {
			steps := probe(test.topic, test.change)
			if err := steps[len(steps)-1].Err; err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("the last step says %v, want %q", err, test.want)
			}
		})
	}
}
