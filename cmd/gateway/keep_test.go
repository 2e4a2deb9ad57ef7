package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"edgegateway/control"
	"edgegateway/control/config"
	"edgegateway/device"
	"edgegateway/pipeline"
	"edgegateway/uplink"
	"edgegateway/wal"
	"edgegateway/webui"
)

// counter is a device that puts numbers, and puts one again until it is acknowledged, as a replayable source does.
type counter struct {
	env    device.Env
	mu     sync.Mutex // guards the fields below
	acked  []string
	denied int
}

func (c *counter) Open(env device.Env) (device.Device, error) { c.env = env; return c, nil }
func (c *counter) Status() device.Status                      { return device.Status{State: device.Up} }

func (c *counter) Run(ctx context.Context) error {
	for n := 0; ctx.Err() == nil; {
		m := pipeline.Message{Time: time.Now(), Source: c.env.Name, Topic: "n", Value: pipeline.Int(int64(n))}
		done := make(chan error, 1)
		err := c.env.Sink.Put(ctx, pipeline.Batch{Messages: []pipeline.Message{m}, Urgent: true}, func(err error) { done <- err })
		if err == nil {
			err = <-done
		}
		c.mu.Lock()
		if err == nil {
			c.acked = append(c.acked, fmt.Sprint(n))
			n++
		} else {
			c.denied++
		}
		c.mu.Unlock()
		if err != nil {
			time.Sleep(5 * time.Millisecond)
		}
	}
	return nil
}

// far is an uplink that confirms everything and remembers it.
type far struct {
	mu  sync.Mutex // guards the fields below
	got map[string]bool
	seq map[uint64]string
}

func (f *far) Open(context.Context, uplink.Env) (uplink.Session, error) { return f, nil }
func (f *far) Close()                                                   {}

func (f *far) Send(_ context.Context, recs []uplink.Record, report func(uint64, uplink.Outcome)) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range recs {
		text := r.Message.Value.Text()
		if old, ok := f.seq[r.ID.Seq]; ok && old != text {
			return fmt.Errorf("record %d was %s and is %s", r.ID.Seq, old, text)
		}
		f.got[text], f.seq[r.ID.Seq] = true, text
		report(r.ID.Seq, uplink.Outcome{Verdict: uplink.Ack})
	}
	return nil
}

// scene is a gateway with one counter and one uplink.
type scene struct {
	g    *gateway
	c    *counter
	f    *far
	logs syncBuffer
}

type syncBuffer struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (s *syncBuffer) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(b)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func newScene(t *testing.T, dir, onDamage string) *scene {
	t.Helper()
	s := &scene{c: &counter{}, f: &far{got: map[string]bool{}, seq: map[uint64]string{}}}
	c := &Config{
		Gateway: Gateway{ID: "test", StateDir: dir}, Page: webui.Config{Listen: "127.0.0.1:0"},
		Lanes:   map[string]Lane{defaultLane: {MaxBytes: 64 << 20, WhenFull: "block", MaxDelay: time.Second, OnDamage: onDamage}},
		Devices: map[string]config.Component{"counter": {Driver: "counter", Settings: s.c}},
		Streams: map[string]Stream{"main": {From: []string{"counter"}, Lane: defaultLane, Uplinks: []string{"far"}, Delivery: "at_least_once"}},
		Uplinks: map[string]config.Component{"far": {Driver: "far", Settings: s.f}},
	}
	g, err := newGateway(c, slog.New(slog.NewTextHandler(&s.logs, nil)))
	if err != nil {
		t.Fatal(err)
	}
	s.g = g
	return s
}

// run runs the gateway until the test, or what it returns, ends it.
func (s *scene) run(t *testing.T) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.g.run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("run: %v", err)
			}
		})
	}
	t.Cleanup(stop)
	return stop
}

func (s *scene) numbers() (acked, denied, got int) {
	s.c.mu.Lock()
	acked, denied = len(s.c.acked), s.c.denied
	s.c.mu.Unlock()
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	return acked, denied, len(s.f.got)
}

// missing returns what of the first n that were acknowledged has not arrived.
func (s *scene) missing(n int) (out []string) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	for _, n := range s.c.acked[:n] {
		if !s.f.got[n] {
			out = append(out, n)
		}
	}
	return out
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for range 6000 {
		if ok() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("not within 30 s: %s", what)
}

// TestStoppedLaneIsOpenedAgainFromTheMedium: an error of the medium ends all acknowledging at once. The lane comes back by
// itself, with the process, its devices and its uplinks; nothing that was acknowledged is lost.
func TestStoppedLaneIsOpenedAgainFromTheMedium(t *testing.T) {
	s := newScene(t, t.TempDir(), "stop")
	lane := s.g.lane(defaultLane)
	var broken atomic.Bool
	var asked atomic.Int64
	lane.fault = func(op string) error {
		if broken.Load() {
			asked.Add(1)
			return &os.PathError{Op: op, Path: "0001.seg", Err: syscall.EIO}
		}
		return nil
	}
	stop := s.run(t)
	for round := range 2 {
		eventually(t, "records flow", func() bool { acked, _, got := s.numbers(); return acked >= 20*(round+1) && got >= 10*(round+1) })
		asked.Store(0)
		broken.Store(true)
		eventually(t, "the lane has stopped", func() bool { log, err := lane.opened(); return log == nil && errors.Is(err, wal.ErrStopped) })
		before, _, _ := s.numbers()
		if err := s.g.ready(); err == nil {
			t.Error("the gateway is ready without its lane")
		}
		status := s.g.gather()
		if l := status.Lanes[0]; l.State != control.LaneStopped || !strings.Contains(l.Error, "input/output error") {
			t.Errorf("the lane's status is %+v", l)
		}
		if u := status.Uplinks[0]; u.State != control.Stopped {
			t.Errorf("the uplink's status is %+v", u)
		}
		if after, denied, _ := s.numbers(); after != before || denied == 0 {
			t.Errorf("%d records were acknowledged after the error, %d refused", after-before, denied)
		}
		broken.Store(false)
		eventually(t, "the lane is open again", func() bool { log, _ := lane.opened(); return log != nil && log.Err() == nil })
	}
	acked, _, _ := s.numbers()
	eventually(t, "records flow again", func() bool { now, _, _ := s.numbers(); return now >= acked+20 })
	arrived := false
	for range 2000 {
		if arrived = len(s.missing(acked)) == 0; arrived {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	if !arrived {
		log, _ := lane.opened()
		t.Fatalf("of %d acknowledged records %v are missing\n%+v\n%s", acked, s.missing(acked), log.Cursors(), s.logs.String())
	}
	stop()
}

// TestOnDamage: a damaged log waits for a person, or is salvaged, as the config says; but not for ever.
func TestOnDamage(t *testing.T) {
	for _, onDamage := range []string{"stop", "salvage"} {
		t.Run(onDamage, func(t *testing.T) {
			dir := t.TempDir()
			s := newScene(t, dir, onDamage)
			stop := s.run(t)
			eventually(t, "records flow", func() bool { acked, _, _ := s.numbers(); return acked >= 30 })
			stop()
			files, err := filepath.Glob(filepath.Join(dir, "lanes", defaultLane, "*.seg"))
			if err != nil || len(files) == 0 {
				t.Fatal(files, err)
			}
			b, err := os.ReadFile(files[0])
			if err != nil {
				t.Fatal(err)
			}
			clear(b[:8192]) // both meta pages
			if err := os.WriteFile(files[0], b, 0o600); err != nil {
				t.Fatal(err)
			}
			again := newScene(t, dir, onDamage)
			lane := again.g.lane(defaultLane)
			again.run(t)
			if onDamage == "stop" {
				eventually(t, "the damage is noticed", func() bool { _, err := lane.opened(); return errors.Is(err, wal.ErrDamaged) })
				if _, err := os.Stat(files[0]); err != nil {
					t.Errorf("the file is not where it was: %v", err)
				}
				return
			}
			eventually(t, "records flow again", func() bool { acked, _, got := again.numbers(); return acked >= 10 && got >= 10 })
			if text := again.logs.String(); !strings.Contains(text, "log was salvaged") {
				t.Errorf("nothing is said of the salvage:\n%s", text)
			}
			if kept, _ := filepath.Glob(filepath.Join(dir, "lanes", defaultLane, "*.bad")); len(kept) != 1 {
				t.Errorf("kept %v", kept)
			}
		})
	}
}
