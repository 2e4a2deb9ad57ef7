package uplink

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"edgegateway/wal"
)

// Cursor is what a Runner needs of its place in the log. *wal.Cursor implements it.
type Cursor interface {
	// Read returns the next records, at least one, and waits for them until ctx ends.
	Read(ctx context.Context, maxRecords, maxBytes int) ([]wal.Record, error)
	// Done and Refuse give records their final outcome: confirmed, or refused for good. Done keeps nothing of the slice, and needs no more
	// of a record than its Seq.
	Done(recs ...wal.Record)
	Refuse(r wal.Record, why wal.Refusal)
	// Rewind makes Read begin again at the first record without an outcome.
	Rewind()
}

// reader is a Cursor that reads into room it is given. *wal.Cursor implements it.
type reader interface {
	ReadInto(ctx context.Context, room []wal.Record, maxRecords, maxBytes int) ([]wal.Record, error)
}

// Timing holds the pauses and bounds of a Runner. A zero field means its default.
type Timing struct {
	RetryMin  time.Duration // ceiling of the first pause after a failure; 1 s. It doubles with each failure
	RetryMax  time.Duration // ceiling of all pauses; 5 min
	ConfigMin time.Duration // shortest pause after an error that a person must mend; 10 s
	ConfigMax time.Duration // longest such pause; 1 min, so that the mended thing is noticed soon
	Stall     time.Duration // a session with records in flight and no outcome for so long is given up; 30 s
	Open      time.Duration // bound of Driver.Open; 1 min, for a line over two satellites takes its time
	Drain     time.Duration // how long a stop waits for outcomes of records in flight; 1 s
	Fenced    time.Duration // first pause after another instance has taken the session's place; 10 times ConfigMax. It doubles
	Watch     time.Duration // how often an idle session that is a Watcher is asked; 3 s
}

func (t Timing) withDefaults() Timing {
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&t.RetryMin, time.Second},
		{&t.RetryMax, 5 * time.Minute},
		{&t.ConfigMin, 10 * time.Second},
		{&t.ConfigMax, time.Minute},
		{&t.Stall, 30 * time.Second},
		{&t.Open, time.Minute},
		{&t.Drain, time.Second},
		{&t.Watch, 3 * time.Second},
	} {
		if *d.field <= 0 {
			*d.field = d.value
		}
	}
	if t.Fenced <= 0 {
		t.Fenced = 10 * t.ConfigMax
	}
	return t
}

// RunnerConfig is what a Runner is made of.
type RunnerConfig struct {
	Driver Driver
	Env    Env
	Cursor Cursor
	// Choice returns what an operator has chosen for a far cursor that does not fit, once, and then nothing. Nil means that
	// nobody is asked.
	Choice func() Choice
	// Mark may be nil; then a restart forgets that the far side was ahead of the log.
	Mark Mark
	// MaxRecords and MaxBytes bound what is in flight: sent, and without an outcome. Zero means 1024 and 1 MiB, or
	// more where the driver is Roomy. A single record may be larger than MaxBytes.
	MaxRecords int
	MaxBytes   int
	Timing     Timing
	// Paused is how it begins; see Pause.
	Paused bool
	// Limiter is shared by all Runners of the uplink; nil for no bounds.
	Limiter *Limiter
	// Policy is what is common to all drivers; the zero value means that of the driver's own config.
	Policy Policy
}

// Runner carries one stream to one uplink. Its methods may be called from any goroutine; Run once.
type Runner struct {
	cfg RunnerConfig
	log *slog.Logger

	renew   chan struct{} // see Reconnect; holds one
	resumed chan struct{} // see Resume; holds one
	backlog atomic.Bool   // new records go beside, and first

	search search          // for a refused record; this and tries are guarded by the flight's mutex
	tries  map[uint64]*try // of records without an outcome
	// reach is up to where the far side can have this log: what it had at the start, and what was sent since. Guarded by the flight's
	// mutex.
	reach    uint64
	believed bool // the operator has said that what the far side takes for repeats are some; guarded likewise
	marked   bool // there is a Mark, or may be; this and the next three are used by Run only
	noted    FarCursor
	begun    bool   // what the log had at the start is noted, or need not be
	unnoted  string // why it could not be
	fenced   int    // how often another instance has taken our place; used by Run only

	mu       sync.Mutex // guards the fields below
	status   Status
	flight   *flight // of the last session
	attempt  uint64  // the record of status.Attempts
	heldSaid string  // the last line about a held record
	said     string  // the last line about the connection, so that an outage of days is one line
	passed   uint64  // see Passed
	asked    bool    // an operator is to choose, and nothing was confirmed since
	paused   bool
	endTurn  context.CancelFunc
}

// New returns a Runner that has not begun: Run does. What the log has now is what the far side may know of it, so New comes before
// the first record of this life.
func New(cfg RunnerConfig) *Runner {
	r := newRunner(cfg)
	if p, ok := cfg.Cursor.(Position); ok {
		_, r.reach = p.Position()
	}
	if cfg.Mark != nil {
		at, found := cfg.Mark.Load()
		if r.marked, r.noted = found, at; found && (at.Epoch == cfg.Env.Epoch || at == FarCursor{}) { // not that of an earlier log
			r.reach = min(r.reach, at.Seq)
		}
	}
	r.begin()
	return r
}

func newRunner(cfg RunnerConfig) *Runner {
	cfg.Timing = cfg.Timing.withDefaults()
	records, bytes := inFlight(cfg.Driver, cfg.Env.Promise)
	if cfg.MaxRecords <= 0 {
		cfg.MaxRecords = records
	}
	if cfg.MaxBytes <= 0 {
		cfg.MaxBytes = bytes
	}
	if cfg.Env.Log == nil {
		cfg.Env.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Env.Claims == nil {
		cfg.Env.Claims = &Claims{}
	}
	if p, ok := cfg.Driver.(HasPolicy); ok && cfg.Policy == (Policy{}) && p.SendingPolicy() != nil {
		cfg.Policy = *p.SendingPolicy()
	}
	r := &Runner{cfg: cfg, log: cfg.Env.Log, tries: map[uint64]*try{}, renew: make(chan struct{}, 1), resumed: make(chan struct{}, 1), paused: cfg.Paused}
	r.cfg.Env.Slowed = r.slowed
	r.status = Status{State: Connecting, Since: time.Now()}
	return r
}

// Run sends until ctx ends, and then returns nil after at most Timing.Drain and one Session.Close. It returns an error
// only where the log itself gives no more records: wal.ErrStopped, wal.ErrClosed, wal.ErrDamaged or wal.ErrEnd, wrapped.
func (r *Runner) Run(ctx context.Context) error {
	failures := 0
	for ctx.Err() == nil {
		turn, over := r.turn(ctx)
		if ctx.Err() != nil {
			over()
			break
		}
		end := r.session(turn)
		paused := turn.Err() != nil
		switch {
		case errors.Is(end.log, wal.ErrEnd):
			over()
			r.enter(Stopped, time.Time{})
			return end.log
		case end.log != nil:
			over()
			err := fmt.Errorf("read the log: %w", end.log)
			r.stopped(err)
			return err
		case paused || end.err == nil: // told to stop, or a session ended to look for a refused record
			over()
			if paused {
				failures = 0
			}
			continue
		}
		if end.acked {
			failures = 0
		}
		failures++
		pause := r.pause(failures, IsConfig(end.err))
		if IsFenced(end.err) {
			pause = r.fencedPause()
		}
		r.failed(end.err, time.Now().Add(pause))
		select {
		case <-turn.Done():
			failures = 0
		case <-time.After(pause):
		case <-r.renew:
		}
		over()
	}
	r.stopped(nil)
	return nil
}

// pause returns how long to wait after so many failures in a row: anything up to a ceiling that doubles ("full jitter"),
// so that a thousand gateways do not come back to a broker in step.
func (r *Runner) pause(failures int, config bool) time.Duration {
	t := r.cfg.Timing
	ceiling := t.RetryMin
	for i := 1; i < failures && ceiling < t.RetryMax; i++ {
		ceiling *= 2
	}
	ceiling = min(ceiling, t.RetryMax)
	d := t.RetryMin/10 + rand.N(ceiling)
	if config {
		d = min(t.ConfigMin+d, max(t.ConfigMin, t.ConfigMax))
	}
	return d
}

// mostFenced bounds the pause after another instance has taken the session's place.
const mostFenced = 24 * time.Hour

// fencedPause returns how long to wait after another instance has taken our place. Where the driver cannot tell that the other
// one is still there, opening a session fences it: so the pauses double and never become short again in this life.
func (r *Runner) fencedPause() time.Duration {
	ceiling := min(r.cfg.Timing.Fenced<<min(r.fenced, 10), mostFenced)
	r.fenced++
	return ceiling + rand.N(ceiling/2+1)
}
