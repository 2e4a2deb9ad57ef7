package mqtt

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mochi-mqtt/server/v2/listeners"
)

// beforeConnect bounds the first packet, which anybody can send: a user name, a password and a will fit in easily.
const beforeConnect = 64 << 10

const acceptPause = 100 * time.Millisecond

// guard is the listener that mochi serves from. It keeps from mochi what would end it or fill its memory: a panic ends one
// connection, a failed accept is tried again, connections are counted, and a connection has to sign in within a deadline.
type guard struct {
	ln       net.Listener
	log      *slog.Logger
	timeout  time.Duration
	max      int
	maxFirst uint32
	tooLong  func(*conn)        // told of a packet over the limit
	ended    func(*conn, error) // called once for each connection, after mochi has let go of it
	goodbye  func()             // tells the clients that the broker stops
	refused  atomic.Uint64      // connections over max
	pending  atomic.Int64       // bytes that wait for slow readers
	panics   atomic.Uint64
	stop     chan struct{} // closed by Close
	served   chan struct{} // closed when Serve has ended
	wg       sync.WaitGroup

	mu    sync.Mutex // guards conns
	conns map[*conn]struct{}
}

var _ listeners.Listener = (*guard)(nil)

func newGuard(ln net.Listener, log *slog.Logger, c Config) *guard {
	return &guard{
		ln: ln, log: log, timeout: c.ConnectTimeout, max: c.MaxConnections,
		maxFirst: uint32(min(int64(c.MaxPacket), beforeConnect)),
		stop:     make(chan struct{}), served: make(chan struct{}), conns: map[*conn]struct{}{},
	}
}

// Init does nothing: the port was bound by Open, so that its error is told there.
func (g *guard) Init(*slog.Logger) error { return nil }

// ID names the listener to mochi.
func (g *guard) ID() string { return "tcp" }

// Address returns the address that is listened on.
func (g *guard) Address() string { return g.ln.Addr().String() }

// Protocol names the protocol to mochi.
func (g *guard) Protocol() string { return "tcp" }

// Serve accepts connections until Close.
func (g *guard) Serve(establish listeners.EstablishFn) {
	defer close(g.served)
	failing := false
	for {
		c, err := g.ln.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if !failing {
				failing = true
				g.log.Warn("cannot accept connections, will retry", "err", err)
			}
			select {
			case <-g.stop:
				return
			case <-time.After(acceptPause):
				continue
			}
		}
		if failing {
			failing = false
			g.log.Info("accepts connections again")
		}
		g.admit(c, establish)
	}
}

func (g *guard) admit(nc net.Conn, establish listeners.EstablishFn) {
	c := newConn(nc, &g.pending, g.maxFirst)
	c.tooLong = g.tooLong
	g.mu.Lock()
	full := len(g.conns) >= g.max
	if !full {
		g.conns[c] = struct{}{}
	}
	g.mu.Unlock()
	if full {
		g.refused.Add(1)
		_ = nc.Close()
		return
	}
	g.wg.Go(func() { g.handle(c, establish) })
}

func (g *guard) handle(c *conn, establish listeners.EstablishFn) {
	defer func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.conns, c)
	}()
	_ = c.SetReadDeadline(time.Now().Add(g.timeout))
	g.wg.Go(c.writeLoop)
	err := g.protect(c, establish)
	_ = c.Close()
	g.ended(c, err)
	<-c.written
}

// protect turns a panic of mochi's decoder into an error of the one connection.
func (g *guard) protect(c *conn, establish listeners.EstablishFn) (err error) {
	defer func() {
		if p := recover(); p != nil {
			g.panics.Add(1)
			g.log.Debug("connection panicked", "panic", p, "stack", string(debug.Stack()))
			err = fmt.Errorf("malformed packet: %v", p)
		}
	}()
	return establish(g.ID(), c)
}

// Close stops accepting, says goodbye to the clients, closes what is left and waits for all of it. mochi's own way to say
// goodbye, its CloseFn, locks its table of clients for reading twice in one goroutine, which hangs for ever when a client
// comes or goes in between.
func (g *guard) Close(listeners.CloseFn) {
	close(g.stop)
	_ = g.ln.Close()
	<-g.served
	g.goodbye()
	g.mu.Lock()
	for c := range g.conns {
		_ = c.Close()
	}
	g.mu.Unlock()
	g.wg.Wait()
}

func (g *guard) open() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.conns)
}
