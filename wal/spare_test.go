package wal_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"edgegateway/wal"
)

func TestTheEmptyFileIsWhatBboltMakes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "empty.db")
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{PageSize: 4096})
	must(t, err)
	must(t, db.Close())
	want, err := os.ReadFile(path)
	must(t, err)
	if got := wal.EmptyFile(); !bytes.Equal(got, want[:len(got)]) {
		t.Error("the empty file differs from that of bbolt")
	}
}

// names returns how many files of each kind the directory has.
func names(t *testing.T, dir string) map[string]int {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	n := map[string]int{}
	for _, e := range entries {
		n[filepath.Ext(e.Name())]++
	}
	return n
}

// through appends and confirms records until the log has begun n segments more.
func through(t *testing.T, l *wal.Log, c *wal.Cursor, from, n int) (next int) {
	t.Helper()
	begun := wal.Begun(l)
	for wal.Begun(l) < begun+uint64(n) {
		must(t, put(t, l, batch("s", from, from+9, 500)))
		c.Done(expect(t, c, "s", from, from+9, 500)...)
		from += 10
	}
	return from
}

func TestInSteadyStateTheLogNeitherGrowsNorFreesFiles(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, wal.Options{SegmentBytes: small})
	c := cursor(t, l, "u", "s")
	next := through(t, l, c, 1, 6) // until there are files to use again
	used := inodes(t, dir)
	next = through(t, l, c, next, 20)
	after := inodes(t, dir)
	for ino, size := range after {
		if used[ino] != size {
			t.Errorf("a file has %d bytes and had %d: the log has grown", size, used[ino])
		}
	}
	if n := names(t, dir); n[".seg"]+n[".spare"] > 3 {
		t.Errorf("%v files, want at most 3 segments and spares", n)
	}
	closeLog(t, l)
	// The spares outlive a restart, and an unknown or a small one does not.
	must(t, os.WriteFile(filepath.Join(dir, "x.spare"), make([]byte, 100), 0o600))
	l = open(t, dir, wal.Options{SegmentBytes: small})
	if _, err := os.Stat(filepath.Join(dir, "x.spare")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a spare of 100 bytes: %v, want it unlinked", err)
	}
	c = cursor(t, l, "u", "s")
	through(t, l, c, next, 3)
	for ino := range inodes(t, dir) {
		if _, ok := used[ino]; !ok {
			t.Error("after a restart a new file was made, and the spares were there")
		}
	}
	closeLog(t, l)
}

// inodes returns the sizes of segments and spares by their inode.
func inodes(t *testing.T, dir string) map[uint64]int64 {
	t.Helper()
	out := map[uint64]int64{}
	entries, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range entries {
		if info, err := e.Info(); err == nil && e.Name() != "LOCK" {
			out[info.Sys().(*syscall.Stat_t).Ino] = info.Size()
		}
	}
	return out
}

func TestADrainedBacklogLeavesAtMostThreeFiles(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, wal.Options{SegmentBytes: small})
	c := cursor(t, l, "u", "s")
	for n := 1; n <= 4000; n += 100 {
		must(t, put(t, l, batch("s", n, n+99, 500)))
	}
	if n := names(t, dir)[".seg"]; n < 20 {
		t.Fatalf("%d segments, want a backlog of at least 20", n)
	}
	for n := 1; n <= 4000; n += 100 {
		c.Done(expect(t, c, "s", n, n+99, 500)...)
	}
	eventually(t, "one segment and two spares", func() bool { n := names(t, dir); return n[".seg"] == 1 && n[".spare"] == 2 })
	closeLog(t, l)
}

func TestSparesGiveWayToRecords(t *testing.T) {
	dir := t.TempDir()
	const most = 8 * small
	l := open(t, dir, wal.Options{SegmentBytes: small, MaxBytes: most, Full: wal.DropNewest})
	c := cursor(t, l, "u", "s")
	next := through(t, l, c, 1, 4)
	first := next
	for ; ; next++ {
		if err := put(t, l, batch("s", next, next, 5000)); errors.Is(err, wal.ErrFull) {
			break
		} else {
			must(t, err)
		}
	}
	if stored := (next - first) * 5000; stored < most/4 {
		t.Errorf("%d bytes were taken, want at least a quarter of max_bytes", stored)
	}
	if s := l.Stats(); s.Disk > most {
		t.Errorf("%d bytes on disk, max_bytes is %d", s.Disk, most)
	}
	expect(t, c, "s", first, next-1, 5000)
	closeLog(t, l)
}

func TestAnErrorWhileASpareIsEmptiedStopsTheLog(t *testing.T) {
	dir := t.TempDir()
	rec := wal.NewRecorder(dir)
	var fail atomic.Bool
	rec.OnCall(func(c wal.Call) error {
		if fail.Load() && c == wal.PlainFlush {
			return syscall.EIO
		}
		return nil
	})
	l := open(t, dir, rec.Under(wal.Options{SegmentBytes: small}))
	c := cursor(t, l, "u", "s")
	fail.Store(true)
	for n := 1; l.Err() == nil && n < 5000; n += 10 {
		if err := put(t, l, batch("s", n, n+9, 500)); err != nil {
			break
		}
		c.Done(expect(t, c, "s", n, n+9, 500)...)
	}
	eventually(t, "the log stops", func() bool { return errors.Is(l.Err(), wal.ErrStopped) })
	if err := put(t, l, batch("s", 9999, 9999, 10)); !errors.Is(err, wal.ErrStopped) {
		t.Errorf("Append = %v, want ErrStopped", err)
	}
	_ = l.Close()
}

func TestSmallRecordsShareAPageAndComeBackInOrder(t *testing.T) {
	dir := t.TempDir()
	o := wal.Options{SegmentBytes: 256 << 10}
	l := open(t, dir, o)
	cursor(t, l, "u", "s")
	size := func(n int) int {
		if n%97 == 0 {
			return 6000 // comes between, and takes what waits in the page with it
		}
		return 256
	}
	before := l.Stats()
	buf := make([]byte, 6000) // the caller's, which is free to change after the callback
	for n := 1; n <= 400; n++ {
		own := buf[:copy(buf, data("s", n, size(n)))]
		b := wal.Batch{Urgent: true, Entries: []wal.Entry{{Stream: "s", Time: time.Now(), Data: own}}}
		if n%3 == 0 {
			b.Entries = append(b.Entries, wal.Entry{Stream: "other", Data: []byte("x")})
		}
		must(t, put(t, l, b))
	}
	s := l.Stats()
	if per := (s.Written - before.Written) / (s.Commits - before.Commits); per > 14<<10 {
		t.Errorf("%d bytes were written for a commit of one record, want at most 14 KiB", per)
	}
	for last := 400; last < 403; last++ {
		closeLog(t, l)
		l = open(t, dir, o)
		must(t, put(t, l, batch("s", last+1, last+1, 256)))
		c := cursor(t, l, "u", "s")
		for n := 1; n <= last+1; {
			for _, r := range read(t, c, 100) {
				if r.Seq != uint64(n) || !bytes.Equal(r.Data, data("s", n, size(n))) {
					t.Fatalf("record %d holds something else than %d", r.Seq, n)
				}
				n++
			}
		}
	}
	closeLog(t, l)
}

// A commit flushes twice. What a rotation flushes beside that is shared by the commits of a segment, here as few as a segment
// of the default size has with a thousand producers.
func TestFlushesPerCommitInSteadyState(t *testing.T) {
	dir := t.TempDir()
	rec := wal.NewRecorder(dir)
	var flushes, grown atomic.Int64
	rec.OnCall(func(c wal.Call) error {
		switch c {
		case wal.PagesFlush, wal.MetaFlush, wal.PlainFlush, wal.DirFlush:
			flushes.Add(1)
		case wal.Create:
			grown.Add(1)
		default:
		}
		return nil
	})
	l := open(t, dir, rec.Under(wal.Options{SegmentBytes: 1 << 20}))
	c := cursor(t, l, "u", "s")
	n := 1
	until := func(begun uint64) {
		for wal.Begun(l) < begun {
			must(t, put(t, l, batch("s", n, n+59, 256)))
			c.Done(expect(t, c, "s", n, n+59, 256)...)
			n += 60
		}
	}
	until(4)
	commits := l.Stats().Commits
	flushes.Store(0)
	grown.Store(0)
	until(12)
	ratio := float64(flushes.Load()) / float64(l.Stats().Commits-commits)
	t.Logf("%.3f flushes per commit over 8 rotations", ratio)
	if ratio < 2 || ratio > 2.3 {
		t.Errorf("%.3f flushes per commit, want 2.0 to 2.3", ratio)
	}
	if n := grown.Load(); n > 0 {
		t.Errorf("%d files were made in steady state, want none", n)
	}
	closeLog(t, l)
}
