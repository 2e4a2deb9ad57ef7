package redis_test

import (
	"strconv"
	"testing"
	"time"

	"edgegateway/pipeline"
	"edgegateway/test/rig"
	"edgegateway/uplink"
	"edgegateway/uplink/redis"
	"edgegateway/uplink/uplinktest"
)

// TestWhatAServerRefusesInMidFlow takes away and gives back what a script needs, under load and with a script behind the one that is refused.
func TestWhatAServerRefusesInMidFlow(t *testing.T) {
	everyOrder(t, func(t *testing.T, f far, as string, driver func(string) uplink.Driver, server string) {
		g := run(t, driver(server), uplinktest.NewLog(), "")
		stop, stopped := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(stopped)
			for {
				select {
				case <-stop:
					return
				case <-time.After(time.Millisecond):
					g.append(40)
				}
			}
		}()
		for _, trouble := range []struct {
			name       string
			take, give []any
			says       string
		}{
			{"memory", []any{"CONFIG", "SET", "maxmemory", 1}, []any{"CONFIG", "SET", "maxmemory", 0}, "reached its maxmemory"},
			{"role", []any{"REPLICAOF", "127.0.0.1", 1}, []any{"REPLICAOF", "NO", "ONE"}, "is a read-only replica"},
			{"rights", []any{"ACL", "SETUSER", "default", "-xadd", "-rpush"}, []any{"ACL", "SETUSER", "default", "+xadd", "+rpush"}, "has no rights for this"},
			{"replicas", []any{"CONFIG", "SET", "min-replicas-to-write", 1}, []any{"CONFIG", "SET", "min-replicas-to-write", 0}, "too few replicas"},
		} {
			for range 2 {
				f.do(trouble.take...)
				g.says(trouble.says)
				from := g.log.Settled()
				f.do(trouble.give...)
				for range 3 {
					f.do("SCRIPT", "FLUSH")
					time.Sleep(10 * time.Millisecond)
				}
				if !g.log.Wait(from+500, patient) {
					t.Fatalf("%s: given back, and %d records have an outcome, as before", trouble.name, g.log.Settled())
				}
			}
		}
		close(stop)
		<-stopped
		g.settle()
		f.holds(as, "k", g.log.Len())
	})
}

func TestAServerTrims(t *testing.T) {
	server := rig.Redis(t)
	f := far{connect(t, server.Addr), t}
	for _, test := range []struct {
		as       string
		max      int64
		from, to int64
	}{{"stream", 1000, 1000, 1100}, {"list", 1000, 1000, 1000}} { // a stream is trimmed by whole nodes of 100
		t.Run(test.as, func(t *testing.T) {
			cfg := exactly{&redis.Config{Address: server.Addr, As: test.as, Key: test.as, MaxLen: test.max}}
			log := uplinktest.NewLog()
			g := &gateway{log: log, t: t}
			g.append(5000)
			g = run(t, cfg, log, "")
			g.settle()
			g.stop()
			n, newest := f.LLen(t.Context(), test.as).Val(), ""
			if test.as == "stream" {
				n, newest = f.XLen(t.Context(), test.as).Val(), f.XRevRangeN(t.Context(), test.as, "+", "-", 1).Val()[0].Values["id"].(string)
			} else {
				newest = recordID(t, f.LIndex(t.Context(), test.as, -1).Val())
			}
			if n < test.from || n > test.to || newest != "gw1/line/7/5000" {
				t.Errorf("%d records, the newest is %s; want %d to %d, and gw1/line/7/5000", n, newest, test.from, test.to)
			}
			f.do("DEL", test.as) // what is gone is known to have been there
			g = run(t, cfg, log, "")
			g.send(10)
			if got := f.Get(t.Context(), "{"+test.as+"}:cursor").Val(); got != "7-5010" {
				t.Errorf("cursor %s, want 7-5010", got)
			}
		})
	}
}

func TestTLSWithAClientCertificateAndNoMoreRightsThanNeeded(t *testing.T) {
	cert, key := uplinktest.Certificate(t)
	port := strconv.Itoa(rig.FreePort(t))
	server := rig.Redis(t, "--tls-port", port, "--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", cert, "--tls-auth-clients", "yes")
	f := far{connect(t, server.Addr), t}
	f.do("ACL", "SETUSER", "least", "on", ">least", "resetkeys", "~k", "~{k}:cursor", "~{k}:fence", "-@all", "+ping", "+evalsha", "+eval",
		"+xadd", "+xinfo", "+get", "+set", "+hello", "+auth")
	cfg := &redis.Config{
		Address: "127.0.0.1:" + port, Key: "k", User: "least", Password: pipeline.NewSecret("least"),
		TLS: uplink.TLS{Enabled: true, CAFile: cert, CertFile: cert, KeyFile: key},
	}
	g := run(t, exactly{cfg}, uplinktest.NewLog(), "")
	g.send(700)
	f.holds("stream", "k", 700)
	without := *cfg
	without.TLS.CertFile, without.TLS.KeyFile = "", ""
	uplinktest.RunFaults(t, []uplinktest.Fault{
		{Name: "no client certificate", Driver: exactly{&without}, Want: "does it want a client certificate", Config: true},
	})
}
