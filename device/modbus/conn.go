package modbus

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/simonvetter/modbus"
)

// conn is one connection to the server, with the library's client at its near end:
//
//	owner ─▶ library's client ─▶ loopback ─▶ relay ─▶ network ─▶ server
//
// The library dials by itself, for up to 5 s, without a context, and its Close waits for the request in flight. With the
// relay between, a dial ends at its timeout or with its context, ending the relay ends a request at once, and bytes that
// nobody has asked for are seen for what they are. It costs two loopback segments a request. A local process that
// connects to the relay's port in the instant that it is open gains nothing: it could connect to the server as well.
type conn struct {
	client *modbus.ModbusClient
	server net.Conn // to the server
	inner  net.Conn // the relay's end of the loopback connection
	notes  *libraryNotes
	proven bool // has answered a request; the owner's

	asking   atomic.Bool  // a request is in flight
	received atomic.Int64 // bytes from the server since the request in flight began

	end   sync.Once
	ended chan struct{} // closed when the relay has ended
	cause error         // why; set before ended is closed
	wg    sync.WaitGroup
}

// errStray ends a connection on which bytes came that belong to no request.
var errStray = errors.New("server sent bytes that were not asked for")

// dial connects to the server within timeout, and waits for delay before the connection is used.
func dial(ctx context.Context, address string, timeout, delay time.Duration) (*conn, error) {
	dialer := net.Dialer{Timeout: timeout}
	server, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	c := &conn{server: server, notes: &libraryNotes{}, ended: make(chan struct{})}
	if err := c.attach(ctx, timeout); err != nil {
		return nil, errors.Join(err, server.Close())
	}
	c.wg.Go(func() { c.stop(pump(c.inner, c.server, c.count)) })
	c.wg.Go(func() { c.stop(pump(c.server, c.inner, nil)) })
	c.wg.Go(func() {
		select {
		case <-ctx.Done():
			c.stop(ctx.Err())
		case <-c.ended:
		}
	})
	select {
	case <-c.ended:
	case <-time.After(delay):
	}
	return c, nil
}

// attach connects the library's client to the relay over loopback.
func (c *conn) attach(ctx context.Context, timeout time.Duration) error {
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("open loopback port for the relay: %w", err)
	}
	defer func() { _ = listener.Close() }() // the one connection it is for stands by then, or is not wanted
	c.client, err = modbus.NewClient(&modbus.ClientConfiguration{
		URL:     "tcp://" + listener.Addr().String(),
		Timeout: timeout,
		Logger:  slog.NewLogLogger(c.notes, slog.LevelWarn),
	})
	if err != nil {
		return err
	}
	// The kernel completes the connection before it is accepted, so this does not wait.
	if err := c.client.Open(); err != nil {
		return fmt.Errorf("connect to the relay over loopback: %w", err)
	}
	if c.inner, err = listener.Accept(); err != nil {
		return errors.Join(err, c.client.Close())
	}
	return nil
}

// pump copies from src to dst until one of them ends, and returns why. see, if any, is told of what came.
func pump(dst io.Writer, src io.Reader, see func(n int) error) error {
	buf := make([]byte, 300) // a frame has at most 260 bytes
	for {
		n, err := src.Read(buf)
		if n > 0 && see != nil {
			if err := see(n); err != nil {
				return err
			}
		}
		if n > 0 {
			if _, err := dst.Write(buf[:n]); err != nil {
				return err
			}
		}
		if err != nil {
			return err
		}
	}
}

func (c *conn) count(n int) error {
	if !c.asking.Load() {
		return errStray
	}
	c.received.Add(int64(n))
	return nil
}

// stop ends the relay; the first cause counts.
func (c *conn) stop(cause error) {
	c.end.Do(func() {
		c.cause = cause
		close(c.ended)       // first, so that a request that breaks finds the cause
		_ = c.server.Close() // nothing is left to be written
		_ = c.inner.Close()
	})
}

// close ends the connection and all that belongs to it.
func (c *conn) close() {
	c.stop(net.ErrClosed)
	_ = c.client.Close() // the request in flight has ended with the relay, so this does not wait
	c.wg.Wait()
}

// over reports whether the connection has ended.
func (c *conn) over() bool {
	select {
	case <-c.ended:
		return true
	default:
		return false
	}
}

// read sends one request and returns the bytes of its reply: two for each register, or one for each bit.
func (c *conn) read(number uint8, b *block) ([]byte, error) {
	c.notes.take()
	c.received.Store(0)
	c.asking.Store(true)
	reply, wire, err := c.request(number, b)
	c.asking.Store(false)
	answered := err == nil || exceptionText(err) != ""
	switch {
	case answered && c.received.Load() != int64(wire):
		// The reply is the one to this request, but more came with it. What follows would be read out of step.
		c.stop(errStray)
	case !answered && isHangUp(err) && c.over():
		err = c.cause // what the relay saw, and not that the relay has ended
	}
	return reply, err
}

// replyOverhead is the frame of a reply: header of 7 bytes, function code, and byte count or exception code.
const replyOverhead = 9

// request returns the reply's bytes and the length that its frame has on the wire.
func (c *conn) request(number uint8, b *block) (reply []byte, wire int, err error) {
	if err := c.client.SetUnitId(number); err != nil {
		return nil, 0, err
	}
	if b.table.isBits() {
		return c.requestBits(b)
	}
	kind := modbus.HOLDING_REGISTER
	if b.table == input {
		kind = modbus.INPUT_REGISTER
	}
	reply, err = c.client.ReadRawBytes(uint16(b.addr), uint16(2*b.count), kind)
	return reply, replyOverhead + len(reply), err
}

func (c *conn) requestBits(b *block) (reply []byte, wire int, err error) {
	read := c.client.ReadCoils
	if b.table == discrete {
		read = c.client.ReadDiscreteInputs
	}
	bits, err := read(uint16(b.addr), uint16(b.count))
	reply = make([]byte, len(bits))
	for i, bit := range bits {
		if bit {
			reply[i] = 1
		}
	}
	return reply, replyOverhead + (len(bits)+7)/8, err
}
