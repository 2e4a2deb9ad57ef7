package mqtt

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"
)

// Bounds of what waits for slow readers. A reader that is behind by more than maxPending is cut off; when all of them
// together are behind by more than maxAllPending, so is each that is behind by more than fairPending.
const (
	maxPending    = 8 << 20
	maxAllPending = 32 << 20
	fairPending   = 256 << 10
	writeChunk    = 64 << 10
	writeTimeout  = time.Minute            // for a chunk: a reader that takes nothing for so long is gone
	flushTimeout  = 400 * time.Millisecond // for the last packets, such as DISCONNECT, after Close
)

var errSlowReader = errors.New("the client reads too slowly")

// conn is a client's connection as mochi sees it. Write never blocks: mochi holds locks over it that every publisher to a
// topic needs. What is written waits in pending for writeLoop.
type conn struct {
	net.Conn
	all     *atomic.Int64 // bytes pending on all connections
	frame   frame         // used by Read alone
	client  *client       // set once by the broker at CONNECT, before anybody else can see the connection
	tooLong func(*conn)   // told once when a packet is too long
	// receiveMaximum is what CONNECT said; used by the reading goroutine alone.
	receiveMaximum uint16

	wake    chan struct{} // has room for one signal; wakes writeLoop
	written chan struct{} // closed when writeLoop has ended

	mu      sync.Mutex // guards the fields below
	pending []byte
	closed  bool
	flushBy time.Time // set by Close
}

func newConn(c net.Conn, all *atomic.Int64, limit uint32) *conn {
	return &conn{Conn: c, all: all, frame: frame{limit: limit}, wake: make(chan struct{}, 1), written: make(chan struct{})}
}

// Read checks the frames on the way to mochi.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if bad := c.frame.scan(p[:n]); bad != nil {
		if errors.Is(bad, packets.ErrPacketTooLarge) && c.tooLong != nil {
			c.tooLong(c)
		}
		return 0, bad
	}
	return n, err
}

// Write queues p.
func (c *conn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return 0, net.ErrClosed
	}
	own, all := len(c.pending)+len(p), c.all.Load()+int64(len(p))
	if own > maxPending || all > maxAllPending && own > fairPending {
		c.closeLocked()
		return 0, errSlowReader
	}
	c.pending = append(c.pending, p...)
	c.all.Add(int64(len(p)))
	c.signal()
	return len(p), nil
}

// Close ends reading at once and writing when what is pending has gone out, at most flushTimeout later.
func (c *conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.closeLocked()
	}
	return nil
}

func (c *conn) closeLocked() {
	c.closed = true
	c.flushBy = time.Now().Add(flushTimeout)
	_ = c.Conn.SetReadDeadline(time.Unix(1, 0)) // ends the Read under way
	_ = c.Conn.SetWriteDeadline(c.flushBy)
	c.signal()
}

func (c *conn) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// writeLoop writes what is pending until the connection is closed or broken.
func (c *conn) writeLoop() {
	defer close(c.written)
	defer func() { _ = c.Conn.Close() }()
	var spare []byte
	for {
		buf, closed := c.take(spare)
		err := c.writeOut(buf)
		c.all.Add(-int64(len(buf)))
		if err != nil {
			c.abandon()
			return
		}
		if spare = buf[:0]; cap(spare) > writeChunk {
			spare = nil // an idle client keeps no large buffer
		}
		if len(buf) > 0 {
			continue
		}
		if closed {
			return
		}
		<-c.wake
	}
}

func (c *conn) take(spare []byte) (buf []byte, closed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	buf, c.pending = c.pending, spare
	return buf, c.closed
}

func (c *conn) writeOut(buf []byte) error {
	for len(buf) > 0 {
		c.mu.Lock()
		by := c.flushBy
		if !c.closed {
			by = time.Now().Add(writeTimeout)
		}
		_ = c.Conn.SetWriteDeadline(by)
		c.mu.Unlock()
		n, err := c.Conn.Write(buf[:min(len(buf), writeChunk)])
		if err != nil {
			return err
		}
		buf = buf[n:]
	}
	return nil
}

// abandon drops what is pending on a broken connection.
func (c *conn) abandon() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.closeLocked()
	}
	c.all.Add(-int64(len(c.pending)))
	c.pending = nil
}

// SetDeadline sets the deadline for reading; writing has its own.
func (c *conn) SetDeadline(t time.Time) error { return c.SetReadDeadline(t) }

// SetReadDeadline does nothing once the connection is closed: mochi would wake a Read that Close has ended.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	return c.Conn.SetReadDeadline(t)
}

// SetWriteDeadline does nothing: Write never blocks.
func (c *conn) SetWriteDeadline(time.Time) error { return nil }
