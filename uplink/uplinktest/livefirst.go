package uplinktest

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"edgegateway/uplink"
	"edgegateway/wal"
)

// A child with this variable sends new records beside a backlog, of which it makes one at its start.
const liveFirstVariable = "EDGE_UPLINKTEST_LIVE_FIRST"

// RunLiveFirstKills is RunKills with backfill: live_first, which is for order: none: the lives end before, in and after splits of the
// log's cursor. None may be lost; no order is wanted.
func RunLiveFirstKills(t *testing.T, s Suite, mode string, kills int) (doubled int) {
	t.Helper()
	if killed(t, s) {
		return 0
	}
	kills = fromEnvironment("UPLINK_KILLS", kills)
	v, was := killAgain(t, s, mode+" live_first", kills, liveFirstVariable+"=1")
	say("kill %s live_first: kills %d sent %d lost %d doubled %d, %d in a split, splits %d ended %d",
		mode, kills, v.sent, v.lost, v.doubled, was.inSplit, was.splits, was.ends)
	v.mustBe(t, v.doubled)
	if was.splits == 0 || was.ends == 0 {
		t.Errorf("%d splits were seen, and %d ends of one, want some", was.splits, was.ends)
	}
	return v.doubled
}

// lives are what the lives of a gateway had in them.
type lives struct {
	inSplit      int // that ended in a split
	splits, ends int
}

func (l *lives) add(c *child) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cursors > 1 {
		l.inSplit++
	}
	l.splits, l.ends = l.splits+c.changes[0], l.ends+c.changes[1]
}

// inSequence puts what has arrived in any order into that of the log.
func inSequence(stored []Stored) {
	number := func(s Stored) int {
		n, _ := strconv.Atoi(s.ID[strings.LastIndexByte(s.ID, '/')+1:]) // one that is none stands first, and is found there
		return n
	}
	slices.SortStableFunc(stored, func(a, b Stored) int { return cmp.Compare(number(a), number(b)) })
}

// liveFirst is a life of the gateway that is behind at first: where no backlog is left from the one before, it begins with a burst
// that takes the line most of a second.
func liveFirst(ctx context.Context, log *wal.Log, cursor *wal.Cursor, driver uplink.Driver, env uplink.Env, last int) error {
	env.Promise.Order = uplink.OrderNone
	if n, err := strconv.Atoi(os.Getenv(windowVariable)); err == nil {
		d := &mortalDriver{Driver: driver}
		d.left.Store(int64(n))
		driver = d
	}
	d, err := uplink.NewLiveFirst(uplink.LiveFirstConfig{
		Log: log, Cursor: cursor, Split: true, Patience: 50 * time.Millisecond,
		Runner: uplink.RunnerConfig{
			Driver: driver, Env: env, Timing: timing,
			Limiter: uplink.NewLimiter(uplink.LimiterConfig{Policy: uplink.Policy{RecordsPerSecond: 4000}}),
		},
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	go func() { // ends with this life
		for was := 0; ctx.Err() == nil; time.Sleep(time.Millisecond) {
			if n := len(log.Cursors()); n != was {
				was = n
				fmt.Printf("cursors %d\n", n)
			}
		}
	}()
	burst := 3000
	if lag, _ := d.Lag(); lag.Records > 500 {
		burst = 8
	}
	if last, err = produce(ctx, log, last, burst, 10*time.Millisecond); err != nil {
		return err
	}
	if err := settle(func() uint64 {
		lag, _ := d.Lag()
		return lag.Records + uint64(len(log.Cursors())-1) // and one cursor has to be left
	}); err != nil {
		return fmt.Errorf("%w: %+v, cursors %+v", err, d.Status(), log.Cursors())
	}
	cancel()
	if err := <-ended; err != nil {
		return err
	}
	fmt.Printf("settled %d\n", last)
	return log.Close()
}

// mortalDriver ends the process instead of passing on what was confirmed.
type mortalDriver struct {
	uplink.Driver

	left atomic.Int64
}

// Open implements uplink.Driver.
func (d *mortalDriver) Open(ctx context.Context, env uplink.Env) (uplink.Session, error) {
	s, err := d.Driver.Open(ctx, env)
	if err != nil {
		return nil, err
	}
	return &mortalSession{s, d}, nil
}

type mortalSession struct {
	uplink.Session

	d *mortalDriver
}

// Send implements uplink.Session.
func (s *mortalSession) Send(ctx context.Context, recs []uplink.Record, report func(uint64, uplink.Outcome)) error {
	return s.Session.Send(ctx, recs, func(seq uint64, o uplink.Outcome) {
		if o.Verdict == uplink.Ack && s.d.left.Add(-1) <= 0 {
			die()
		}
		report(seq, o)
	})
}
