package uplink

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"edgegateway/wal"
)

// LiveFirst carries one stream to one uplink, as a Runner does, and has new records go out beside a backlog. Where the sending
// is behind although it works, the log's cursor is split: the Runner that there is goes on with the backlog up to that record,
// and a second one begins behind it. When the first one is through, the second one takes its name and place in the log, and is
// the only one again.
//
//	… backlog … S │ S+1 … new records …        the second cursor's name says S, so a crash leaves either both or one
//	first ──────▶ │ second ─────────▶
//
// Each record belongs to one of the two at any time, so nothing is lost, and doubled only what a crash or a lost reply leaves
// in doubt with either.
type LiveFirst struct {
	cfg      RunnerConfig
	log      *wal.Log
	say      *slog.Logger
	split    bool
	patience time.Duration
	reach    uint64 // up to where the far side can have had the log when this life began

	// Used by Run only.
	want    uint64    // the newest record when all before had its outcome
	at      time.Time // when that was
	said    string    // the last warning
	through bool      // the first one is, and the second one has not its place yet

	mu            sync.Mutex // guards the fields below
	first, second *carried   // second is nil without a split
	after         uint64     // where the second one begins
	paused        bool
	acked         uint64 // by Runners that are through
	dropped       uint64
}

// carried is a Runner with its cursor.
type carried struct {
	*Runner
	cursor *wal.Cursor
}

// LiveFirstConfig is what a LiveFirst is made of.
type LiveFirstConfig struct {
	Runner RunnerConfig // its Cursor is not used
	Log    *wal.Log
	Cursor *wal.Cursor // of the uplink and the stream that Runner.Env names, opened
	// Split says that the cursor may be split. Otherwise only a split that the log has is brought to its end, in order.
	Split bool
	// Patience is how long the sending may be behind before the cursor is split; zero means 5 s.
	Patience time.Duration
}

// SplitOf reports whether the log has a split of the cursor of an uplink on a stream.
func SplitOf(log *wal.Log, uplink, stream string) bool {
	_, ok := splitOf(log, uplink, stream)
	return ok
}

func splitOf(log *wal.Log, uplink, stream string) (after uint64, ok bool) {
	for _, c := range log.Cursors() {
		if owner, after, second := wal.ParseSplit(c.Uplink); second && owner == uplink && c.Stream == stream {
			return after, true
		}
	}
	return 0, false
}

// NewLiveFirst returns one that has not begun: Run does. It goes on with a split that the log has.
func NewLiveFirst(cfg LiveFirstConfig) (*LiveFirst, error) {
	d := &LiveFirst{
		cfg: cfg.Runner, log: cfg.Log, say: cfg.Runner.Env.Log, split: cfg.Split, patience: cfg.Patience, paused: cfg.Runner.Paused,
	}
	if d.patience <= 0 {
		d.patience = 5 * time.Second
	}
	if d.say == nil {
		d.say = slog.New(slog.DiscardHandler)
	}
	first := d.config(cfg.Cursor, d.say)
	d.first = &carried{New(first), cfg.Cursor}
	d.reach = d.first.reach
	after, ok := splitOf(d.log, d.cfg.Env.Uplink, d.cfg.Env.Stream)
	if !ok {
		return d, nil
	}
	if err := d.open(after); err != nil {
		return nil, err
	}
	// After a salvage that did not know where the cursors stood both begin at the oldest record.
	if seq, tail := d.second.cursor.Position(); seq < after {
		if err := d.second.cursor.Pass(min(after, tail)); err != nil {
			return nil, err
		}
	}
	cfg.Cursor.Until(after)
	d.second.marked, d.second.noted = d.first.marked, d.first.noted // whichever is connected first takes it away
	return d, nil
}

func (d *LiveFirst) config(cursor *wal.Cursor, log *slog.Logger) RunnerConfig {
	cfg := d.cfg
	cfg.Cursor, cfg.Env.Log, cfg.Paused = cursor, log, d.paused
	return cfg
}

// runner makes the second Runner of this life.
func (d *LiveFirst) runner(cursor *wal.Cursor, log *slog.Logger) *carried {
	r := newRunner(d.config(cursor, log))
	r.reach, r.begun = d.reach, true
	return &carried{r, cursor}
}

// open opens the second cursor, which is durable then.
func (d *LiveFirst) open(after uint64) error {
	cursor, err := d.log.Cursor(wal.SplitName(d.cfg.Env.Uplink, after), d.cfg.Env.Stream, wal.After(after))
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.second, d.after = d.runner(cursor, d.say.With("after", after)), after
	d.first.backlog.Store(true)
	return nil
}

// ended is what Run of a Runner has returned.
type ended struct {
	c   *carried
	err error
}

// Run sends until ctx ends, and returns what a Runner's Run does.
func (d *LiveFirst) Run(ctx context.Context) error {
	var all sync.WaitGroup
	defer all.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ends := make(chan ended, 2) // as many as run at a time
	start := func(c *carried) { all.Go(func() { ends <- ended{c, c.Run(ctx)} }) }
	first, second := d.both()
	start(first)
	if second != nil && d.split {
		start(second)
	}
	tick := time.NewTicker(d.patience / 5)
	defer tick.Stop()
	for {
		select {
		case e := <-ends:
			first, _ = d.both()
			if e.c != first || !errors.Is(e.err, wal.ErrEnd) {
				return e.err
			}
			d.through = true
		case now := <-tick.C:
			if d.behind(now) {
				if c := d.begin(); c != nil {
					start(c)
				}
			}
		}
		if d.through {
			if err := d.succeed(); err != nil {
				return err
			}
			if c, _ := d.both(); !d.through && !d.split {
				start(c)
			}
		}
	}
}

func (d *LiveFirst) both() (first, second *carried) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.first, d.second
}

// behind tells whether the sending works and has not come to what was the newest record a while ago.
func (d *LiveFirst) behind(now time.Time) bool {
	first, second := d.both()
	if second != nil || !d.split {
		return false
	}
	seq, tail := first.cursor.Position()
	if seq >= d.want {
		d.want, d.at = tail, now
	}
	st := first.Status()
	return st.State == Sending && now.Sub(st.Since) >= d.patience/5 && now.Sub(d.at) >= d.patience
}

// begin splits the cursor and returns what carries the new records; nil where the log could not do it now.
func (d *LiveFirst) begin() *carried {
	first, _ := d.both()
	after := first.cursor.Split()
	if err := d.open(after); err != nil {
		first.cursor.Until(0)
		d.warn("new records cannot go beside the backlog now", err)
		return nil
	}
	seq, _ := first.cursor.Position()
	d.say.Info("new records go out beside the backlog", "backlog", after-seq, "after", after)
	_, second := d.both()
	return second
}

// succeed gives the second one the place of the first one, which is through. A log that cannot do it now is asked again.
func (d *LiveFirst) succeed() error {
	first, second := d.both()
	first.cursor.Close()
	if err := d.log.Succeed(d.cfg.Env.Uplink, d.cfg.Env.Stream, d.after); err != nil {
		if errors.Is(err, wal.ErrStopped) || errors.Is(err, wal.ErrClosed) {
			return fmt.Errorf("end the backlog: %w", err)
		}
		d.warn("the backlog is through, but its place in the log cannot be given up now", err)
		return nil
	}
	d.through = false
	d.want, d.at = 0, time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	st := first.Status()
	d.acked, d.dropped = d.acked+st.Acked, d.dropped+st.Dropped
	d.first, d.second, d.after = second, nil, 0
	d.say.Info("the backlog is through")
	return nil
}

// warn says once what is tried again and again.
func (d *LiveFirst) warn(message string, err error) {
	if text := message + err.Error(); text != d.said {
		d.said = text
		d.say.Warn(message, "err", err) //nolint:sloglint // each caller gives a constant
	}
}

// Pause is that of the Runners.
func (d *LiveFirst) Pause() { d.each(true, (*Runner).Pause) }

// Resume is that of the Runners.
func (d *LiveFirst) Resume() { d.each(false, (*Runner).Resume) }

// Reconnect is that of the Runners.
func (d *LiveFirst) Reconnect() {
	d.mu.Lock()
	paused := d.paused
	d.mu.Unlock()
	d.each(paused, (*Runner).Reconnect)
}

func (d *LiveFirst) each(paused bool, do func(*Runner)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.paused = paused
	do(d.first.Runner)
	if d.second != nil {
		do(d.second.Runner)
	}
}

// Passed is that of the first Runner; with a far cursor there is no second one.
func (d *LiveFirst) Passed(seq uint64) bool {
	first, _ := d.both()
	return first.Passed(seq)
}

// Status is that of both Runners together; the one that does worse says the state.
func (d *LiveFirst) Status() Status {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.first.Status()
	if d.second != nil && d.split {
		other := d.second.Status()
		s = together(s, other)
		if d.first.Status().State == Stopped { // it is through
			s.State, s.Since = other.State, other.Since
		}
	}
	s.Acked, s.Dropped = s.Acked+d.acked, s.Dropped+d.dropped
	return s
}

// together joins the pictures of the two, the backlog's first.
func together(s, live Status) Status {
	worst := map[State]int{Paused: 0, Sending: 1, Connecting: 2, Waiting: 3, Stopped: 4}
	if worst[live.State] > worst[s.State] || live.State == s.State && live.Error != "" {
		s.State, s.Since, s.NextTry = live.State, live.Since, live.NextTry
	}
	if live.Error != "" {
		s.Error, s.Config = live.Error, s.Config || live.Config
	}
	if len(live.Choices) > 0 {
		s.Choices = live.Choices
	}
	if live.LastAck.After(s.LastAck) {
		s.LastAck = live.LastAck
	}
	if live.Limit != "" {
		s.Limit = live.Limit
	}
	if live.HeldFor != "" {
		s.HeldFor = live.HeldFor
	}
	s.Acked, s.Dropped, s.InFlight, s.Held = s.Acked+live.Acked, s.Dropped+live.Dropped, s.InFlight+live.InFlight, s.Held+live.Held
	s.Attempts = max(s.Attempts, live.Attempts)
	if s.InDoubt.IsZero() || !live.InDoubt.IsZero() && live.InDoubt.Before(s.InDoubt) {
		s.InDoubt = live.InDoubt
	}
	return s
}

// Lag returns what is still to be sent by both, and how much of it is the backlog beside which new records go; 0 without a split.
func (d *LiveFirst) Lag() (all wal.Lag, backlog uint64) {
	first, second := d.both()
	all = first.cursor.Lag()
	if second == nil {
		return all, 0
	}
	backlog = all.Records
	live := second.cursor.Lag()
	all.Records, all.Bytes = all.Records+live.Records, all.Bytes+live.Bytes
	if all.Oldest.IsZero() {
		all.Oldest = live.Oldest
	}
	return all, backlog
}
