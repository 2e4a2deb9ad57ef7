package blockcut_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"edgegateway/test/blockcut/blockdev"
	"edgegateway/wal"
)

// TestFailedWritesAndFlushes has writes or flushes of the device fail with EIO, from the n-th on or the n-th only. Nothing may
// be acknowledged after the first that could not be, the log has to stop where the fault stays, and what was acknowledged has
// to be on the medium: with the power cut then, too.
func TestFailedWritesAndFlushes(t *testing.T) {
	for _, test := range []struct {
		name  string
		fault blockdev.Fault
		step  int64
	}{
		{"writes from the n-th on", blockdev.Fault{Ops: blockdev.OpWrite}, 9},
		{"the n-th write only", blockdev.Fault{Ops: blockdev.OpWrite, Times: 1}, 9},
		{"flushes from the n-th on", blockdev.Fault{Ops: blockdev.OpFlush}, 5},
		{"the n-th flush only", blockdev.Fault{Ops: blockdev.OpFlush, Times: 1}, 5},
		{"both from the n-th on", blockdev.Fault{Ops: blockdev.OpWrite | blockdev.OpFlush}, 14},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := profiles()[0]
			p.items = 15
			d := newDevice(t, imageMiB)
			c := newCutter(t, d)
			var met, stopped, points int
			for n := range int64(12) {
				s := newScene(t, d, p, uint64(n))
				s.fault = test.fault
				s.fault.After = n * test.step
				s.perform()
				met += s.met
				stopped += s.stopped
				n, wrong := c.cutEnd(s)
				points += n
				for _, w := range wrong {
					t.Errorf("%d went well first: %s", s.fault.After, w)
				}
			}
			t.Logf("the fault was met in %d scenes of 12, the log stopped in %d; %d points", met, stopped, points)
			if stopped < 8 {
				t.Errorf("the log has stopped in %d scenes of 12: too few to prove anything", stopped)
			}
		})
	}
}

// cutEnd cuts at the end of a scene only.
func (c *cutter) cutEnd(s *scene) (points int, wrong []string) {
	c.s, c.points, c.wrong = s, 0, nil
	events, err := s.d.Events()
	must(s.t, err)
	for _, v := range blockdev.Variants(waiting(events)[len(events)]) {
		c.examine(blockdev.Cut{At: len(events), Variant: v, Seed: s.rnd.Uint64()})
	}
	return c.points, c.wrong
}

// openOn returns a log on a new device, and the directory where that is mounted.
func openOn(t *testing.T, d *blockdev.Device, o wal.Options) (l *wal.Log, at string) {
	t.Helper()
	at = t.TempDir()
	dir, err := mount(d, at, "")
	must(t, err)
	l, err = wal.Open(dir, o)
	must(t, err)
	return l, at
}

// numbered is the data of the n-th record: what it is, and bytes that nothing makes smaller.
func numbered(n, size int) []byte {
	b := make([]byte, size)
	x := uint32(n)*2654435761 + 1
	for i := range b {
		x ^= x << 13
		x ^= x >> 17
		x ^= x << 5
		b[i] = byte(x)
	}
	copy(b, fmt.Sprintf("%08d", n))
	return b
}

// TestFullDisk fills a small ext4 by another file while the log is used. The log must say that it is full, acknowledge
// nothing that it does not hold, be drained all the same, and go on by itself when there is room.
func TestFullDisk(t *testing.T) {
	d := newDevice(t, 16)
	l, at := openOn(t, d, wal.Options{SegmentBytes: 256 << 10})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, err := l.Cursor("x", "s", wal.Oldest)
	must(t, err)
	const size = 2000
	acks := make(chan error, 10_000)
	appended := 0
	appendOne := func() {
		appended++
		b := wal.Batch{Entries: []wal.Entry{{Stream: "s", Data: numbered(appended, size)}}, Urgent: true}
		must(t, l.Append(ctx, b, func(err error) { acks <- err }))
	}
	for appended < 700 {
		appendOne()
		for appended%50 == 0 && len(acks) < appended {
			time.Sleep(time.Millisecond) // small commits, so that there are many segments
		}
	}
	fill(t, filepath.Join(at, "filler"))
	for l.Stats().State != wal.StateFull {
		if appended > 5000 {
			t.Fatal("the disk is full, the log is not")
		}
		appendOne()
		time.Sleep(time.Millisecond)
	}
	acked := len(acks)
	t.Logf("full with %d records acknowledged of %d, %d segments", acked, appended, l.Stats().Segments)
	if acked == 0 || acked == appended {
		t.Errorf("%d records of %d are acknowledged on a full disk", acked, appended)
	}

	// Drain it. The filler stays: the space has to come from the log's own segments.
	next := 1
	for next <= appended {
		recs, err := c.Read(ctx, 0, 0)
		must(t, err)
		for _, r := range recs {
			if r.Seq != uint64(next) || string(r.Data) != string(numbered(next, size)) {
				t.Fatalf("record %d came as %d", next, r.Seq)
			}
			next++
		}
		c.Done(recs...)
	}
	for range appended {
		must(t, <-acks)
	}
	if s := l.Stats().State; s != wal.StateOK {
		t.Errorf("the log is drained and still %s", s)
	}
	must(t, os.Remove(filepath.Join(at, "filler")))
	appendOne()
	must(t, <-acks)
	must(t, l.Close())
	r, err := wal.Inspect(filepath.Join(at, "log"))
	must(t, err)
	if got := r.Cursors[0].Seq; got != uint64(next-1) || r.Streams[0].Records != uint64(next) {
		t.Errorf("cursor at %d of %d records, want %d of %d", got, r.Streams[0].Records, next-1, next)
	}
	must(t, d.Unmount())
}

// TestFullDiskOtherPolicies does the same where a full log refuses, or drops: neither may stop it.
func TestFullDiskOtherPolicies(t *testing.T) {
	for _, policy := range []wal.Policy{wal.DropNewest, wal.DropOldest} {
		t.Run(string(policy), func(t *testing.T) {
			d := newDevice(t, 16)
			l, at := openOn(t, d, wal.Options{SegmentBytes: 256 << 10, Full: policy})
			_, err := l.Cursor("x", "s", wal.Oldest) // keeps the records
			must(t, err)
			answers := make(chan error, 1)
			held := map[uint64]int{} // sequence → number
			seq, refused := uint64(0), 0
			appendOne := func(n int) {
				b := wal.Batch{Entries: []wal.Entry{{Stream: "s", Data: numbered(n, 2000)}}, Urgent: true}
				err := l.Append(t.Context(), b, func(err error) { answers <- err })
				if err == nil {
					err = <-answers
				}
				switch {
				case err == nil:
					seq++
					held[seq] = n
				case policy == wal.DropNewest && errors.Is(err, wal.ErrFull):
					refused++
				default:
					t.Fatal(err)
				}
			}
			for n := range 1500 {
				if n == 700 {
					fill(t, filepath.Join(at, "filler"))
				}
				appendOne(n)
			}
			s := l.Stats()
			dropped := s.Streams[0].Dropped
			t.Logf("%d records, %d refused, %d dropped", seq, refused, dropped)
			if s.Refused != uint64(refused) || (policy == wal.DropNewest) != (refused > 0) || (policy == wal.DropOldest) != (dropped > 0) {
				t.Errorf("%d refused, the log counts %d; %d dropped", refused, s.Refused, dropped)
			}
			if err := l.Close(); err != nil && !errors.Is(err, unix.ENOSPC) {
				t.Fatal(err)
			}
			must(t, d.Unmount())
			dir, err := mount(d, at, "")
			must(t, err)
			l, err = wal.Open(dir, wal.Options{})
			must(t, err)
			c, err := l.Cursor("x", "s", wal.Oldest)
			must(t, err)
			for next := dropped + 1; next <= seq; {
				recs, err := c.Read(t.Context(), 0, 0)
				must(t, err)
				for _, r := range recs {
					if r.Seq != next || string(r.Data) != string(numbered(held[next], 2000)) {
						t.Fatalf("record %d came as %d", next, r.Seq)
					}
					next++
				}
				c.Done(recs...)
			}
			must(t, l.Close())
			must(t, d.Unmount())
		})
	}
}

// fill takes all the room that a file system has.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	must(t, err)
	defer func() { must(t, f.Close()) }()
	for size := 1 << 20; size >= 4096; {
		if _, err := f.Write(make([]byte, size)); errors.Is(err, unix.ENOSPC) {
			size /= 2
		} else {
			must(t, err)
		}
	}
	if err := f.Sync(); err != nil && !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
}

// TestBadSector has a sector of a sealed segment become unreadable after the segment was opened: EIO, or SIGBUS where the log reads
// through a map. The read fails with ErrDamaged and the process lives; other blocks are read, and so is this one when it can be.
func TestBadSector(t *testing.T) {
	d := newDevice(t, imageMiB)
	l, at := openOn(t, d, wal.Options{SegmentBytes: 1 << 20})
	c, err := l.Cursor("x", "s", wal.Oldest)
	must(t, err)
	const size, records = 60_000, 60
	for n := range records {
		done := make(chan error, 1)
		b := wal.Batch{Entries: []wal.Entry{{Stream: "s", Data: numbered(n+1, size)}}, Urgent: true}
		must(t, l.Append(t.Context(), b, func(err error) { done <- err }))
		must(t, <-done)
	}
	must(t, l.Close())
	must(t, d.Unmount()) // so that nothing is in memory
	dir, err := mount(d, at, "")
	must(t, err)
	l, err = wal.Open(dir, wal.Options{SegmentBytes: 1 << 20})
	must(t, err)
	c, err = l.Cursor("x", "s", wal.Oldest)
	must(t, err)
	read := func() (wal.Record, error) {
		recs, err := c.Read(t.Context(), 1, 1)
		if err != nil {
			return wal.Record{}, err
		}
		return recs[0], nil
	}
	first, err := read() // the segment is open now, and its pages were looked at
	must(t, err)
	c.Done(first)

	const bad = 8 // a record in the middle of the first segment
	path := filepath.Join(dir, "00000001.seg")
	off := offsetOf(t, path, numbered(bad, size)[:64])
	forget(t, path)
	must(t, d.Fail(blockdev.Fault{Ops: blockdev.OpRead, Off: placeOf(t, path, off), Len: 4096}))
	for n := 2; n < bad; n++ {
		r, err := read()
		must(t, err)
		if r.Seq != uint64(n) {
			t.Fatalf("record %d came as %d", n, r.Seq)
		}
		c.Done(r)
	}
	_, err = read()
	if !errors.Is(err, wal.ErrDamaged) {
		t.Fatalf("a bad sector gives %v, want ErrDamaged", err)
	}
	t.Log(err)
	counts, err := d.Counts()
	must(t, err)
	if counts.Failed == 0 {
		t.Error("the sector was never read")
	}
	must(t, d.Fail(blockdev.Fault{}))
	c.Rewind()
	for n := bad; n <= records; n++ {
		r, err := read()
		must(t, err)
		if r.Seq != uint64(n) || string(r.Data) != string(numbered(n, size)) {
			t.Fatalf("record %d came as %d", n, r.Seq)
		}
		c.Done(r)
	}
	must(t, l.Close())
	must(t, d.Unmount())
}

// offsetOf returns where data begins in a file.
func offsetOf(t *testing.T, path string, data []byte) int64 {
	t.Helper()
	b, err := os.ReadFile(path)
	must(t, err)
	i := strings.Index(string(b), string(data))
	if i < 0 {
		t.Fatal("the record is not in the file as it is")
	}
	return int64(i)
}

// forget has the kernel forget the pages of a file that nobody has mapped yet.
func forget(t *testing.T, path string) {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	defer func() { must(t, f.Close()) }()
	must(t, unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED))
}
