package redis_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	client "github.com/redis/go-redis/v9"

	"edgegateway/pipeline"
	"edgegateway/test/rig"
	"edgegateway/uplink"
	"edgegateway/uplink/redis"
	"edgegateway/uplink/uplinktest"
)

func TestProbeSaysWhatIsWrong(t *testing.T) {
	server := rig.Redis(t, "--requirepass", "open")
	cert, key := uplinktest.Certificate(t)
	otherCA, _ := uplinktest.Certificate(t)
	tlsPort := strconv.Itoa(rig.FreePort(t))
	rig.Redis(t, "--tls-port", tlsPort, "--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", cert, "--tls-auth-clients", "no")
	down := rig.Redis(t)
	down.Stop()
	c := client.NewClient(&client.Options{Addr: server.Addr, Password: "open"})
	t.Cleanup(func() { _ = c.Close() }) // the test is over
	do := func(args ...any) {
		t.Helper()
		if err := c.Do(t.Context(), args...).Err(); err != nil {
			t.Fatalf("%v: %v", args, err)
		}
	}
	do("SET", "text", "not a stream")
	do("XADD", "old", "5-1", "a", "b")
	do("SET", "{old}:cursor", "5-1")
	do("RPUSH", "queue", "a")
	do("HSET", "hash:probe", "epoch", "7")
	// Just what docs/uplinks/redis.md asks for.
	do("ACL", "SETUSER", "least", "on", ">least", "resetkeys", "~least", "~{least}:cursor", "~{least}:fence", "-@all", "+ping", "+evalsha", "+eval",
		"+xadd", "+xinfo", "+get", "+set", "+hello", "+auth", "+multi", "+discard")
	do("ACL", "SETUSER", "blind", "on", ">blind", "~*", "-@all", "+ping", "+evalsha", "+eval", "+xadd", "+xinfo", "+get", "+set", "+hello", "+auth", "+multi", "+discard", "+type")
	do("ACL", "SETUSER", "reader", "on", ">reader", "~*", "+@read", "+ping", "+hello", "+auth", "+multi", "+discard")
	at := func(key, as string) *redis.Config {
		return &redis.Config{Address: server.Addr, Password: pipeline.NewSecret("open"), Key: key, As: as}
	}
	user := func(name, key string) *redis.Config {
		return &redis.Config{Address: server.Addr, User: name, Password: pipeline.NewSecret(name), Key: key, As: "stream"}
	}
	elsewhere := func(addr string, tls uplink.TLS) *redis.Config {
		return &redis.Config{Address: addr, Key: "x", As: "stream", TLS: tls}
	}
	wrong := at("free", "stream")
	wrong.Password = pipeline.NewSecret("shut")
	none := at("free", "stream")
	none.Password = pipeline.Secret{}
	disk := at("free", "stream")
	disk.WaitAOF = true
	replicas := at("free", "stream")
	replicas.WaitReplicas = 1
	onDisk := "FAIL write" // the server says no such thing before version 7.2
	if c.Do(t.Context(), "WAITAOF", 1, 0, 1).Err() == nil {
		onDisk = "ok write"
	}
	before := snapshot(t, c)
	for _, test := range []struct {
		name     string
		config   *redis.Config
		delivery uplink.Delivery
		want     []string
	}{
		{"all well", at("free", "stream"), uplink.ExactlyOnce, []string{"ok connect to", "Redis ", "ok sign in as the default user", "ok look at the key free: free", "ok rights on free: granted", "ok write and read back {free}:probe", "ok keep delivery exactly_once"}},
		{"a stream that is in use", at("old", "stream"), uplink.ExactlyOnce, []string{"look at the key old: a stream", "granted"}},
		{"a list", at("queue", "list"), uplink.ExactlyOnce, []string{"look at the key queue: a list", "granted"}},
		{"latest", at("hash", "latest"), uplink.EffectivelyOnce, []string{"granted", "ok keep delivery effectively_once: it could keep at_least_once, effectively_once\n"}},
		{"latest cannot do it exactly once", at("hash", "latest"), uplink.ExactlyOnce, []string{"FAIL keep delivery exactly_once", "no cursor"}},
		{"a user with no more than it needs", user("least", "least"), uplink.ExactlyOnce, []string{"ok sign in as least", "ok look at the key least: not known", "ok rights on least: granted", "not tried", "ok keep delivery"}},
		{"rights on other keys", user("least", "most"), uplink.ExactlyOnce, []string{"FAIL rights on most", "has no rights for this"}},
		{"rights to read", user("reader", "free"), uplink.AtLeastOnce, []string{"FAIL rights on free", "has no rights for this"}},
		{"on disk", disk, "", []string{"write and read back", onDisk}},
		{"on a replica that is not there", replicas, "", []string{"FAIL write and read back", "replicas"}},
		{"wrong password", wrong, "", []string{"ok connect to", "FAIL sign in", "wrong user or password"}},
		{"no password", none, "", []string{"ok connect to", "FAIL sign in without a password", "wrong user or password"}},
		{"something else at the key", at("text", "stream"), "", []string{"FAIL look at the key text", "is a string (want a key that is free or a stream)"}},
		{"broker down", elsewhere(down.Addr, uplink.TLS{}), "", []string{"FAIL connect to", "refuses the connection"}},
		{"a silent port", elsewhere(uplinktest.Mute(t, ""), uplink.TLS{}), "", []string{"FAIL connect to", "does not answer in time"}},
		{"another service", elsewhere(uplinktest.Mute(t, "SSH-2.0-OpenSSH_9.9\r\n"), uplink.TLS{}), "", []string{"FAIL connect to", "answers as no Redis does"}},
		{"wrong authority", elsewhere("127.0.0.1:"+tlsPort, uplink.TLS{Enabled: true, CAFile: otherCA}), "", []string{"FAIL connect to", "signed by an authority that is not trusted"}},
		{"right authority", elsewhere("127.0.0.1:"+tlsPort, uplink.TLS{Enabled: true, CAFile: cert}), "", []string{"ok keep delivery"}},
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
	if after := snapshot(t, c); !slices.Equal(before, after) {
		t.Errorf("the probes have changed the database:\n%v\n%v", before, after)
	}
}

// snapshot returns each key with what it holds.
func snapshot(t *testing.T, c *client.Client) []string {
	t.Helper()
	keys, err := c.Keys(t.Context(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(keys)
	for i, key := range keys {
		dump, err := c.Dump(t.Context(), key).Result()
		if err != nil {
			t.Fatal(err)
		}
		keys[i] += fmt.Sprintf(" %q", dump)
	}
	return keys
}
