package modbus_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"edgegateway/device"
	"edgegateway/device/modbus"
	"edgegateway/pipeline"
)

// request is one request as a slave sees it.
type request struct {
	n           int // over all connections, from 1
	onConn      int // on this connection, from 1
	txn         uint16
	unit, fc    byte
	addr, count int
}

// frame returns a reply with the given body behind the header.
func (r request) frame(body ...byte) []byte {
	f := binary.BigEndian.AppendUint16(nil, r.txn)
	f = append(f, 0, 0, 0, byte(len(body)+1), r.unit)
	return append(f, body...)
}

// good returns the right reply of a slave whose registers hold their own address, and whose bits are set where it is odd.
func (r request) good() []byte {
	if r.fc <= 2 {
		body := make([]byte, 2+(r.count+7)/8)
		body[0], body[1] = r.fc, byte(len(body)-2)
		for i := range r.count {
			body[2+i/8] |= byte((r.addr+i)&1) << (i % 8)
		}
		return r.frame(body...)
	}
	body := []byte{r.fc, byte(2 * r.count)}
	for i := range r.count {
		body = binary.BigEndian.AppendUint16(body, uint16(r.addr+i))
	}
	return r.frame(body...)
}

// wrong returns a reply of the right form whose registers are all 0xdead.
func (r request) wrong() []byte {
	f := r.good()
	for i := 9; i+1 < len(f); i += 2 {
		f[i], f[i+1] = 0xde, 0xad
	}
	return f
}

func (r request) exception(code byte) []byte { return r.frame(r.fc|0x80, code) }

// slave is a server that a test makes misbehave.
type slave struct {
	Addr     string
	requests atomic.Int64
	conns    atomic.Int64
	wg       sync.WaitGroup
}

// answer serves one request and reports whether the connection goes on. It runs on the connection's goroutine.
type answer func(c net.Conn, r request) bool

func say(c net.Conn, b []byte) bool {
	_, err := c.Write(b)
	return err == nil
}

func behave(c net.Conn, r request) bool { return say(c, r.good()) }

// serve starts a slave; greet, if any, is called for each connection.
func serve(t testing.TB, a answer, greet ...func(net.Conn)) *slave {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &slave{Addr: l.Addr().String()}
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	s.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.conns.Add(1)
			mu.Lock()
			open[c] = true
			mu.Unlock()
			s.wg.Go(func() {
				defer c.Close()
				for _, g := range greet {
					g(c)
				}
				s.talk(c, a)
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for c := range open {
			c.Close()
		}
		mu.Unlock()
		s.wg.Wait()
	})
	return s
}

func (s *slave) talk(c net.Conn, a answer) {
	head := make([]byte, 12)
	for n := 1; ; n++ {
		if _, err := io.ReadFull(c, head); err != nil {
			return
		}
		r := request{
			n: int(s.requests.Add(1)), onConn: n, txn: binary.BigEndian.Uint16(head), unit: head[6], fc: head[7],
			addr: int(binary.BigEndian.Uint16(head[8:])), count: int(binary.BigEndian.Uint16(head[10:])),
		}
		if !a(c, r) {
			return
		}
	}
}

// sink keeps what the device puts.
type sink struct {
	mu       sync.Mutex
	messages []pipeline.Message
	batches  int
	put      func(ctx context.Context) error // its error is that of Put
	done     error                           // goes to the callback
}

func (s *sink) Put(ctx context.Context, b pipeline.Batch, done func(error)) error {
	s.mu.Lock()
	put, outcome := s.put, s.done
	s.mu.Unlock()
	if put != nil {
		if err := put(ctx); err != nil {
			return err
		}
	}
	s.mu.Lock()
	s.messages = append(s.messages, b.Messages...)
	s.batches++
	s.mu.Unlock()
	done(outcome)
	return nil
}

func (s *sink) Remembered(string) []string { return nil }

// on returns the messages of a topic so far.
func (s *sink) on(topic string) (all, good, bad []pipeline.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.messages {
		switch {
		case topic != "" && m.Topic != topic:
			continue
		case m.Quality == pipeline.Good:
			good = append(good, m)
		default:
			bad = append(bad, m)
		}
		all = append(all, m)
	}
	return all, good, bad
}

// polling is a device that runs.
type polling struct {
	device.Device
	sink *sink
	stop func()
}

// start runs a device. Its end is part of each test: Run must return within 1 s of the context's end.
func start(t testing.TB, c modbus.Config) *polling {
	t.Helper()
	return startInto(t, c, &sink{}, nil)
}

func startInto(t testing.TB, c modbus.Config, s *sink, prepare func(device.Device)) *polling {
	t.Helper()
	d, err := c.Open(device.Env{Name: "boiler", Log: slog.New(slog.DiscardHandler), Sink: s})
	if err != nil {
		t.Fatal(err)
	}
	if prepare != nil {
		prepare(d)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	p := &polling{Device: d, sink: s}
	p.stop = sync.OnceFunc(func() {
		cancel()
		begin := time.Now()
		select {
		case err := <-ended:
			if err != nil && !errors.Is(err, context.Canceled) {
				t.Errorf("Run = %v, want nil", err)
			}
		case <-time.After(time.Second):
			t.Errorf("Run has not returned 1 s after its context ended")
			<-ended
			t.Logf("it returned after %v", time.Since(begin))
		}
	})
	t.Cleanup(p.stop)
	return p
}

// eventually waits until ok, at most 20 s: bounded, and long enough for a machine that does other work as well.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: did not happen within 20 s", what)
		}
	}
}

// checkValues checks the invariant of every test with these slaves: a good register is its own address, a good bit tells
// whether its address is odd; a bad one has a reason and no value.
func checkValues(t testing.TB, s *sink, points map[string]int) {
	t.Helper()
	all, _, _ := s.on("")
	wrong := 0
	for _, m := range all {
		addr, known := points[m.Topic]
		n, isNumber := m.Value.Number()
		switch {
		case !known:
			t.Errorf("message of %q, which is no point", m.Topic)
		case m.Quality == pipeline.Bad && (m.Reason == "" || m.Value.Kind() != pipeline.KindNone):
			t.Errorf("bad message of %s has value %q and reason %q", m.Topic, m.Value.Text(), m.Reason)
		case m.Quality == pipeline.Bad:
		case m.Value.Kind() == pipeline.KindBool && isNumber && int(n) == addr&1:
		case m.Value.Kind() != pipeline.KindBool && isNumber && int(n) == addr:
		default:
			wrong++
		}
	}
	if wrong > 0 {
		t.Errorf("%d of %d messages are good and wrong", wrong, len(all))
	}
}

// addresses returns what checkValues wants of units whose points are one register or bit each.
func addresses(c modbus.Config) map[string]int {
	m := map[string]int{}
	for _, u := range c.Units {
		for _, p := range u.Points {
			m["boiler/"+u.Name+"/"+p.Name] = p.Address
		}
	}
	return m
}
