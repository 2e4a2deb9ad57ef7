package mqtt

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"edgegateway/device"
	"edgegateway/pipeline"
)

// exhausted is a listener whose first accepts fail as they do without file descriptors.
type exhausted struct {
	net.Listener
	left atomic.Int64
}

func (l *exhausted) Accept() (net.Conn, error) {
	if l.left.Add(-1) >= 0 {
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: syscall.EMFILE}
	}
	return l.Listener.Accept()
}

type noSink struct{}

func (noSink) Put(context.Context, pipeline.Batch, func(error)) error { return pipeline.ErrStopped }
func (noSink) Remembered(string) []string                             { return nil }

// The listener is made here, inside the package, because running out of file descriptors would take the test along.
func TestT29AcceptIsTriedAgain(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	failing := &exhausted{Listener: ln}
	failing.left.Store(3)
	c := Config{Anonymous: &Access{}, MaxPacket: 1 << 10, MaxConnections: 5, ReceiveMaximum: 10, ConnectTimeout: 5 * time.Second}
	b, err := newBroker(c, device.Env{Name: "local", Log: slog.New(slog.DiscardHandler), Sink: noSink{}}, failing)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- b.Run(ctx) }()
	client, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.Write([]byte("\x10\x0d\x00\x04MQTT\x04\x02\x00\x00\x00\x01a")); err != nil {
		t.Fatal(err)
	}
	_ = client.SetReadDeadline(time.Now().Add(10 * time.Second))
	connack := make([]byte, 4)
	if _, err := io.ReadFull(client, connack); err != nil || connack[0] != 0x20 || connack[3] != 0 {
		t.Errorf("CONNACK % x, %v", connack, err)
	}
	cancel()
	if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// Clients come and go while the broker says goodbye: what locks mochi's table of clients twice hangs here at once.
func TestGoodbyeWhileClientsComeAndGo(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	c := Config{Anonymous: &Access{}, MaxPacket: 1 << 10, MaxConnections: 5, ReceiveMaximum: 10, ConnectTimeout: 5 * time.Second}
	b, err := newBroker(c, device.Env{Name: "local", Log: slog.New(slog.DiscardHandler), Sink: noSink{}}, ln)
	if err != nil {
		t.Fatal(err)
	}
	var churn sync.WaitGroup
	stop := make(chan struct{})
	for _, id := range []string{"a", "b"} {
		churn.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					b.server.Clients.Add(b.server.NewClient(nil, b.guard.ID(), id, true))
					b.server.Clients.Delete(id)
				}
			}
		})
	}
	said := make(chan struct{})
	go func() {
		defer close(said)
		for range 20_000 {
			b.guard.goodbye()
		}
	}()
	select {
	case <-said:
		close(stop)
		churn.Wait()
	case <-time.After(time.Minute):
		t.Fatal("the broker hangs in saying goodbye")
	}
}
