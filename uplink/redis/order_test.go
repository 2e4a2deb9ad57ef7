package redis_test

import (
	"bytes"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"edgegateway/test/rig"
	"edgegateway/uplink"
	"edgegateway/uplink/redis"
	"edgegateway/uplink/uplinktest"
)

// counter counts how often a word comes back from a server.
type counter struct {
	io.Writer

	word string
	n    *atomic.Int64
}

func (c counter) Write(data []byte) (int, error) {
	c.n.Add(int64(bytes.Count(data, []byte(c.word))))
	return c.Writer.Write(data)
}

// crookedLine leads to a server. What goes there by a connection passes through tamper, which has the number of the connection, from 1.
// refused counts the chunks that came before their time.
func crookedLine(t *testing.T, server string, tamper func(conn int, data []byte) (pass bool)) (addr string, refused *atomic.Int64) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	refused = &atomic.Int64{}
	var running sync.WaitGroup
	t.Cleanup(func() { _ = l.Close(); running.Wait() })
	serve := func(n int, near net.Conn) {
		far, err := net.Dial("tcp", server)
		if err != nil {
			_ = near.Close()
			return
		}
		running.Go(func() {
			_, _ = io.Copy(counter{near, "ELSEWHERE", refused}, far)
			_ = near.Close()
		})
		for buf := make([]byte, 1<<16); ; {
			got, err := near.Read(buf)
			if err != nil || !tamper(n, buf[:got]) {
				break
			}
			if _, err := far.Write(buf[:got]); err != nil {
				break
			}
		}
		_, _ = far.Close(), near.Close()
	}
	running.Go(func() {
		for n := 1; ; n++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() { serve(n, c) })
		}
	})
	return l.Addr().String(), refused
}

// everyOrder runs a test for each kind and promise whose scripts watch over each other.
func everyOrder(t *testing.T, run func(t *testing.T, f far, as string, driver func(addr string) uplink.Driver, server string)) {
	for _, as := range []string{"stream", "list"} {
		for _, exact := range []bool{true, false} {
			name := as + " effectively_once"
			if exact {
				name = as + " exactly_once"
			}
			t.Run(name, func(t *testing.T) {
				server := rig.Redis(t)
				run(t, far{connect(t, server.Addr), t}, as, func(addr string) uplink.Driver {
					cfg := &redis.Config{Address: addr, As: as, Key: "k"}
					if exact {
						return exactly{cfg}
					}
					return cfg
				}, server.Addr)
			})
		}
	}
}

// TestAChunkThatOvertakesAnotherStoresNothing holds back the pieces of one of the two connections: the chunk that comes too early is
// refused and sent again, and the session lives on.
func TestAChunkThatOvertakesAnotherStoresNothing(t *testing.T) {
	everyOrder(t, func(t *testing.T, f far, as string, driver func(string) uplink.Driver, server string) {
		var conns atomic.Int64
		addr, refused := crookedLine(t, server, func(conn int, data []byte) bool {
			conns.Store(max(conns.Load(), int64(conn)))
			if conn == 1 && len(data) > 1000 {
				time.Sleep(5 * time.Millisecond)
			}
			return true
		})
		log := uplinktest.NewLog()
		g := &gateway{log: log, t: t}
		g.append(6000)
		g = run(t, driver(addr), log, "")
		g.settle()
		f.holds(as, "k", 6000)
		if conns.Load() != 2 || log.Again() != 0 || refused.Load() == 0 {
			t.Errorf("%d connections, %d records given out again, %d chunks refused; want 2, none, some", conns.Load(), log.Again(), refused.Load())
		}
	})
}

// TestAChunkBehindOneThatWasLostStoresNothing cuts one of the two connections in mid-request, again and again.
func TestAChunkBehindOneThatWasLostStoresNothing(t *testing.T) {
	everyOrder(t, func(t *testing.T, f far, as string, driver func(string) uplink.Driver, server string) {
		var pieces, cuts atomic.Int64
		addr, _ := crookedLine(t, server, func(_ int, data []byte) bool {
			if len(data) > 10000 && pieces.Add(1)%5 == 0 && cuts.Load() < 20 {
				cuts.Add(1)
				return false
			}
			return true
		})
		log := uplinktest.NewLog()
		g := &gateway{log: log, t: t}
		g.append(20000)
		g = run(t, driver(addr), log, "")
		g.settle()
		f.holds(as, "k", 20000)
		if cuts.Load() < 10 {
			t.Errorf("%d connections were cut, want 10 at the least", cuts.Load())
		}
	})
}
