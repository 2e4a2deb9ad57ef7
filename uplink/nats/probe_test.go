package nats_test

import (
	"fmt"
	"strings"
	"testing"

	client "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"edgegateway/pipeline"
	"edgegateway/test/rig"
	"edgegateway/uplink"
	"edgegateway/uplink/nats"
	"edgegateway/uplink/uplinktest"
)

func TestProbeSaysWhatIsWrong(t *testing.T) {
	cert, key := uplinktest.Certificate(t)
	otherCA, _ := uplinktest.Certificate(t)
	users := `authorization { users: [
		{ user: gw, password: open },
		{ user: half, password: open, permissions: { publish: { allow: ["$JS.API.>", "$SYS.REQ.USER.INFO", "elsewhere.>"] } } },
		{ user: mum, password: open, permissions: { publish: { allow: ["$JS.API.>"] } } }
	] }`
	server := rig.NATS(t, rig.NATSOptions{Settings: users})
	encrypted := rig.NATS(t, rig.NATSOptions{Settings: fmt.Sprintf("tls { cert_file: %q, key_file: %q }", cert, key)})
	down := rig.NATS(t, rig.NATSOptions{})
	down.Stop()
	js := connect(t, server.Addr, client.UserInfo("gw", "open"))
	for _, cfg := range []jetstream.StreamConfig{
		{Name: "PLAIN", Subjects: []string{"plain.>"}},
		{Name: "ATOMIC", Subjects: []string{"atomic.>"}, AllowAtomicPublish: true, AllowRollup: true},
		{Name: "FULL", Subjects: []string{"full.>"}, MaxMsgs: 1, Discard: jetstream.DiscardNew},
		{Name: "SHUT", Subjects: []string{"shut.>"}, NoAck: true},
	} {
		if _, err := js.CreateStream(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := js.Publish(t.Context(), "full.x", nil); err != nil {
		t.Fatal(err)
	}
	as := func(user, place string) *nats.Config {
		return &nats.Config{
			Servers: []string{server.Addr}, Subject: place + ".{gateway}.{stream}", User: user, Password: pipeline.NewSecret("open"),
		}
	}
	at := func(addr string, tls uplink.TLS) *nats.Config {
		return &nats.Config{Servers: []string{addr}, Subject: "plain.{gateway}.{stream}", TLS: tls}
	}
	wrong := as("gw", "plain")
	wrong.Password = pipeline.NewSecret("shut")
	makes := as("gw", "none")
	makes.Create, makes.Stream = true, "NEW"
	for _, test := range []struct {
		name     string
		config   *nats.Config
		delivery uplink.Delivery
		want     []string
	}{
		{"all well", as("gw", "plain"), uplink.EffectivelyOnce, []string{"ok connect to", "NATS server 2.", "ok sign in as gw", "ok find the stream", "PLAIN", "ok rights to publish to plain.gw1.line: granted", "ok keep delivery effectively_once", "could keep at_least_once, effectively_once; it recognizes a record that comes again for 2m0s"}},
		{"all well, exactly once", as("gw", "atomic"), uplink.ExactlyOnce, []string{"ok keep delivery exactly_once: the stream could keep at_least_once, effectively_once, exactly_once"}},
		{"exactly once where it cannot be", as("gw", "plain"), uplink.ExactlyOnce, []string{"FAIL keep delivery exactly_once", "want allow_atomic: true"}},
		{"a stream that is to be made", makes, uplink.ExactlyOnce, []string{"the uplink makes NEW", "ok keep delivery"}},
		{"wrong password", wrong, "", []string{"ok connect to", "FAIL sign in as gw", "refuses the sign-in"}},
		{"missing stream", as("gw", "none"), "", []string{"ok sign in", "FAIL find the stream for none.gw1.line", "no stream on the server takes the subject"}},
		{"full stream", as("gw", "full"), "", []string{"FAIL find the stream", "is full"}},
		{"stream that confirms nothing", as("gw", "shut"), "", []string{"FAIL find the stream", "confirms nothing"}},
		{"no rights", as("half", "plain"), "", []string{"FAIL rights to publish", "may not publish to plain.gw1.line"}},
		{"rights that are not told", as("mum", "plain"), "", []string{"ok rights to publish", "not known", "ok keep delivery at_least_once"}},
		{"broker down", at(down.Addr, uplink.TLS{}), "", []string{"FAIL connect to", "refuses the connection"}},
		{"a silent port", at(uplinktest.Mute(t, ""), uplink.TLS{}), "", []string{"ok connect to", "FAIL sign in", "says nothing (is it the port of a NATS server?)"}},
		{"another service", at(uplinktest.Mute(t, "SSH-2.0-OpenSSH_9.9\r\n"), uplink.TLS{}), "", []string{"FAIL sign in", "is no NATS server"}},
		{"wrong authority", at(encrypted.Addr, uplink.TLS{Enabled: true, CAFile: otherCA}), "", []string{"FAIL sign in", "signed by an authority that is not trusted"}},
		{"a server that insists on TLS", at(encrypted.Addr, uplink.TLS{}), "", []string{"FAIL sign in", "not trusted (want it in tls.ca_file)"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			text := uplinktest.Probed(t, test.config, test.delivery)
			for _, want := range test.want {
				if !strings.Contains(text, want) {
					t.Errorf("%q is missing in\n%s", want, text)
				}
			}
			if fails := strings.Count(text, "FAIL"); fails > 1 || fails == 1 != strings.Contains(strings.Join(test.want, ""), "FAIL") {
				t.Errorf("%d steps failed\n%s", fails, text)
			}
		})
	}
	// Nothing was written and nothing made.
	for name := range js.StreamNames(t.Context()).Name() {
		stream, err := js.Stream(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if n := stream.CachedInfo().State.LastSeq; name == "NEW" || n != map[string]uint64{"FULL": 1}[name] {
			t.Errorf("stream %s has %d messages after the probes", name, n)
		}
	}
}
