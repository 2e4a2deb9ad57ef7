package wal_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"edgegateway/wal"
)

const quota = 100_000

func streamStats(t *testing.T, l *wal.Log, name string) wal.StreamStats {
	t.Helper()
	for _, s := range l.Stats().Streams {
		if s.Name == name {
			return s
		}
	}
	t.Fatalf("there is no stream %s", name)
	panic("unreachable")
}

func TestStreamAtItsQuotaWaitsForItselfAlone(t *testing.T) {
	var lines lockedBuffer
	l := open(t, t.TempDir(), wal.Options{SegmentBytes: small, MaxBytes: 4 << 20, Quotas: map[string]int64{"chatty": quota}, Log: textLog(&lines)})
	chatty := cursor(t, l, "u", "chatty")
	quiet := cursor(t, l, "u", "quiet")
	var taken atomic.Int64
	var wg sync.WaitGroup
	wg.Go(func() {
		for n := 1; n <= 30; n++ {
			b := batch("chatty", n, n, 10_000)
			b.Urgent = true
			if err := l.Append(t.Context(), b, func(error) {}); err != nil {
				t.Errorf("Append %d: %v", n, err)
			}
			taken.Add(1)
		}
	})
	eventually(t, "the chatty stream is full", func() bool { return streamStats(t, l, "chatty").Full })
	if n := taken.Load(); n != 10 {
		t.Errorf("%d records of 10 kB went into a quota of 100 kB, want 10", n)
	}
	if s := l.Stats(); s.State != wal.StateOK {
		t.Errorf("the lane is %s because one stream is at its quota", s.State)
	}
	// A batch with both streams waits as a whole.
	mixed := batch("chatty", 31, 31, 10)
	mixed.Entries = append(mixed.Entries, batch("quiet", 99, 99, 10).Entries...)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := l.Append(ctx, mixed, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a batch with the full stream was taken: %v", err)
	}
	before := l.Stats().Commits
	for n := 1; n <= 50; n++ {
		must(t, put(t, l, batch("quiet", n, n, 1000)))
		quiet.Done(expect(t, quiet, "quiet", n, n, 1000)...)
	}
	if n := l.Stats().Commits - before; n > 110 {
		t.Errorf("%d commits for 50 urgent batches while another stream waits", n)
	}
	if n := taken.Load(); n != 10 {
		t.Errorf("%d records of the chatty stream were taken while nothing of it left", n)
	}
	for n := 1; n <= 30; n++ {
		chatty.Done(expect(t, chatty, "chatty", n, n, 10_000)...)
		if w := streamStats(t, l, "chatty").Waiting; w > quota {
			t.Fatalf("%d bytes of the chatty stream wait, its quota is %d", w, quota)
		}
	}
	wg.Wait()
	eventually(t, "as many lines of the end as of the beginning", func() bool {
		full := lines.count("stream is at its quota")
		return full > 0 && full == lines.count("stream has room again")
	})
	if n := lines.count("stream is at its quota"); n > 8 { // a quarter of the quota lies between two of them
		t.Errorf("%d lines say that the stream is full, for 20 batches that waited", n)
	}
	if s := streamStats(t, l, "chatty"); s.Refused+s.Dropped != 0 || s.Full {
		t.Errorf("something was lost under block: %+v", s)
	}
	b := batch("chatty", 1, 11, 10_000)
	if err := l.Append(t.Context(), b, nil); !errors.Is(err, wal.ErrTooLarge) {
		t.Errorf("a batch larger than the quota: %v", err)
	}
}

// TestWaitersAtAQuotaCostNoCommits counts what one stream at its quota costs a lane that nobody waits for.
func TestWaitersAtAQuotaCostNoCommits(t *testing.T) {
	l := open(t, t.TempDir(), wal.Options{Quotas: map[string]int64{"chatty": quota}, MaxDelay: time.Hour})
	cursor(t, l, "u", "chatty")
	cursor(t, l, "u", "quiet")
	must(t, put(t, l, batch("chatty", 1, 10, 10_000)))
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = l.Append(ctx, batch("chatty", 11, 11, 10), nil) })
	eventually(t, "the chatty stream is full", func() bool { return streamStats(t, l, "chatty").Full })
	before := l.Stats().Commits
	for n := 1; n <= 20; n++ {
		must(t, l.Append(t.Context(), batch("quiet", n, n, 10), nil))
		time.Sleep(5 * time.Millisecond)
	}
	if n := l.Stats().Commits - before; n != 0 {
		t.Errorf("%d commits that nobody asked for", n)
	}
	cancel()
	wg.Wait()
}

func TestStreamAtItsQuotaIsRefusedAlone(t *testing.T) {
	dir := t.TempDir()
	o := wal.Options{SegmentBytes: small, Full: wal.DropNewest, Quotas: map[string]int64{"chatty": quota}}
	l := open(t, dir, o)
	chatty := cursor(t, l, "u", "chatty")
	cursor(t, l, "u", "quiet")
	must(t, put(t, l, batch("chatty", 1, 10, 10_000)))
	for range 3 {
		if err := put(t, l, batch("chatty", 11, 12, 10_000)); !errors.Is(err, wal.ErrFull) {
			t.Errorf("Append beyond the quota: %v", err)
		}
	}
	must(t, put(t, l, batch("quiet", 1, 1, 200_000)))
	s := streamStats(t, l, "chatty")
	if s.Refused != 6 || !s.Full || l.Stats().Refused != 6 || l.Stats().State != wal.StateOK {
		t.Errorf("%+v, refused in all %d", s, l.Stats().Refused)
	}
	chatty.Done(expect(t, chatty, "chatty", 1, 5, 10_000)...)
	must(t, put(t, l, batch("chatty", 11, 12, 10_000)))
	closeLog(t, l)
	l = open(t, dir, o)
	if s := streamStats(t, l, "chatty"); s.Refused != 6 || s.Records != 12 || s.Waiting != 70_000 {
		t.Errorf("after a restart %+v, want 6 refused, 12 records and 70000 bytes waiting", s)
	}
	if s := streamStats(t, l, "quiet"); s.Refused != 0 {
		t.Errorf("%d records of the quiet stream refused", s.Refused)
	}
}

func TestRefusalsAreDurableWithinASecondWithoutAnyOtherCommit(t *testing.T) {
	dir := t.TempDir()
	o := wal.Options{SegmentBytes: small, Full: wal.DropNewest, Quotas: map[string]int64{"chatty": quota}}
	l := open(t, dir, o)
	cursor(t, l, "u", "chatty")
	must(t, put(t, l, batch("chatty", 1, 10, 10_000)))
	if err := put(t, l, batch("chatty", 11, 11, 10_000)); !errors.Is(err, wal.ErrFull) {
		t.Fatalf("Append beyond the quota: %v", err)
	}
	eventually(t, "the refusal is in the log's files", func() bool {
		r, err := wal.Inspect(dir)
		return err == nil && len(r.Streams) == 1 && r.Streams[0].Refused == 1
	})
}

func TestStreamAtItsQuotaDropsItsOwnOldest(t *testing.T) {
	dir := t.TempDir()
	o := wal.Options{SegmentBytes: small, Full: wal.DropOldest, Quotas: map[string]int64{"chatty": quota}}
	l := open(t, dir, o)
	chatty, quiet := cursor(t, l, "u", "chatty"), cursor(t, l, "u", "quiet")
	for n := 1; n <= 200; n++ {
		must(t, put(t, l, batch("chatty", n, n, 5_000)))
		if n == 50 || n == 150 {
			must(t, put(t, l, batch("quiet", n/50, n/50, 10)))
		}
		if s := streamStats(t, l, "chatty"); s.Waiting > quota {
			t.Fatalf("%d bytes wait after record %d, the quota is %d", s.Waiting, n, quota)
		}
	}
	s := l.Stats()
	next := uint64(1)
	for _, r := range s.Ranges {
		if r.Stream != "chatty" || r.First != next || r.Count != r.Last-r.First+1 || r.Why != wal.DroppedFull {
			t.Fatalf("range %+v, want one of the chatty stream that begins at %d", r, next)
		}
		next = r.Last + 1
	}
	if n := len(s.Ranges); n < 20 || n > 50 {
		t.Errorf("%d ranges for 200 records, want one for each quarter of the quota", n)
	}
	if n := 200 - int(next) + 1; n < 14 || n > 20 {
		t.Errorf("%d records of 5 kB are left under a quota of 100 kB, want 15 to 20", n)
	}
	expect(t, chatty, "chatty", int(next), 200, 5_000)
	// The quiet stream has lost nothing.
	if r := read(t, quiet, 10); len(r) != 2 || r[0].Seq != 1 {
		t.Errorf("the quiet stream reads %d records", len(r))
	}
	quiet.Done(read2(t, quiet)...)
	closeLog(t, l)
	l = open(t, dir, o)
	expect(t, cursor(t, l, "u", "chatty"), "chatty", int(next), 200, 5_000)
	eventually(t, "the segments in front are gone", func() bool { return len(segments(t, dir)) <= 7 })
}

// read2 reads again what was read.
func read2(t *testing.T, c *wal.Cursor) []wal.Record {
	t.Helper()
	c.Rewind()
	return read(t, c, 10)
}

func TestQuotaSharesOutWhatIsWaitingExactly(t *testing.T) {
	dir := t.TempDir()
	o := wal.Options{SegmentBytes: small, Quotas: map[string]int64{"s": 1 << 20}}
	l := open(t, dir, o)
	c := cursor(t, l, "u", "s")
	sizes := 0
	for n := 1; n <= 100; n++ { // small ones first, so that the mean tells a lie
		must(t, put(t, l, batch("s", n, n, 20+100*n)))
		sizes += 20 + 100*n
	}
	if got := streamStats(t, l, "s").Waiting; got != uint64(sizes) {
		t.Errorf("%d bytes wait, want %d", got, sizes)
	}
	for n := 1; n <= 50; n++ {
		c.Done(expect(t, c, "s", n, n, 20+100*n)...)
		sizes -= 20 + 100*n
	}
	if got := streamStats(t, l, "s").Waiting; got != uint64(sizes) {
		t.Errorf("%d bytes wait after half was confirmed, want %d", got, sizes)
	}
	closeLog(t, l)
	l = open(t, dir, o)
	got := int(streamStats(t, l, "s").Waiting)
	if got < sizes*95/100 || got > sizes*105/100 {
		t.Errorf("%d bytes wait after a restart, want %d within 5 %%", got, sizes)
	}
	if lag := l.Cursors()[0].Lag; lag.Records != 50 || int(lag.Bytes) != got {
		t.Errorf("lag %+v, want 50 records and %d bytes", lag, got)
	}
}

func TestQuotaMustFitTheLane(t *testing.T) {
	for _, q := range []int64{10, 1 << 20} {
		if _, err := wal.Open(t.TempDir(), wal.Options{MaxBytes: 1 << 20, Quotas: map[string]int64{"s": q}}); err == nil {
			t.Errorf("a quota of %d in a lane of 1 MiB was taken", q)
		}
	}
}

// textLog returns a logger whose lines are kept.
func textLog(b *lockedBuffer) *slog.Logger { return slog.New(slog.NewTextHandler(b, nil)) }

// count returns how many lines contain text.
func (b *lockedBuffer) count(text string) int { return strings.Count(b.String(), text) }

// TestNewCursorInTheCommitOfAQuota has a commit that opens a cursor of one stream and drops records of another.
func TestNewCursorInTheCommitOfAQuota(t *testing.T) {
	l := open(t, t.TempDir(), wal.Options{SegmentBytes: small, Full: wal.DropOldest, MaxDelay: time.Hour, Quotas: map[string]int64{"chatty": quota}})
	c := cursor(t, l, "u", "chatty")
	must(t, put(t, l, batch("chatty", 1, 20, 100)))
	c.Done(expect(t, c, "chatty", 1, 20, 100)...)
	must(t, put(t, l, batch("chatty", 21, 39, 5_000)))
	must(t, l.Append(t.Context(), batch("chatty", 40, 43, 5_000), nil))
	cursor(t, l, "u", "another")
	s := l.Stats()
	if len(s.Ranges) != 1 || s.Ranges[0].Stream != "chatty" || s.Ranges[0].First != 21 {
		t.Errorf("ranges %+v, want one of the chatty stream that begins at 21", s.Ranges)
	}
}
