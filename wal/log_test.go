package wal_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"edgegateway/wal"
)

func open(t testing.TB, dir string, o wal.Options) *wal.Log {
	t.Helper()
	l, err := wal.Open(dir, o)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func closeLog(t testing.TB, l *wal.Log) {
	t.Helper()
	if err := l.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
}

func cursor(t testing.TB, l *wal.Log, uplink, stream string) *wal.Cursor {
	t.Helper()
	c, err := l.Cursor(uplink, stream, wal.Oldest)
	if err != nil {
		t.Fatalf("Cursor: %v", err)
	}
	return c
}

// put appends batches and waits until the last one is durable.
func put(t testing.TB, l *wal.Log, batches ...wal.Batch) error {
	t.Helper()
	errs := make(chan error, len(batches))
	for _, b := range batches {
		b.Urgent = true
		if err := l.Append(t.Context(), b, func(err error) { errs <- err }); err != nil {
			return err
		}
	}
	var all []error
	for range batches {
		all = append(all, within(t, errs))
	}
	return errors.Join(all...)
}

func within[T any](t testing.TB, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(20 * time.Second):
		t.Fatal("nothing came within 20 s")
		panic("unreachable")
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// data of a record says where it belongs, and is padded to size with what no codec makes smaller, so that tests know what
// it takes on the disk.
func data(stream string, n, size int) []byte {
	b := binary.BigEndian.AppendUint64(nil, uint64(n))
	b = append(b, stream...)
	x := uint64(n) + 1
	for len(b) < size {
		x *= 0x9E3779B97F4A7C15
		x ^= x >> 29
		b = append(b, byte(x>>11))
	}
	return b
}

func batch(stream string, from, to, size int) wal.Batch {
	var b wal.Batch
	for n := from; n <= to; n++ {
		b.Entries = append(b.Entries, wal.Entry{Stream: stream, Time: time.Unix(1.7e9+int64(n), 0), Data: data(stream, n, size)})
	}
	return b
}

// expect reads exactly the records from..to of a stream.
func expect(t testing.TB, c *wal.Cursor, stream string, from, to, size int) []wal.Record {
	t.Helper()
	var out []wal.Record
	for n := from; n <= to; {
		recs := read(t, c, to-n+1)
		for _, r := range recs {
			if r.Seq != uint64(n) || !bytes.Equal(r.Data, data(stream, n, size)) {
				t.Fatalf("read record %d (%d bytes), want %d", r.Seq, len(r.Data), n)
			}
			if want := time.Unix(1.7e9+int64(n), 0); !r.Time.Equal(want) {
				t.Fatalf("record %d has time %v, want %v", n, r.Time, want)
			}
			n++
		}
		out = append(out, recs...)
	}
	return out
}

func read(t testing.TB, c *wal.Cursor, n int) []wal.Record {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	recs, err := c.Read(ctx, n, 0)
	if err != nil {
		t.Fatalf("Read: %v", err)
	}
	return recs
}

// nothing asserts that there is no record to read now.
func nothing(t testing.TB, c *wal.Cursor) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if recs, err := c.Read(ctx, 10, 0); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("Read returned %d records and %v, want nothing", len(recs), err)
	}
}

func segments(t testing.TB, dir string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*.seg"))
	must(t, err)
	slices.Sort(names)
	return names
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for range 2000 {
		if ok() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("not within 10 s: %s", what)
}

func TestRecordsComeBackInOrder(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, wal.Options{})
	c := cursor(t, l, "cloud", "main")
	must(t, put(t, l, batch("main", 1, 10, 20), batch("main", 11, 11, 200_000), batch("main", 12, 500, 700)))
	expect(t, c, "main", 1, 10, 20)
	expect(t, c, "main", 11, 11, 200_000)
	expect(t, c, "main", 12, 500, 700)
	nothing(t, c)
	closeLog(t, l)

	l = open(t, dir, wal.Options{})
	c = cursor(t, l, "cloud", "main")
	recs := expect(t, c, "main", 1, 10, 20)
	c.Done(recs...)
	recs = expect(t, c, "main", 11, 11, 200_000)
	c.Done(recs...)
	closeLog(t, l)

	l = open(t, dir, wal.Options{})
	c = cursor(t, l, "cloud", "main")
	expect(t, c, "main", 12, 500, 700)
	must(t, put(t, l, batch("main", 501, 501, 9)))
	expect(t, c, "main", 501, 501, 9)
}

func TestCallbacksComeInAppendOrder(t *testing.T) {
	l := open(t, t.TempDir(), wal.Options{})
	var got []int
	done := make(chan struct{})
	for i := range 2000 {
		err := l.Append(t.Context(), wal.Batch{Entries: batch("s", i, i, 600).Entries, Urgent: i%3 == 0}, func(err error) {
			if err != nil {
				t.Errorf("callback %d: %v", i, err)
			}
			if got = append(got, i); len(got) == 2000 {
				close(done)
			}
		})
		must(t, err)
	}
	within(t, done)
	if !slices.IsSorted(got) {
		t.Error("callbacks came out of order")
	}
	if s := l.Stats(); s.Commits > 1000 || s.Streams[0].Records != 2000 {
		t.Errorf("%d commits for %d records, want them shared", s.Commits, s.Streams[0].Records)
	}
}

func TestAnEmptyBatchCostsNoCommitAndComesAfterWhatWasBeforeIt(t *testing.T) {
	l := open(t, t.TempDir(), wal.Options{MaxDelay: time.Hour})
	before := l.Stats().Commits
	order := make(chan string, 3)
	push := func(name string, b wal.Batch) {
		t.Helper()
		if err := l.Append(t.Context(), b, func(err error) { order <- fmt.Sprint(name, err) }); err != nil {
			t.Fatal(err)
		}
	}
	push("empty", wal.Batch{Urgent: true})
	if got := <-order; got != "empty<nil>" {
		t.Errorf("done got %s", got)
	}
	if got := l.Stats().Commits; got != before {
		t.Errorf("an empty batch made %d commits", got-before)
	}
	push("full", wal.Batch{Entries: []wal.Entry{{Stream: "s", Data: []byte("x")}}})
	push("empty", wal.Batch{Urgent: true})
	if a, b := <-order, <-order; a != "full<nil>" || b != "empty<nil>" {
		t.Errorf("done came in the order %s, %s", a, b)
	}
	if got := l.Stats().Commits; got != before+1 {
		t.Errorf("%d commits, want 1", got-before)
	}
}

func TestQuietBatchWaitsForMaxDelay(t *testing.T) {
	l := open(t, t.TempDir(), wal.Options{MaxDelay: 150 * time.Millisecond})
	start, done := time.Now(), make(chan error, 1)
	must(t, l.Append(t.Context(), batch("s", 1, 1, 10), func(err error) { done <- err }))
	must(t, within(t, done))
	if d := time.Since(start); d < 140*time.Millisecond {
		t.Errorf("committed after %v, want 150ms", d)
	}
}

func TestRefusedInput(t *testing.T) {
	l := open(t, t.TempDir(), wal.Options{})
	key := strings.Repeat("k", 2000)
	for _, test := range []struct {
		name  string
		batch wal.Batch
		want  error
	}{
		{"a record over MaxRecord", batch("s", 1, 1, wal.MaxRecord+1), wal.ErrTooLarge},
		{"a batch over MaxCommit", batch("s", 1, 5, wal.MaxRecord), wal.ErrTooLarge},
		{"a stream without a name", batch("", 1, 1, 1), nil},
		{"a key over its bound", wal.Batch{State: []wal.Change{{Key: key}}}, nil},
		{"a key that is empty", wal.Batch{State: []wal.Change{{Value: []byte{1}}}}, nil},
	} {
		err := l.Append(t.Context(), test.batch, func(error) { t.Errorf("%s: callback", test.name) })
		if err == nil || test.want != nil && !errors.Is(err, test.want) {
			t.Errorf("%s: Append = %v, want %v", test.name, err, test.want)
		}
	}
	must(t, put(t, l, batch("s", 1, 1, wal.MaxRecord)))
	c := cursor(t, l, "u", "s")
	expect(t, c, "s", 1, 1, wal.MaxRecord)
	for _, o := range []wal.Options{{MaxBytes: -1}, {MaxBytes: 1000}, {Full: "sometimes"}} {
		if _, err := wal.Open(t.TempDir(), o); err == nil {
			t.Errorf("Open(%+v) succeeded", o)
		}
	}
}

func TestRewindSkipsWhatHasAnOutcome(t *testing.T) {
	l := open(t, t.TempDir(), wal.Options{})
	c := cursor(t, l, "u", "s")
	must(t, put(t, l, batch("s", 1, 20, 10)))
	recs := expect(t, c, "s", 1, 20, 10)
	c.Done(recs[0], recs[1], recs[4], recs[7])
	c.Rewind()
	var seqs []uint64
	for len(seqs) < 16 {
		for _, r := range read(t, c, 3) {
			seqs = append(seqs, r.Seq)
		}
	}
	if want := []uint64{3, 4, 6, 7, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20}; !slices.Equal(seqs, want) {
		t.Errorf("after Rewind: %v, want %v", seqs, want)
	}
	nothing(t, c)
	c.Done(recs...)
	c.Rewind()
	nothing(t, c)
	if lag := c.Lag(); lag != (wal.Lag{}) {
		t.Errorf("lag is %+v, want none", lag)
	}
}

func TestWindowHoldsTheReader(t *testing.T) {
	l := open(t, t.TempDir(), wal.Options{Window: 10})
	c := cursor(t, l, "u", "s")
	must(t, put(t, l, batch("s", 1, 100, 10)))
	recs := expect(t, c, "s", 1, 10, 10)
	nothing(t, c)
	c.Done(recs[1:]...)
	nothing(t, c) // the first one still holds the cursor
	c.Done(recs[0])
	expect(t, c, "s", 11, 20, 10)
	nothing(t, c)

	waiting := make(chan []wal.Record)
	go func() { waiting <- read(t, c, 5) }()
	c.Rewind()
	if recs := within(t, waiting); recs[0].Seq != 11 {
		t.Errorf("after Rewind Read returned %d first, want 11", recs[0].Seq)
	}
}

func TestWindowGrowsUnderOutcomesOutOfOrder(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, wal.Options{})
	c := cursor(t, l, "u", "s")
	must(t, put(t, l, batch("s", 1, 3000, 10)))
	recs := expect(t, c, "s", 1, 1000, 10)
	for i := 1; i < len(recs); i += 2 {
		c.Done(recs[i])
	}
	recs = append(recs, expect(t, c, "s", 1001, 3000, 10)...)
	c.Done(recs[1500:]...)
	if lag := c.Lag(); lag.Records != 3000 {
		t.Errorf("lag is %d with the first record open, want 3000", lag.Records)
	}
	closeLog(t, l)
	c = cursor(t, open(t, dir, wal.Options{}), "u", "s") // of what lies beyond the cursor a commit stores the first runs
	for n, first := 0, true; n < 3000; first = false {
		recs := read(t, c, 100)
		if first && (recs[0].Seq != 1 || recs[1].Seq != 3) {
			t.Errorf("records %d and %d come first, want 1 and 3", recs[0].Seq, recs[1].Seq)
		}
		c.Done(recs...)
		if n = int(recs[len(recs)-1].Seq); c.Lag().Records == 0 {
			break
		}
	}
	nothing(t, c)
	if lag := c.Lag(); lag != (wal.Lag{}) {
		t.Errorf("lag is %+v, want none", lag)
	}
}

func TestOutcomesOutOfOrderOutliveACleanStop(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, wal.Options{})
	c := cursor(t, l, "u", "s")
	must(t, put(t, l, batch("s", 1, 20, 10)))
	recs := expect(t, c, "s", 1, 20, 10)
	c.Done(recs[0], recs[2], recs[3], recs[9])
	closeLog(t, l)
	c = cursor(t, open(t, dir, wal.Options{}), "u", "s")
	var seqs []uint64
	for len(seqs) < 16 {
		for _, r := range read(t, c, 0) {
			seqs = append(seqs, r.Seq)
		}
	}
	if want := []uint64{2, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20}; !slices.Equal(seqs, want) {
		t.Errorf("after a clean stop: %v, want %v", seqs, want)
	}
}

func TestNewCursorStarts(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, wal.Options{})
	must(t, put(t, l, batch("s", 1, 5, 10)))
	oldest := cursor(t, l, "oldest", "s")
	newest, err := l.Cursor("newest", "s", wal.Newest)
	must(t, err)
	if _, err := l.Cursor("newest", "s", wal.Oldest); err == nil {
		t.Error("a cursor could be opened twice")
	}
	must(t, put(t, l, batch("s", 6, 6, 10)))
	expect(t, oldest, "s", 1, 6, 10)
	recs := expect(t, newest, "s", 6, 6, 10)
	newest.Done(recs...)
	newest.Close()
	if _, err := newest.Read(t.Context(), 1, 1); !errors.Is(err, wal.ErrClosed) {
		t.Errorf("Read after Close: %v", err)
	}
	newest, err = l.Cursor("newest", "s", wal.Oldest) // known, so Oldest does not count
	must(t, err)
	nothing(t, newest)
	closeLog(t, l)
	if _, err := oldest.Read(t.Context(), 1, 1); !errors.Is(err, wal.ErrClosed) {
		t.Errorf("Read after Close of the log: %v", err)
	}
	if err := l.Append(t.Context(), batch("s", 1, 1, 1), nil); !errors.Is(err, wal.ErrClosed) {
		t.Errorf("Append after Close: %v", err)
	}
	if _, err := l.Cursor("x", "s", wal.Oldest); !errors.Is(err, wal.ErrClosed) {
		t.Errorf("Cursor after Close: %v", err)
	}
}

func TestReadOfOneUplinkDoesNotHoldAnother(t *testing.T) {
	l := open(t, t.TempDir(), wal.Options{Window: 8})
	slow, fast := cursor(t, l, "slow", "s"), cursor(t, l, "fast", "s")
	must(t, put(t, l, batch("s", 1, 400, 300)))
	expect(t, slow, "s", 1, 8, 300)
	for n := 1; n <= 400; n += 8 {
		fast.Done(expect(t, fast, "s", n, n+7, 300)...)
	}
	if lag := slow.Lag(); lag.Records != 400 || lag.Bytes != 400*300 || !lag.Oldest.Equal(time.Unix(1.7e9+1, 0)) {
		t.Errorf("lag of the slow one is %+v", lag)
	}
}

func TestStateIsAtomicAndCarriedOver(t *testing.T) {
	dir := t.TempDir()
	o := wal.Options{SegmentBytes: 64 << 10}
	l := open(t, dir, o)
	c := cursor(t, l, "u", "s")
	for n := 1; n <= 60; n++ {
		b := batch("s", n, n, 10_000)
		b.State = []wal.Change{
			{Key: "pos", Value: []byte(fmt.Sprint(n))}, {Key: fmt.Sprint("gone/", n), Value: []byte("x")}, {Key: fmt.Sprint("gone/", n-1)},
		}
		if n == 1 {
			b.State = append(b.State, wal.Change{Key: "kept", Value: []byte{}})
		}
		must(t, put(t, l, b))
		c.Done(expect(t, c, "s", n, n, 10_000)...)
	}
	for range 2 {
		got := map[string]string{}
		l.State("", func(k string, v []byte) bool { got[k] = string(v); return true })
		if len(got) != 3 || got["pos"] != "60" || got["gone/60"] != "x" {
			t.Errorf("state is %v", got)
		}
		if _, ok := got["kept"]; !ok {
			t.Error("an empty value was lost")
		}
		calls := 0
		l.State("gone/", func(string, []byte) bool { calls++; return false })
		if calls != 1 {
			t.Errorf("%d calls with prefix, want 1", calls)
		}
		closeLog(t, l)
		l = open(t, dir, o)
	}
	if n := len(segments(t, dir)); n > 2 {
		t.Errorf("%d segments are left of what was confirmed", n)
	}
}

func TestStateIsBounded(t *testing.T) {
	l := open(t, t.TempDir(), wal.Options{})
	value := make([]byte, 100_000)
	n := 0
	var err error
	for ; n < 100; n++ {
		if err = put(t, l, wal.Batch{State: []wal.Change{{Key: fmt.Sprint(n), Value: value}}}); err != nil {
			break
		}
	}
	if n != 31 || !errors.Is(err, wal.ErrFull) {
		t.Errorf("after %d values: %v, want ErrFull after 31", n, err)
	}
	must(t, put(t, l, wal.Batch{State: []wal.Change{{Key: "1", Value: value[1:]}}})) // no growth
	must(t, put(t, l, wal.Batch{State: []wal.Change{{Key: "1"}}}))
	must(t, put(t, l, wal.Batch{State: []wal.Change{{Key: "new", Value: value}}}))
}

func TestDeadLetters(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, wal.Options{SegmentBytes: 64 << 10})
	c := cursor(t, l, "cloud", "s")
	must(t, put(t, l, batch("s", 1, 10, 100)))
	recs := expect(t, c, "s", 1, 10, 100)
	c.Drop(recs[3], "schema mismatch")
	c.Drop(recs[3], "again")
	c.Done(recs...)
	closeLog(t, l)
	l = open(t, dir, wal.Options{SegmentBytes: 64 << 10})
	letters := slices.Collect(l.DeadLetters)
	if len(letters) != 1 {
		t.Fatalf("%d dead letters, want 1", len(letters))
	}
	d := letters[0]
	if d.Uplink != "cloud" || d.Stream != "s" || d.Seq != 4 || d.Reason != "schema mismatch" ||
		!bytes.Equal(d.Data, data("s", 4, 100)) || !d.Time.Equal(recs[3].Time) || time.Since(d.Refused) > time.Minute {
		t.Errorf("dead letter is %+v", d)
	}
	c = cursor(t, l, "cloud", "s")
	nothing(t, c)

	// More than fits: the oldest go and are counted.
	for n := 11; n <= 40; n++ {
		must(t, put(t, l, batch("s", n, n, 100_000)))
		c.Drop(expect(t, c, "s", n, n, 100_000)[0], "too large")
	}
	c.Close()
	eventually(t, "cursor written", func() bool { return l.Cursors()[0].Seq == 40 })
	s := l.Stats()
	if s.DeadLetters != 10 || s.DeadLettersLost != 21 {
		t.Errorf("%d dead letters, %d lost, want 10 and 21", s.DeadLetters, s.DeadLettersLost)
	}
	for d := range l.DeadLetters {
		if d.Seq != 31 {
			t.Errorf("oldest dead letter is %d, want 31", d.Seq)
		}
		break
	}
}

func TestLockedDirectory(t *testing.T) {
	dir := t.TempDir()
	open(t, dir, wal.Options{})
	start := time.Now()
	_, err := wal.Open(dir, wal.Options{})
	if !errors.Is(err, wal.ErrLocked) || !strings.Contains(err.Error(), fmt.Sprint(os.Getpid())) {
		t.Errorf("Open of a locked directory: %v", err)
	}
	if time.Since(start) > time.Second {
		t.Error("the answer took more than a second")
	}
}

func TestDirectoryThatCannotBeWritten(t *testing.T) {
	// Not by permissions, which root does not feel: by names that are taken.
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, nil, 0o600))
	if _, err := wal.Open(file, wal.Options{}); err == nil {
		t.Error("Open of a file succeeded")
	}
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "LOCK"), 0o700))
	if _, err := wal.Open(dir, wal.Options{}); err == nil {
		t.Error("Open without a lock succeeded")
	}
	if _, err := wal.Open("/proc/log", wal.Options{}); err == nil {
		t.Error("Open in a file system that takes no files succeeded")
	}
}
