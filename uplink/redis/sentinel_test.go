package redis_test

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	client "github.com/redis/go-redis/v9"

	"edgegateway/pipeline"
	"edgegateway/test/rig"
	"edgegateway/uplink"
	"edgegateway/uplink/redis"
	"edgegateway/uplink/uplinktest"
)

// watched is a master and a replica with passwords, and sentinels with another one.
type watched struct {
	t         *testing.T
	nodes     []*rig.Server
	known     []string // where the sentinels reach the nodes
	sentinels []*rig.Server
	tls       uplink.TLS
}

const guarded = "plant" // name of the master

func newWatched(t *testing.T) watched {
	t.Helper()
	return watch(t, uplink.TLS{})
}

// watch starts them. With TLS, nodes and sentinels talk to each other by it, and want a certificate of whoever comes; the test itself has
// other ports.
func watch(t *testing.T, tls uplink.TLS) watched {
	t.Helper()
	w := watched{t: t, tls: tls}
	var secure []string
	if tls.Enabled {
		for _, s := range [][2]string{
			{"tls-cert-file", tls.CertFile}, {"tls-key-file", tls.KeyFile}, {"tls-ca-cert-file", tls.CAFile}, {"tls-auth-clients", "yes"},
		} {
			secure = append(secure, s[0]+" "+s[1])
		}
	}
	for i := range 2 {
		args := []string{"--requirepass", "open", "--masterauth", "open", "--repl-diskless-sync-delay", "0"}
		port := ""
		if tls.Enabled {
			port = strconv.Itoa(rig.FreePort(t))
			args = append(args, "--tls-port", port, "--tls-replication", "yes")
			for _, s := range secure {
				name, value, _ := strings.Cut(s, " ")
				args = append(args, "--"+name, value)
			}
		}
		if i > 0 {
			host, port, _ := splitAddr(w.known[0])
			args = append(args, "--replicaof", host, port)
		}
		w.nodes = append(w.nodes, rig.Redis(t, args...))
		w.known = append(w.known, w.nodes[i].Addr)
		if tls.Enabled {
			w.known[i] = "127.0.0.1:" + port
		}
		w.admit(i) // the sentinels sign in as a user of their own, whom a test can shut out
	}
	w.sentinels = rig.RedisSentinels(t, 3, guarded, w.known[0], strings.Join(append([]string{
		"sentinel auth-user " + guarded + " guard", "sentinel auth-pass " + guarded + " guard",
		"requirepass watch", "user gateway on >ask -@all +sentinel|master +hello +auth",
	}, secure...), "\n"))
	w.linked(1)
	w.until("every sentinel knows the others and the replica", func() bool {
		for i := range w.sentinels {
			m, err := w.sentinel(i).Master(t.Context(), guarded).Result()
			if err != nil || m["num-other-sentinels"] != "2" || m["num-slaves"] != "1" {
				return false
			}
		}
		return true
	})
	return w
}

func (w watched) until(what string, is func() bool) {
	w.t.Helper()
	for deadline := time.Now().Add(patient); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			w.t.Fatalf("it did not come to it that %s", what)
		}
	}
}

func (w watched) node(i int) *client.Client {
	c := client.NewClient(&client.Options{Addr: w.nodes[i].Addr, Password: "open"})
	w.t.Cleanup(func() { _ = c.Close() }) // the test is over
	return c
}

func (w watched) sentinel(i int) *client.SentinelClient {
	c := client.NewSentinelClient(&client.Options{Addr: w.sentinels[i].Addr, Password: "watch"})
	w.t.Cleanup(func() { _ = c.Close() }) // the test is over
	return c
}

// admit lets sentinels sign in at a node, and shut keeps them out, as if the line between them were cut.
func (w watched) admit(i int) {
	w.t.Helper()
	if err := w.node(i).Do(w.t.Context(), "ACL", "SETUSER", "guard", "on", ">guard", "~*", "&*", "+@all").Err(); err != nil {
		w.t.Fatal(err)
	}
}

func (w watched) shut(i int) {
	w.t.Helper()
	c := w.node(i)
	if err := c.Do(w.t.Context(), "ACL", "SETUSER", "guard", "off").Err(); err != nil {
		w.t.Fatal(err)
	}
	if err := c.Do(w.t.Context(), "CLIENT", "KILL", "USER", "guard").Err(); err != nil {
		w.t.Fatal(err)
	}
}

// linked waits until a node is a replica with a link to its master.
func (w watched) linked(i int) {
	w.t.Helper()
	c := w.node(i)
	w.until(w.nodes[i].Addr+" is a replica and linked", func() bool {
		return rig.RedisIsReplica(c.Info(w.t.Context()).Val())
	})
}

// leads waits until all sentinels take a node for the master, and it is one.
func (w watched) leads(i int) {
	w.t.Helper()
	_, port, _ := splitAddr(w.known[i])
	w.until(w.nodes[i].Addr+" is the master", func() bool {
		for j := range w.sentinels {
			if m := w.sentinel(j).Master(w.t.Context(), guarded).Val(); m["port"] != port || m["flags"] != "master" {
				return false
			}
		}
		return strings.Contains(w.node(i).Info(w.t.Context(), "replication").Val(), "role:master")
	})
}

func (w watched) config(as string) *redis.Config {
	c := &redis.Config{As: as, Key: "k", Password: pipeline.NewSecret("open"), TLS: w.tls}
	c.Sentinel = redis.Sentinel{Master: guarded, User: "gateway", Password: pipeline.NewSecret("ask")}
	for _, s := range w.sentinels {
		address := s.Addr
		if w.tls.Enabled {
			address = s.At["TLS"]
		}
		c.Sentinel.Addresses = append(c.Sentinel.Addresses, address)
	}
	return c
}

// TestAFailOverBySentinelsThatLostWritesIsMadeUpFor has a master confirm records that its replica never sees.
func TestAFailOverBySentinelsThatLostWritesIsMadeUpFor(t *testing.T) {
	w := newWatched(t)
	g := run(t, exactly{w.config("stream")}, uplinktest.NewLog(), "")
	g.send(100)
	g.append(200)
	if err := w.sentinel(0).Failover(t.Context(), guarded).Err(); err != nil { // as an administrator does it
		t.Fatal(err)
	}
	g.settle()
	w.leads(1)
	w.linked(0)
	g.send(100)
	w.until("the replica has all", func() bool { return w.node(0).XLen(t.Context(), "k").Val() == 400 })
	w.nodes[0].Kill9()
	g.send(100) // only the master has them
	w.nodes[1].Kill9()
	w.nodes[0].Start()
	if n := w.node(0).XLen(t.Context(), "k").Val(); n != 400 {
		t.Fatalf("the replica has %d records, want the first 400: the test shows nothing", n)
	}
	w.admit(0)
	g.append(100)
	g.settle()
	w.leads(0)
	holds(t, w.node(0), "stream", "k", 600)
	w.sentinels[0].Kill9() // two are enough to find the master
	w.nodes[1].Start()
	w.admit(1)
	w.linked(1)
	g.send(50)
	g.stop()
	g = run(t, exactly{w.config("stream")}, g.log, "")
	g.send(50)
	holds(t, w.node(0), "stream", "k", 700)
	if s := g.Status(); s.Error != "" {
		t.Errorf("Error = %q, want none", s.Error)
	}
}

// TestSentinelsOverTLS has all lines encrypted, and asks for a certificate on all of them: to the sentinels, to the master, and to the
// one that takes its place.
func TestSentinelsOverTLS(t *testing.T) {
	t.Parallel() // it waits more than it works
	cert, key := uplinktest.Certificate(t)
	w := watch(t, uplink.TLS{Enabled: true, CAFile: cert, CertFile: cert, KeyFile: key})
	g := run(t, exactly{w.config("stream")}, uplinktest.NewLog(), "")
	g.send(100)
	g.append(200)
	if err := w.sentinel(0).Failover(t.Context(), guarded).Err(); err != nil {
		t.Fatal(err)
	}
	g.settle()
	w.leads(1)
	w.linked(0)
	g.send(100)
	w.until("the replica has all", func() bool { return w.node(0).XLen(t.Context(), "k").Val() == 400 })
	w.nodes[1].Kill9()
	g.append(100)
	g.settle()
	w.leads(0)
	holds(t, w.node(0), "stream", "k", 500)

	other, _ := uplinktest.Certificate(t)
	plain, _, _ := splitAddr(w.sentinels[0].Addr)
	driver := func(change func(*redis.Config)) uplink.Driver {
		c := w.config("list")
		c.Key = "another"
		change(c)
		return exactly{c}
	}
	uplinktest.RunFaults(t, []uplinktest.Fault{
		{
			Name: "sentinels of another authority", Want: "sentinel " + plain, Config: true,
			Driver: driver(func(c *redis.Config) { c.TLS.CAFile = other }),
		},
		{
			Name: "no client certificate", Want: "does it want a client certificate", Config: true,
			Driver: driver(func(c *redis.Config) { c.TLS.CertFile, c.TLS.KeyFile = "", "" }),
		},
		{
			Name: "no TLS to sentinels that want it", Want: "does it want TLS on this port",
			Driver: driver(func(c *redis.Config) { c.TLS = uplink.TLS{} }),
		},
		{
			Name: "TLS to a port of the sentinels without it", Want: "does it speak TLS",
			Driver: driver(func(c *redis.Config) { c.Sentinel.Addresses = []string{w.sentinels[0].Addr} }),
		},
	})
}

// TestAMasterThatSentinelsHaveReplacedIsLeft: they cannot reach it, so nobody tells it, and it goes on confirming what is lost.
func TestAMasterThatSentinelsHaveReplacedIsLeft(t *testing.T) {
	w := newWatched(t)
	g := run(t, exactly{w.config("list").AskSentinelsEvery(100 * time.Millisecond)}, uplinktest.NewLog(), "")
	g.send(100)
	w.shut(0)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case <-time.After(2 * time.Millisecond):
				g.append(1)
			}
		}
	}()
	w.leads(1)
	w.until("the gateway writes to the new master", func() bool { return w.node(1).LLen(t.Context(), "k").Val() > int64(g.log.Len())-20 })
	close(stop)
	<-stopped
	g.settle()
	holds(t, w.node(1), "list", "k", g.log.Len())
	if n := w.node(0).LLen(t.Context(), "k").Val(); n <= 100 {
		t.Errorf("the old master has %d records: it took nothing, and the test has shown nothing", n)
	}
}

func TestWhatIsWrongWithSentinelsIsSaid(t *testing.T) {
	w := newWatched(t)
	driver := func(change func(*redis.Config)) uplink.Driver {
		c := w.config("stream")
		change(c)
		return exactly{c}
	}
	uplinktest.RunFaults(t, []uplinktest.Fault{
		{
			Name: "an unknown master", Want: `watches no master "other"`, Config: true,
			Driver: driver(func(c *redis.Config) { c.Sentinel.Master = "other" }),
		},
		{
			Name: "a wrong password of the sentinels", Want: "wrong sentinel.user or sentinel.password", Config: true,
			Driver: driver(func(c *redis.Config) { c.Sentinel.Password = pipeline.NewSecret("open") }),
		},
		{
			Name: "a wrong password of the master", Want: w.nodes[0].Addr + " refuses the sign-in: wrong user or password", Config: true,
			Driver: driver(func(c *redis.Config) { c.Password = pipeline.NewSecret("watch") }),
		},
		{
			Name: "no sentinel at the address", Want: "is no sentinel", Config: true,
			Driver: driver(func(c *redis.Config) {
				c.Sentinel.Addresses = []string{w.nodes[0].Addr}
				c.Sentinel.User, c.Sentinel.Password = "", pipeline.NewSecret("open")
			}),
		},
		{
			Name: "nobody there", Want: "sentinel 127.0.0.1:1 refuses the connection",
			Driver: driver(func(c *redis.Config) { c.Sentinel.Addresses = []string{"127.0.0.1:1"} }),
		},
	})
	var text strings.Builder
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	w.config("stream").Probe(ctx, uplink.Env{Gateway: "gw1", Stream: "line", Promise: uplink.Promise{Delivery: uplink.ExactlyOnce}}, func(s uplink.Step) {
		if s.Err != nil {
			t.Errorf("probe: %s: %v", s.Name, s.Err)
		}
		text.WriteString(s.Name + ": " + s.Note + "\n")
	})
	if want := "ask the sentinels for the master " + guarded + ": " + w.nodes[0].Addr; !strings.Contains(text.String(), want) {
		t.Errorf("the probe says\n%s, want %s", text.String(), want)
	}
}
