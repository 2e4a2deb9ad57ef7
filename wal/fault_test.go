package wal_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"edgegateway/wal"
)

const small = 64 << 10 // the smallest segment

func TestIdleStreamPinsNothing(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, wal.Options{SegmentBytes: small})
	busy, idle := cursor(t, l, "u", "busy"), cursor(t, l, "u", "idle")
	must(t, put(t, l, batch("idle", 1, 1, 10)))
	idle.Done(expect(t, idle, "idle", 1, 1, 10)...)
	for n := 1; n <= 40; n++ {
		must(t, put(t, l, batch("busy", n, n, 10_000)))
		busy.Done(expect(t, busy, "busy", n, n, 10_000)...)
	}
	must(t, put(t, l, batch("busy", 41, 41, 10)))
	eventually(t, "segments freed", func() bool { return len(segments(t, dir)) <= 2 })
	must(t, put(t, l, batch("idle", 2, 2, 10)))
	closeLog(t, l)
	l = open(t, dir, wal.Options{SegmentBytes: small})
	idle = cursor(t, l, "u", "idle")
	expect(t, idle, "idle", 2, 2, 10)
	nothing(t, idle)
	busy = cursor(t, l, "u", "busy")
	expect(t, busy, "busy", 41, 41, 10)
}

func TestReleaseFreesWhatOnlyThatCursorKept(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, wal.Options{SegmentBytes: small})
	gone, stays := cursor(t, l, "gone", "s"), cursor(t, l, "stays", "s")
	for n := 1; n <= 40; n++ {
		must(t, put(t, l, batch("s", n, n, 10_000)))
		stays.Done(expect(t, stays, "s", n, n, 10_000)...)
	}
	if n := len(segments(t, dir)); n < 5 {
		t.Fatalf("%d segments, want all of them kept for the cursor that lags", n)
	}
	if err := l.Release("gone", "s"); err == nil {
		t.Error("an open cursor was released")
	}
	gone.Close()
	must(t, l.Release("gone", "s"))
	if err := l.Release("gone", "s"); err == nil {
		t.Error("a cursor was released twice")
	}
	eventually(t, "segments freed", func() bool { return len(segments(t, dir)) <= 2 })
	closeLog(t, l)
	if c := open(t, dir, wal.Options{}).Cursors(); len(c) != 1 || c[0].Uplink != "stays" {
		t.Errorf("cursors after Release: %+v", c)
	}
}

func TestBlockWaitsForRoom(t *testing.T) {
	l := open(t, t.TempDir(), wal.Options{MaxBytes: 512 << 10, SegmentBytes: small})
	c := cursor(t, l, "u", "s")
	var accepted, acked atomic.Int64
	var wg sync.WaitGroup
	wg.Go(func() {
		for n := 1; n <= 200; n++ {
			b := batch("s", n, n, 10_000)
			b.Urgent = true
			if err := l.Append(t.Context(), b, func(err error) {
				if err == nil {
					acked.Add(1)
				}
			}); err != nil {
				t.Errorf("Append %d: %v", n, err)
			}
			accepted.Add(1)
		}
	})
	eventually(t, "log is full", func() bool { return l.Stats().State == wal.StateFull })
	eventually(t, "queue is empty", func() bool { return accepted.Load() == acked.Load() })
	if n := acked.Load(); n > 52 || n < 20 {
		t.Errorf("%d records of 10 kB went into 512 KiB", n)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := l.Append(ctx, batch("s", 999, 999, 10_000), nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Append into a full log: %v", err)
	}
	most := int64(0)
	for n := 1; n <= 200; n++ {
		c.Done(expect(t, c, "s", n, n, 10_000)...)
		most = max(most, l.Stats().Bytes)
	}
	wg.Wait()
	if most > 512<<10 {
		t.Errorf("%d bytes on disk at most, want 512 KiB", most)
	}
	eventually(t, "log has room again", func() bool { return l.Stats().State == wal.StateOK })
	if s := l.Stats(); len(s.Ranges) != 0 || s.Refused != 0 {
		t.Errorf("something was dropped: %+v", s)
	}
}

func TestDropNewestRefusesBeforeANumberIsGiven(t *testing.T) {
	dir := t.TempDir()
	o := wal.Options{MaxBytes: 512 << 10, SegmentBytes: small, Full: wal.DropNewest}
	l := open(t, dir, o)
	c := cursor(t, l, "u", "s")
	n := 0
	var err error
	for err == nil {
		n++
		err = put(t, l, batch("s", n, n, 10_000))
	}
	if !errors.Is(err, wal.ErrFull) || l.Stats().Refused != 1 || l.Stats().State != wal.StateFull {
		t.Fatalf("Append %d: %v, stats %+v", n, err, l.Stats())
	}
	c.Done(expect(t, c, "s", 1, n-1, 10_000)...)
	eventually(t, "log has room again", func() bool { return l.Stats().State == wal.StateOK })
	must(t, put(t, l, batch("s", n, n, 10_000)))
	expect(t, c, "s", n, n, 10_000)
	closeLog(t, l)
	if s := open(t, dir, o).Stats(); s.Refused != 1 {
		t.Errorf("%d refused after a restart, want 1", s.Refused)
	}
}

func TestConfirmedRecordsMakeRoomForALargeBatch(t *testing.T) {
	for _, policy := range []wal.Policy{wal.Block, wal.DropNewest} {
		l := open(t, t.TempDir(), wal.Options{MaxBytes: 512 << 10, Full: policy})
		c := cursor(t, l, "u", "s")
		for n, size := range []int{110_000, 180_000} {
			must(t, put(t, l, batch("s", n+1, n+1, size)))
			c.Done(expect(t, c, "s", n+1, n+1, size)...)
		}
		eventually(t, "cursor written", func() bool { return l.Cursors()[0].Seq == 2 })
		// The active segment holds nothing that is needed, and yet it is in the way.
		b := batch("s", 3, 3, 180_000)
		err := put(t, l, b)
		if policy == wal.DropNewest && errors.Is(err, wal.ErrFull) {
			eventually(t, "room for the batch", func() bool { return put(t, l, b) == nil })
		} else {
			must(t, err)
		}
		expect(t, c, "s", 3, 3, 180_000)
	}
}

func TestDeadLettersLeaveRoomInASmallLog(t *testing.T) {
	dir := t.TempDir()
	o := wal.Options{MaxBytes: 512 << 10, SegmentBytes: small}
	l := open(t, dir, o)
	c := cursor(t, l, "u", "s")
	for n := 1; n <= 40; n++ {
		must(t, put(t, l, batch("s", n, n, 10_000)))
		c.Drop(expect(t, c, "s", n, n, 10_000)[0], "refused")
	}
	closeLog(t, l)
	l = open(t, dir, o)
	s := l.Stats()
	if s.DeadLetters < 2 || s.DeadLetters+int(s.DeadLettersLost) != 40 || s.StateBytes > 40<<10 {
		t.Errorf("%d dead letters, %d lost, the state has %d bytes", s.DeadLetters, s.DeadLettersLost, s.StateBytes)
	}
	must(t, put(t, l, batch("s", 41, 41, 10_000)))
}

func TestDropOldestCountsWhatWent(t *testing.T) {
	dir := t.TempDir()
	o := wal.Options{MaxBytes: 512 << 10, SegmentBytes: small, Full: wal.DropOldest}
	l := open(t, dir, o)
	slow, fast := cursor(t, l, "slow", "s"), cursor(t, l, "fast", "s")
	held := expect2(t, l, slow, 3)
	for n := 4; n <= 200; n++ {
		must(t, put(t, l, batch("s", n, n, 10_000)))
		if n == 4 {
			fast.Done(expect(t, fast, "s", 1, 4, 10_000)...)
		} else {
			fast.Done(expect(t, fast, "s", n, n, 10_000)...)
		}
		if b := l.Stats().Bytes; b > 512<<10 {
			t.Fatalf("%d bytes on disk, want at most 512 KiB", b)
		}
	}
	slow.Done(held...) // too late: they were raised past
	s := l.Stats()
	var dropped, next uint64 = 0, 1
	for _, r := range s.Ranges {
		if r.Stream != "s" || r.First != next || r.Why != wal.DroppedFull || time.Since(r.When) > time.Minute {
			t.Fatalf("range %+v, want one that begins at %d", r, next)
		}
		dropped += r.Last - r.First + 1
		next = r.Last + 1
	}
	if s.State != wal.StateOK || dropped == 0 || dropped != s.Streams[0].Dropped {
		t.Errorf("%d records in ranges, %d counted, state %s", dropped, s.Streams[0].Dropped, s.State)
	}
	rec := read(t, slow, 1)[0]
	if rec.Seq != next {
		t.Errorf("the slow cursor reads %d, want %d", rec.Seq, next)
	}
	slow.Rewind()
	expect(t, slow, "s", int(next), 200, 10_000)
	nothing(t, slow)
	nothing(t, fast)
	closeLog(t, l)
	l = open(t, dir, o)
	expect(t, cursor(t, l, "slow", "s"), "s", int(next), 200, 10_000)
	if got := l.Stats(); got.Streams[0].Dropped != dropped || len(got.Ranges) != len(s.Ranges) {
		t.Errorf("after a restart %+v", got)
	}
}

func expect2(t *testing.T, l *wal.Log, c *wal.Cursor, n int) []wal.Record {
	t.Helper()
	must(t, put(t, l, batch("s", 1, n, 10_000)))
	return expect(t, c, "s", 1, n, 10_000)
}

func TestMaxAge(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, wal.Options{SegmentBytes: small, MaxAge: 300 * time.Millisecond})
	c := cursor(t, l, "u", "s")
	now := time.Now()
	var b wal.Batch
	for n := 1; n <= 20; n++ {
		b.Entries = append(b.Entries, wal.Entry{Stream: "s", Time: now, Data: data("s", n, 10_000)})
	}
	must(t, put(t, l, b))
	eventually(t, "old records gone", func() bool { return l.Stats().Streams[0].Dropped == 20 })
	s := l.Stats()
	if len(s.Ranges) != 1 || s.Ranges[0].First != 1 || s.Ranges[0].Last != 20 || s.Ranges[0].Why != wal.DroppedAge {
		t.Errorf("ranges %+v", s.Ranges)
	}
	// A clock that was never set gives no age.
	must(t, put(t, l, wal.Batch{Entries: []wal.Entry{{Stream: "s", Time: time.Unix(100, 0), Data: data("s", 21, 10)}}}))
	time.Sleep(500 * time.Millisecond)
	if r := read(t, c, 1); r[0].Seq != 21 {
		t.Errorf("read %d, want 21", r[0].Seq)
	}
}

func TestFullDisk(t *testing.T) {
	for _, policy := range []wal.Policy{wal.Block, wal.DropNewest, wal.DropOldest} {
		t.Run(string(policy), func(t *testing.T) { fullDisk(t, policy) })
	}
}

func fullDisk(t *testing.T, policy wal.Policy) {
	var disk wal.Disk
	dir := t.TempDir()
	o := disk.Under(wal.Options{SegmentBytes: small, Full: policy})
	l := open(t, dir, o)
	c := cursor(t, l, "u", "s")
	for n := 1; n <= 30; n++ {
		must(t, put(t, l, batch("s", n, n, 10_000)))
	}
	disk.Full.Store(true)
	results := make(chan error, 1)
	b := batch("s", 31, 31, 200_000)
	b.Urgent = true
	must(t, l.Append(t.Context(), b, func(err error) { results <- err }))
	eventually(t, "log is full", func() bool { return disk.Refused.Load() > 0 && l.Stats().State == wal.StateFull })
	switch policy {
	case wal.DropNewest:
		if err := within(t, results); !errors.Is(err, wal.ErrFull) {
			t.Errorf("callback with %v, want ErrFull", err)
		}
		if err := l.Append(t.Context(), batch("s", 31, 31, 10), nil); !errors.Is(err, wal.ErrFull) {
			t.Errorf("Append = %v, want ErrFull", err)
		}
	default:
		select {
		case err := <-results:
			t.Errorf("callback with %v before there was room", err)
		case <-time.After(50 * time.Millisecond):
		}
	}
	before := len(segments(t, dir))
	first := 1
	if policy == wal.DropOldest { // drops what it can to make room, and counts it
		eventually(t, "all but the active segment dropped", func() bool { return len(segments(t, dir)) == 1 })
		s := l.Stats()
		first = int(s.Ranges[len(s.Ranges)-1].Last) + 1
		if s.Streams[0].Dropped != uint64(first-1) {
			t.Errorf("%d dropped, the last range ends at %d", s.Streams[0].Dropped, first-1)
		}
	}
	if err := l.Stats().Err; !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), ".seg") {
		t.Errorf("the error of the full disk is %v", err)
	}
	// Reading, outcomes and freeing go on.
	recs := expect(t, c, "s", first, 30, 10_000)
	i := len(recs) - 5
	if policy == wal.DropOldest {
		i = len(recs) - 1 // the others may be dropped to make room for a dead letter
	}
	c.Done(recs[:i]...)
	eventually(t, "cursor written", func() bool { return l.Cursors()[0].Seq == recs[i].Seq-1 })
	if policy != wal.DropOldest {
		eventually(t, "segments freed", func() bool { return len(segments(t, dir)) < before })
	}
	c.Drop(recs[i], "refused")
	c.Done(recs[i+1:]...)
	disk.Full.Store(false)
	if policy != wal.DropNewest {
		must(t, within(t, results))
	} else {
		eventually(t, "room again", func() bool { return put(t, l, b) == nil })
	}
	expect(t, c, "s", 31, 31, 200_000)
	// The batch and the letter waited for room each on its own: either may come first.
	eventually(t, "the dead letter kept", func() bool { return l.Stats().DeadLetters == 1 })
	if s := l.Stats(); s.DeadLettersLost != 0 || s.State != wal.StateOK || s.Err != nil {
		t.Errorf("%d dead letters lost, state %s, %v after there was room again", s.DeadLettersLost, s.State, s.Err)
	}
	closeLog(t, l)
	expect(t, cursor(t, open(t, dir, wal.Options{}), "u", "s"), "s", 31, 31, 200_000)
}

// TestWhatComesWhileNothingCanBeWrittenIsNotForgotten has a cursor opened in each write that finds no room: of the commit, of the one for the
// outcomes alone, and of the one without their dead letters.
func TestWhatComesWhileNothingCanBeWrittenIsNotForgotten(t *testing.T) {
	var disk wal.Disk
	var l *wal.Log
	opened := make(chan error, 100)
	asked := 0
	disk.OnFull = func() {
		if asked == 10 {
			return
		}
		asked++
		name := fmt.Sprint("late", asked)
		go func() {
			_, err := l.Cursor(name, "s", wal.Oldest)
			opened <- err
		}()
		time.Sleep(20 * time.Millisecond) // it is queued
	}
	l = open(t, t.TempDir(), disk.Under(wal.Options{}))
	c := cursor(t, l, "u", "s")
	must(t, put(t, l, batch("s", 1, 5, 100)))
	recs := expect(t, c, "s", 1, 5, 100)
	disk.Nothing.Store(true)
	c.Drop(recs[0], "refused")
	c.Done(recs[1:]...)
	eventually(t, "ten writes without room", func() bool { return disk.Refused.Load() >= 10 })
	disk.Nothing.Store(false)
	for range 10 {
		must(t, within(t, opened))
	}
	closeLog(t, l)
}

// TestWaitingForRoomIsQuiet has a cursor opened on a disk that takes nothing at all: the log tries now and then, not all the time.
func TestWaitingForRoomIsQuiet(t *testing.T) {
	dir := t.TempDir()
	rec := wal.NewRecorder(dir)
	var full atomic.Bool
	var tries atomic.Int64
	rec.OnCall(func(c wal.Call) error {
		if full.Load() && (c == wal.PagesWrite || c == wal.PlainWrite) {
			tries.Add(1)
			return syscall.ENOSPC
		}
		return nil
	})
	l := open(t, dir, rec.Under(wal.Options{SegmentBytes: small}))
	must(t, put(t, l, batch("s", 1, 3, 10)))
	full.Store(true)
	opened := make(chan error, 1)
	go func() {
		_, err := l.Cursor("u", "s", wal.Oldest)
		opened <- err
	}()
	eventually(t, "the log has tried", func() bool { return tries.Load() > 0 })
	time.Sleep(300 * time.Millisecond)
	if n := tries.Load(); n > 10 {
		t.Errorf("%d tries in 300 ms on a full disk", n)
	}
	full.Store(false)
	must(t, within(t, opened))
}

func TestCloseOnAFullDisk(t *testing.T) {
	var disk wal.Disk
	l := open(t, t.TempDir(), disk.Under(wal.Options{}))
	must(t, put(t, l, batch("s", 1, 1, 10)))
	disk.Full.Store(true)
	results := make(chan error, 1)
	must(t, l.Append(t.Context(), batch("s", 2, 2, 100_000), func(err error) { results <- err }))
	if err := l.Close(); err == nil {
		t.Error("Close said nothing of what it could not store")
	}
	if err := within(t, results); !errors.Is(err, wal.ErrClosed) || !errors.Is(err, wal.ErrFull) {
		t.Errorf("callback with %v", err)
	}
}

func TestWriteErrorStopsTheLog(t *testing.T) {
	for _, test := range []struct {
		name string
		fail func(*wal.Disk)
	}{
		{"pages cannot be written", func(d *wal.Disk) { d.FailData.Store(true) }},
		{"the meta page cannot be written", func(d *wal.Disk) { d.FailMeta.Store(true) }},
		{"the flush fails", func(d *wal.Disk) { d.FailSync.Store(true) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			var disk wal.Disk
			var out lockedBuffer
			dir := t.TempDir()
			o := disk.Under(wal.Options{Log: slog.New(slog.NewTextHandler(&out, nil))})
			l, err := wal.Open(dir, o)
			must(t, err)
			c := cursor(t, l, "u", "s")
			must(t, put(t, l, batch("s", 1, 10, 100)))
			test.fail(&disk)
			errs := make(chan error, 20)
			accepted := 0
			for n := 11; n <= 30; n++ {
				b := batch("s", n, n, 100)
				b.Urgent = true
				if err := l.Append(t.Context(), b, func(err error) { errs <- err }); err == nil {
					accepted++
				} else if !errors.Is(err, wal.ErrStopped) {
					t.Errorf("Append = %v, want ErrStopped", err)
				}
			}
			for range accepted {
				if err := within(t, errs); !errors.Is(err, wal.ErrStopped) {
					t.Fatalf("callback with %v, want ErrStopped", err)
				}
			}
			// The disk is well again, and still nothing is acknowledged.
			disk.FailData.Store(false)
			disk.FailMeta.Store(false)
			if err := put(t, l, batch("s", 31, 31, 10)); !errors.Is(err, wal.ErrStopped) {
				t.Errorf("Append = %v, want ErrStopped", err)
			}
			if _, err := l.Cursor("new", "s", wal.Oldest); !errors.Is(err, wal.ErrStopped) {
				t.Errorf("Cursor = %v, want ErrStopped", err)
			}
			if s := l.Stats(); s.State != wal.StateStopped || !errors.Is(l.Err(), wal.ErrStopped) {
				t.Errorf("state %s, error %v", s.State, l.Err())
			}
			expect(t, c, "s", 1, 10, 100)
			if _, err := c.Read(t.Context(), 1, 1); !errors.Is(err, wal.ErrStopped) {
				t.Errorf("Read at the end = %v, want ErrStopped", err)
			}
			if err := l.Close(); !errors.Is(err, wal.ErrStopped) {
				t.Errorf("Close = %v, want ErrStopped", err)
			}
			if n := strings.Count(out.String(), "log has stopped"); n != 1 {
				t.Errorf("%d lines say that the log has stopped, want 1", n)
			}
			expect(t, cursor(t, open(t, dir, wal.Options{}), "u", "s"), "s", 1, 10, 100)
		})
	}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// logWith makes a closed log of segments that are all needed, with 30 records of 10 kB in stream s.
func logWith(t *testing.T, dir string) {
	t.Helper()
	l := open(t, dir, wal.Options{SegmentBytes: small, NewEpoch: 7})
	cursor(t, l, "u", "s")
	for n := 1; n <= 30; n++ {
		must(t, put(t, l, batch("s", n, n, 10_000)))
	}
	for n := range 2 {
		must(t, put(t, l, wal.Batch{State: []wal.Change{{Key: "n", Value: []byte{byte(n)}}}}))
	}
	closeLog(t, l)
	if n := len(segments(t, dir)); n < 4 {
		t.Fatalf("%d segments, want at least 4", n)
	}
}

func TestRecovery(t *testing.T) {
	newest := func(t *testing.T, dir string) string { s := segments(t, dir); return s[len(s)-1] }
	patch := func(t *testing.T, path string, off int64, b []byte) {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		must(t, err)
		_, err = f.WriteAt(b, off)
		must(t, errors.Join(err, f.Close()))
	}
	setHeader := func(t *testing.T, path string, change func([]byte)) {
		db, err := bbolt.Open(path, 0o600, nil)
		must(t, err)
		must(t, db.Update(func(tx *bbolt.Tx) error {
			b := tx.Bucket([]byte("h"))
			v := append([]byte(nil), b.Get([]byte("h"))...)
			v = v[:len(v)-4]
			change(v)
			sum := crc32.Checksum(append([]byte("h"), v...), crc32.MakeTable(crc32.Castagnoli))
			return b.Put([]byte("h"), binary.LittleEndian.AppendUint32(v, sum))
		}))
		must(t, db.Close())
	}
	for _, test := range []struct {
		name    string
		damage  func(t *testing.T, dir string)
		want    error
		dropped bool // the oldest records are counted as missing
	}{
		{name: "an unharmed log opens", damage: func(*testing.T, string) {}},
		{name: "a half-made segment is deleted", damage: func(t *testing.T, dir string) {
			must(t, os.WriteFile(filepath.Join(dir, "00000099.tmp"), []byte("half"), 0o600))
		}},
		// Of the last two commits, which wrote no records, one is lost.
		{name: "the first meta page is torn", damage: func(t *testing.T, dir string) {
			patch(t, newest(t, dir), 16, make([]byte, 8))
		}},
		{name: "the second meta page is torn", damage: func(t *testing.T, dir string) {
			patch(t, newest(t, dir), 4096+16, make([]byte, 8))
		}},
		{name: "the oldest segments are missing", dropped: true, damage: func(t *testing.T, dir string) {
			must(t, os.Remove(segments(t, dir)[0]))
			must(t, os.Remove(segments(t, dir)[0]))
		}},
		{name: "a segment in the middle is missing", want: wal.ErrDamaged, damage: func(t *testing.T, dir string) {
			must(t, os.Remove(segments(t, dir)[1]))
		}},
		{name: "the newest segment is cut short", want: wal.ErrDamaged, damage: func(t *testing.T, dir string) {
			must(t, os.Truncate(newest(t, dir), 12<<10))
		}},
		{name: "the newest segment is empty", want: wal.ErrDamaged, damage: func(t *testing.T, dir string) {
			must(t, os.Truncate(newest(t, dir), 0))
		}},
		{name: "both meta pages are garbage", want: wal.ErrDamaged, damage: func(t *testing.T, dir string) {
			patch(t, newest(t, dir), 0, make([]byte, 8192))
		}},
		{name: "a sealed segment is garbage", want: wal.ErrDamaged, damage: func(t *testing.T, dir string) {
			must(t, os.WriteFile(segments(t, dir)[1], make([]byte, 64<<10), 0o600))
		}},
		{name: "a segment of another log is in between", want: wal.ErrDamaged, damage: func(t *testing.T, dir string) {
			other := t.TempDir()
			logWith(t, other)
			b, err := os.ReadFile(segments(t, other)[1])
			must(t, err)
			must(t, os.WriteFile(segments(t, dir)[1], b, 0o600))
		}},
		{name: "two segments have changed places", want: wal.ErrDamaged, damage: func(t *testing.T, dir string) {
			s := segments(t, dir)
			must(t, os.Rename(s[0], s[0]+"x"))
			must(t, os.Rename(s[1], s[0]))
			must(t, os.Rename(s[0]+"x", s[1]))
		}},
		{name: "a foreign name", want: wal.ErrDamaged, damage: func(t *testing.T, dir string) {
			must(t, os.WriteFile(filepath.Join(dir, "copy.seg"), nil, 0o600))
		}},
		{name: "a newer format", want: wal.ErrVersion, damage: func(t *testing.T, dir string) {
			setHeader(t, newest(t, dir), func(v []byte) { v[0] = 4 })
		}},
		{name: "a flipped bit in a header", want: wal.ErrDamaged, damage: func(t *testing.T, dir string) {
			b, err := os.ReadFile(newest(t, dir))
			must(t, err)
			flipAll(b, "h\x03") // key, and the first byte of its value: version 3
			must(t, os.WriteFile(newest(t, dir), b, 0o600))
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			logWith(t, dir)
			test.damage(t, dir)
			l, err := wal.Open(dir, wal.Options{SegmentBytes: small, NewEpoch: 9})
			if !errors.Is(err, test.want) || err != nil && test.want == nil {
				t.Fatalf("Open = %v, want %v", err, test.want)
			}
			if _, ierr := wal.Inspect(dir); !errors.Is(ierr, test.want) || ierr != nil && test.want == nil {
				t.Errorf("Inspect = %v, want %v", ierr, test.want)
			}
			if err != nil {
				// It is free again, and says the same once more.
				if _, again := wal.Open(dir, wal.Options{}); !errors.Is(again, test.want) {
					t.Errorf("second Open = %v, want %v", again, test.want)
				}
				return
			}
			defer l.Close()
			if tmp, _ := filepath.Glob(filepath.Join(dir, "*.tmp")); len(tmp) > 0 || l.Epoch() != 7 {
				t.Errorf("left over: %v; epoch %d, want 7", tmp, l.Epoch())
			}
			c := cursor(t, l, "u", "s")
			first := 1
			if test.dropped {
				r := l.Stats().Ranges
				if len(r) != 1 || r[0].First != 1 || r[0].Why != wal.DroppedMissing {
					t.Fatalf("ranges %+v", r)
				}
				first = int(r[0].Last) + 1
			}
			expect(t, c, "s", first, 30, 10_000)
			must(t, put(t, l, batch("s", 31, 31, 10)))
			expect(t, c, "s", 31, 31, 10)
		})
	}
}

func flipAll(b []byte, what string) {
	for i := range len(b) - len(what) {
		if string(b[i:i+len(what)]) == what {
			b[i+len(what)+10] ^= 1
		}
	}
}

func TestFlippedBitInARecord(t *testing.T) {
	dir := t.TempDir()
	logWith(t, dir)
	for _, path := range segments(t, dir) {
		b, err := os.ReadFile(path)
		must(t, err)
		if i := strings.Index(string(b), string(data("s", 10, 1000))); i >= 0 {
			b[i+5000] ^= 4
			must(t, os.WriteFile(path, b, 0o600))
		}
	}
	c := cursor(t, open(t, dir, wal.Options{SegmentBytes: small}), "u", "s")
	expect(t, c, "s", 1, 9, 10_000)
	for range 2 {
		if recs, err := c.Read(t.Context(), 1, 1); !errors.Is(err, wal.ErrDamaged) {
			t.Errorf("Read = %d records, %v, want ErrDamaged", len(recs), err)
		}
	}
}

func TestInspectOfALogThatIsWritten(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, wal.Options{SegmentBytes: small, NewEpoch: 5})
	c := cursor(t, l, "u", "s")
	stop := make(chan struct{})
	var acked atomic.Uint64
	var wg sync.WaitGroup
	wg.Go(func() {
		for n := 1; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			b := batch("s", n, n, 3000)
			b.State = []wal.Change{{Key: "n", Value: fmt.Append(nil, n)}}
			if err := put(t, l, b); err != nil {
				t.Errorf("put while inspected: %v", err)
				return
			}
			acked.Store(uint64(n))
			c.Done(expect(t, c, "s", n, n, 3000)...)
		}
	})
	for i := 0; i < 200 || acked.Load() < 300; i++ {
		before := acked.Load()
		r, err := wal.Inspect(dir)
		if err != nil {
			t.Fatalf("Inspect: %v", err)
		}
		last := r.Segments[len(r.Segments)-1].Last
		if r.Epoch != 5 || r.Holder != os.Getpid() || last < before || len(r.Cursors) != 1 || r.Cursors[0].Seq > last {
			t.Fatalf("%d acked, report %+v", before, r)
		}
		if len(r.Streams) == 1 && r.Streams[0].Records != last {
			t.Fatalf("stream has %d records, the lane %d", r.Streams[0].Records, last)
		}
	}
	close(stop)
	wg.Wait()
	closeLog(t, l)
	r, err := wal.Inspect(dir)
	if err != nil || r.Holder != 0 || r.StateKeys != 1 || r.Cursors[0].Lag.Records != 0 {
		t.Errorf("Inspect of a closed log: %+v, %v", r, err)
	}
	if _, err := wal.Inspect(t.TempDir()); err == nil {
		t.Error("Inspect of an empty directory found a log")
	}
}
