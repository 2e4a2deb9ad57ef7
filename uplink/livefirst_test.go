package uplink_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"edgegateway/pipeline"
	"edgegateway/uplink"
	"edgegateway/wal"
)

// sink is a far side that takes what comes, and remembers when.
type sink struct {
	down atomic.Bool
	slow atomic.Int64 // nanoseconds a record

	mu   sync.Mutex // guards the fields below
	got  map[uint64]int
	list []uint64
}

func newSink() *sink { return &sink{got: map[uint64]int{}} }

func (s *sink) Open(context.Context, uplink.Env) (uplink.Session, error) {
	if s.down.Load() {
		return nil, errFar
	}
	return sinkSession{s}, nil
}

type sinkSession struct{ s *sink }

func (sinkSession) Close() {}

func (x sinkSession) Send(ctx context.Context, recs []uplink.Record, report func(uint64, uplink.Outcome)) error {
	for _, r := range recs {
		if d := time.Duration(x.s.slow.Load()); d > 0 {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(d):
			}
		}
		if x.s.down.Load() {
			return errFar
		}
		x.s.mu.Lock()
		x.s.got[r.ID.Seq]++
		x.s.list = append(x.s.list, r.ID.Seq)
		x.s.mu.Unlock()
		report(r.ID.Seq, uplink.Outcome{Verdict: uplink.Ack})
	}
	return nil
}

// counts returns how many of 1..n have come, and how often one came again.
func (s *sink) counts(n uint64) (have, doubled int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for seq, times := range s.got {
		if seq >= 1 && seq <= n {
			have++
		}
		doubled += times - 1
	}
	return have, doubled
}

// house is a log with one stream to a sink.
type house struct {
	t    *testing.T
	dir  string
	log  *wal.Log
	sink *sink
	d    *uplink.LiveFirst
	stop func()
}

func (h *house) open(split bool, limiter *uplink.Limiter) {
	h.t.Helper()
	var err error
	if h.log, err = wal.Open(h.dir, wal.Options{SegmentBytes: 256 << 10}); err != nil {
		h.t.Fatal(err)
	}
	cursor, err := h.log.Cursor("far", "line", wal.Oldest)
	if err != nil {
		h.t.Fatal(err)
	}
	h.d, err = uplink.NewLiveFirst(uplink.LiveFirstConfig{
		Log: h.log, Cursor: cursor, Split: split, Patience: 50 * time.Millisecond,
		Runner: uplink.RunnerConfig{
			Driver: h.sink, Limiter: limiter, MaxRecords: 64, Timing: uplink.Timing{RetryMin: time.Millisecond, RetryMax: 10 * time.Millisecond},
			Env: uplink.Env{Gateway: "gw1", Stream: "line", Epoch: h.log.Epoch(), Uplink: "far", Promise: uplink.Promise{Order: uplink.OrderNone}},
		},
	})
	if err != nil {
		h.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(h.t.Context())
	done := make(chan error, 1)
	go func() { done <- h.d.Run(ctx) }()
	h.stop = func() {
		cancel()
		if err := <-done; err != nil {
			h.t.Errorf("Run = %v", err)
		}
		if err := h.log.Close(); err != nil {
			h.t.Errorf("Close: %v", err)
		}
	}
}

// put stores n records.
func (h *house) put(n int) {
	h.t.Helper()
	var b wal.Batch
	for range n {
		b.Entries = append(b.Entries, wal.Entry{Stream: "line", Time: time.Now(), Data: pipeline.Encode(nil, &sample)})
	}
	b.Urgent = true
	done := make(chan error, 1)
	if err := errors.Join(h.log.Append(h.t.Context(), b, func(err error) { done <- err }), <-done); err != nil {
		h.t.Fatal(err)
	}
}

func (h *house) eventually(what string, ok func() bool) {
	h.t.Helper()
	for range 4000 {
		if ok() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	lag, backlog := h.d.Lag()
	h.t.Fatalf("not within 20 s: %s\nstatus %+v\nlag %+v, backlog %d\ncursors %+v", what, h.d.Status(), lag, backlog, h.log.Cursors())
}

func (h *house) alone() bool {
	list := h.log.Cursors()
	return len(list) == 1 && list[0].Uplink == "far"
}

func TestNewRecordsGoOutBesideTheBacklogOfAnOutage(t *testing.T) {
	h := &house{t: t, dir: t.TempDir(), sink: newSink()}
	h.sink.down.Store(true)
	h.open(true, uplink.NewLimiter(uplink.LimiterConfig{Policy: uplink.Policy{RecordsPerSecond: 2000}}))
	h.put(4000)
	time.Sleep(100 * time.Millisecond)
	if list := h.log.Cursors(); len(list) != 1 {
		t.Errorf("cursors %+v during the outage, want one", list)
	}
	h.sink.down.Store(false)
	h.eventually("the cursor is split", func() bool { return len(h.log.Cursors()) == 2 })
	h.put(20)
	h.eventually("the new records are there", func() bool {
		h.sink.mu.Lock()
		defer h.sink.mu.Unlock()
		n := 0
		for seq := uint64(4001); seq <= 4020; seq++ {
			n += h.sink.got[seq]
		}
		return n == 20
	})
	have, _ := h.sink.counts(4000)
	lag, backlog := h.d.Lag()
	if have > 3500 || backlog == 0 || lag.Records < backlog || lag.Records > backlog+20 || backlog > 4000 || backlog < 100 {
		t.Errorf("%d of 4000 older records are there with the new ones, lag %+v, backlog %d", have, lag, backlog)
	}
	for _, c := range h.log.Cursors() {
		if _, _, second := wal.ParseSplit(c.Uplink); !second && (c.Until != 4000 || c.Lag.Records > 4000) {
			t.Errorf("the first cursor is %+v, want one that ends at 4000", c)
		}
	}
	h.eventually("all is there, and one cursor again", func() bool { n, _ := h.sink.counts(4020); return n == 4020 && h.alone() })
	h.put(30) // and it goes on
	h.eventually("what came after", func() bool { n, _ := h.sink.counts(4050); return n == 4050 })
	if _, doubled := h.sink.counts(4050); doubled != 0 {
		t.Errorf("%d records came twice, want none", doubled)
	}
	h.stop() // the status counts a confirmation after the far side has it
	if s := h.d.Status(); s.Acked != 4050 || s.State != uplink.Stopped {
		t.Errorf("Status = %+v, want stopped, with 4050 acked", s)
	}
}

// TestASplitOutlivesStopsAtAnyMoment: the gateway is stopped again and again, most of the time in the middle of a split.
func TestASplitOutlivesStopsAtAnyMoment(t *testing.T) {
	h := &house{t: t, dir: t.TempDir(), sink: newSink()}
	h.sink.slow.Store(int64(250 * time.Microsecond))
	stored, splits, merges := 0, 0, 0
	was := 1
	random := rand.New(rand.NewPCG(1, 2))
	for life := 0; life < 40 || life < 400 && (splits == 0 || merges == 0); life++ {
		h.sink.down.Store(life%4 == 0)
		h.open(life%5 != 4, nil)
		for range 4 {
			n := 50 + random.IntN(300)
			h.put(n)
			stored += n
			time.Sleep(time.Duration(random.IntN(90)) * time.Millisecond)
			if life%4 == 0 {
				h.sink.down.Store(false)
			}
			open := len(h.log.Cursors())
			if open > was {
				splits++
			} else if open < was {
				merges++
			}
			was = open
		}
		h.stop()
	}
	h.sink.slow.Store(0)
	h.open(true, nil)
	h.eventually("all is there, and one cursor", func() bool { n, _ := h.sink.counts(uint64(stored)); return n == stored && h.alone() })
	_, doubled := h.sink.counts(uint64(stored))
	if splits == 0 || merges == 0 || doubled > 41*128 {
		t.Errorf("%d splits and %d merges seen, %d of %d records doubled", splits, merges, doubled, stored)
	}
	t.Logf("%d records, 41 lives, %d splits and %d ends of one seen, 0 lost, %d doubled", stored, splits, merges, doubled)
	h.stop()
}

// TestASplitThatIsNotWantedAnyMoreEndsInOrder: the config says in_order now, and the log has a split.
func TestASplitThatIsNotWantedAnyMoreEndsInOrder(t *testing.T) {
	h := &house{t: t, dir: t.TempDir(), sink: newSink()}
	h.sink.slow.Store(int64(time.Millisecond))
	h.open(true, nil)
	h.put(1000)
	h.eventually("the cursor is split", func() bool { return len(h.log.Cursors()) == 2 })
	h.put(200)
	h.stop()
	h.sink.mu.Lock()
	from := len(h.sink.list)
	h.sink.mu.Unlock()
	h.sink.slow.Store(0)
	h.open(false, nil)
	h.eventually("all is there, and one cursor", func() bool { n, _ := h.sink.counts(1200); return n == 1200 && h.alone() })
	h.put(10)
	h.eventually("what came after", func() bool { n, _ := h.sink.counts(1210); return n == 1210 })
	h.stop()
	for i := from + 1; i < len(h.sink.list); i++ {
		if h.sink.list[i] <= h.sink.list[i-1] {
			t.Fatalf("record %d came after %d", h.sink.list[i], h.sink.list[i-1])
		}
	}
}

func TestPauseHoldsBothCursorsOfASplit(t *testing.T) {
	h := &house{t: t, dir: t.TempDir(), sink: newSink()}
	h.sink.slow.Store(int64(time.Millisecond))
	h.open(true, nil)
	h.put(2000)
	h.eventually("the cursor is split", func() bool { return len(h.log.Cursors()) == 2 })
	h.d.Pause()
	h.eventually("both are paused", func() bool { return h.d.Status().State == uplink.Paused })
	have, _ := h.sink.counts(3000)
	h.put(100)
	time.Sleep(150 * time.Millisecond)
	if n, _ := h.sink.counts(3000); n != have {
		t.Errorf("%d records were sent while paused", n-have)
	}
	h.sink.slow.Store(0)
	h.d.Resume()
	h.eventually("all is there, and one cursor", func() bool { n, _ := h.sink.counts(2100); return n == 2100 && h.alone() })
	h.stop()
}

func TestCheckPolicy(t *testing.T) {
	for _, row := range []struct {
		policy uplink.Policy
		want   string // path of the problem
	}{
		{uplink.Policy{}, ""},
		{uplink.Policy{Start: "newest", BytesPerDay: 50 << 20}, ""},
		{uplink.Policy{Start: "2026-11-30T12:00:00+01:00"}, ""},
		{uplink.Policy{Start: "yesterday"}, "sending.start"},
		{uplink.Policy{Start: "2026-11-30"}, "sending.start"},
		{uplink.Policy{BytesPerDay: 1000}, "sending.bytes_per_day"},
	} {
		problems := uplink.CheckPolicy("sending", &row.policy)
		if (row.want == "") != (len(problems) == 0) || row.want != "" && problems[0].Path != row.want {
			t.Errorf("CheckPolicy(%+v) = %v, want a problem of %q", row.policy, problems, row.want)
		}
	}
	p := uplink.Policy{Backfill: "live_first"}
	if p.CheckOrder(uplink.OrderKey) == nil || p.CheckOrder(uplink.OrderNone) != nil {
		t.Error("live_first is for order: none only")
	}
}
