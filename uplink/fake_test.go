package uplink_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"edgegateway/pipeline"
	"edgegateway/uplink"
	"edgegateway/uplink/uplinktest"
)

// far is a driver whose sessions do as the test says. Each call of Send is noted.
type far struct {
	open func(session int) error // nil: always succeeds
	send func(session int, recs []uplink.Record, report func(uint64, uplink.Outcome)) error

	mu       sync.Mutex // guards the fields below
	sessions int
	closed   int
	opened   []time.Time
	sent     [][]uint64 // sequences of each Send
}

func (f *far) Open(context.Context, uplink.Env) (uplink.Session, error) {
	f.mu.Lock()
	f.sessions++
	n := f.sessions
	f.opened = append(f.opened, time.Now())
	f.mu.Unlock()
	if f.open != nil {
		if err := f.open(n); err != nil {
			return nil, err
		}
	}
	return &farSession{f, n}, nil
}

type farSession struct {
	f *far
	n int
}

func (s *farSession) Send(_ context.Context, recs []uplink.Record, report func(uint64, uplink.Outcome)) error {
	s.f.mu.Lock()
	s.f.sent = append(s.f.sent, seqs(recs))
	s.f.mu.Unlock()
	return s.f.send(s.n, recs, report)
}

func (s *farSession) Close() {
	s.f.mu.Lock()
	s.f.closed++
	s.f.mu.Unlock()
}

func (f *far) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sessions
}

// times returns when each session was opened.
func (f *far) times() []time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.opened)
}

func seqs(recs []uplink.Record) []uint64 {
	out := make([]uint64, len(recs))
	for i := range recs {
		out[i] = recs[i].ID.Seq
	}
	return out
}

// line is a runner over a log of n records and what it writes to the gateway's log.
type line struct {
	*uplink.Runner
	log   *uplinktest.Log
	lines lockedBuffer
	stop  func() time.Duration
}

// lockedBuffer is a bytes.Buffer that several goroutines may use.
type lockedBuffer struct {
	mu  sync.Mutex // guards buf
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

// text returns what the runner wrote to the gateway's log.
func (l *line) text() string {
	l.lines.mu.Lock()
	defer l.lines.mu.Unlock()
	return l.lines.buf.String()
}

// sleep lets time pass and all that follows from it happen.
func sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

var sample = pipeline.Message{Topic: "t", Value: pipeline.Int(1)}

// run starts a runner in the bubble of t.
func run(t *testing.T, driver uplink.Driver, n int, bounds ...int) *line {
	return runWith(t, driver, n, func(cfg *uplink.RunnerConfig) {
		if len(bounds) == 2 {
			cfg.MaxRecords, cfg.MaxBytes = bounds[0], bounds[1]
		}
	})
}

// runWith is run with other settings.
func runWith(t *testing.T, driver uplink.Driver, n int, set func(*uplink.RunnerConfig)) *line {
	l := &line{log: uplinktest.NewLog()}
	l.append(n)
	cfg := uplink.RunnerConfig{Driver: driver, Cursor: l.log, Env: uplink.Env{
		Gateway: "gw1", Stream: "line", Epoch: 3, Uplink: "far", Driver: "faked", Log: slog.New(slog.NewTextHandler(&l.lines, nil)),
	}}
	set(&cfg)
	l.Runner = uplink.New(cfg)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	l.stop = sync.OnceValue(func() time.Duration {
		begun := time.Now()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v, want nil", err)
		}
		return time.Since(begun)
	})
	return l
}

// check stops the runner and wants n settled records and no mistakes with the log.
func (l *line) check(t *testing.T, n int) {
	t.Helper()
	synctest.Wait()
	l.stop()
	if got := l.log.Settled(); got != n {
		t.Errorf("%d records are settled, want %d", got, n)
	}
	for _, m := range l.log.Mistakes() {
		t.Error(m)
	}
}

func (l *line) append(n int) {
	for range n {
		l.log.Append(sample)
	}
}

func ackAll(_ int, recs []uplink.Record, report func(uint64, uplink.Outcome)) error {
	for i := range recs {
		report(recs[i].ID.Seq, uplink.Outcome{Verdict: uplink.Ack})
	}
	return nil
}

func silent(int, []uplink.Record, func(uint64, uplink.Outcome)) error { return nil }

var errFar = errors.New("the far side says no")

func textLog(b *lockedBuffer) *slog.Logger { return slog.New(slog.NewTextHandler(b, nil)) }

// live is one life of a gateway: it begins, so many records come, and five minutes later it ends. It returns how the runner did by then.
func live(t *testing.T, cfg uplink.RunnerConfig, log *uplinktest.Log, late int) uplink.Status {
	t.Helper()
	cfg.Cursor = log
	r := uplink.New(cfg)
	for range late {
		log.Append(sample)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := r.Run(ctx); err != nil {
			t.Errorf("Run = %v", err)
		}
	})
	sleep(5 * time.Minute)
	defer running.Wait()
	defer cancel()
	return r.Status()
}
