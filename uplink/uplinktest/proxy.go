package uplinktest

import (
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Proxy is a bad line between a driver and its broker.
type Proxy struct {
	Addr string

	to        string
	latency   atomic.Int64 // of each direction
	rate      atomic.Int64 // bytes a second of each direction; 0 for no bound
	swallow   atomic.Bool  // replies vanish
	swallowed atomic.Int64 // bytes of them

	listener net.Listener
	running  sync.WaitGroup
	mu       sync.Mutex // guards conns
	conns    map[net.Conn]bool
}

// NewProxy returns a proxy that listens at an address, leads to another, and ends with the test.
func NewProxy(t testing.TB, at, to string) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", at)
	if err != nil {
		t.Fatalf("proxy: %v", err)
	}
	p := &Proxy{Addr: l.Addr().String(), to: to, listener: l, conns: map[net.Conn]bool{}}
	p.running.Go(p.accept)
	t.Cleanup(func() {
		_ = l.Close() // accept ends with it
		p.Cut()
		p.running.Wait()
	})
	return p
}

// Slow makes each direction take so long and bounds its bytes a second.
func (p *Proxy) Slow(latency time.Duration, rate int64) {
	p.latency.Store(int64(latency))
	p.rate.Store(rate)
}

// Swallow makes replies vanish, or lets them pass again on connections made afterwards.
func (p *Proxy) Swallow(on bool) { p.swallow.Store(on) }

// Swallowed returns how many bytes of replies have vanished.
func (p *Proxy) Swallowed() int64 { return p.swallowed.Load() }

// Cut closes all connections.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close() // that is the purpose
	}
}

func (p *Proxy) accept() {
	for {
		near, err := p.listener.Accept()
		if err != nil {
			return
		}
		far, err := net.DialTimeout("tcp", p.to, time.Second)
		if err != nil {
			_ = near.Close() // the broker is down: so is the line
			continue
		}
		p.mu.Lock()
		p.conns[near], p.conns[far] = true, true
		p.mu.Unlock()
		p.running.Go(func() { p.pump(far, near, false) })
		p.running.Go(func() { p.pump(near, far, true) })
	}
}

// pump carries bytes one way. Chunks in transit wait in a queue, so that latency does not bound throughput.
func (p *Proxy) pump(to, from net.Conn, replies bool) {
	type chunk struct {
		data []byte
		due  time.Time
	}
	transit := make(chan chunk, 256)
	p.running.Go(func() {
		defer p.closeBoth(to, from)
		for c := range transit {
			time.Sleep(time.Until(c.due))
			if rate := p.rate.Load(); rate > 0 {
				time.Sleep(time.Duration(len(c.data)) * time.Second / time.Duration(rate))
			}
			if _, err := to.Write(c.data); err != nil {
				_ = from.Close() // ends the reader below
			}
		}
	})
	defer close(transit)
	lost := false
	buf := make([]byte, 16<<10)
	for {
		n, err := from.Read(buf)
		if replies && p.swallow.Load() {
			lost = true // and stays so: half a reply would be another fault
		}
		if n > 0 && lost {
			p.swallowed.Add(int64(n))
		} else if n > 0 {
			data := append([]byte(nil), buf[:n]...)
			transit <- chunk{data, time.Now().Add(time.Duration(p.latency.Load()))}
		}
		if err != nil {
			return
		}
	}
}

func (p *Proxy) closeBoth(a, b net.Conn) {
	_ = a.Close() // the other direction sees it
	_ = b.Close()
	p.mu.Lock()
	delete(p.conns, a)
	delete(p.conns, b)
	p.mu.Unlock()
}
