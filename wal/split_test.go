package wal_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"edgegateway/wal"
)

// copyLog copies a log as a crash would leave it now.
func copyLog(t *testing.T, dir string) string {
	t.Helper()
	to := t.TempDir()
	must(t, os.CopyFS(filepath.Join(to, "log"), os.DirFS(dir)))
	return filepath.Join(to, "log")
}

func TestASplitGoesOnAsOneCursorWhereverACrashFalls(t *testing.T) {
	dir := t.TempDir()
	o := wal.Options{SegmentBytes: small}
	l := open(t, dir, o)
	first := cursor(t, l, "u", "s")
	must(t, put(t, l, batch("s", 1, 300, 100)))
	first.Done(expect(t, first, "s", 1, 50, 100)...)
	flush := func() { must(t, put(t, l, wal.Batch{State: []wal.Change{{Key: "flush", Value: []byte{1}}}})) }
	flush()

	crashes := map[string]string{"before the split": copyLog(t, dir)}
	after := first.Split()
	if after != 300 {
		t.Fatalf("Split = %d, want 300", after)
	}
	second, err := l.Cursor(wal.SplitName("u", after), "s", wal.After(after))
	must(t, err)
	crashes["split"] = copyLog(t, dir)
	must(t, put(t, l, batch("s", 301, 400, 100)))
	live := expect(t, second, "s", 301, 400, 100)
	second.Done(live[:60]...)
	second.Refuse(live[99], wal.Refusal{Reason: "too large"})
	flush()
	crashes["the second one is ahead"] = copyLog(t, dir)

	rest := expect(t, first, "s", 51, 300, 100)
	first.Done(rest[:200]...)
	if lag := first.Lag(); lag.Records != 50 || lag.Bytes != 50*100 {
		t.Errorf("the first one's lag is %+v, want 50 records of 100 B", lag)
	}
	if err := l.Succeed("u", "s", after); err == nil {
		t.Error("the second one has succeeded an open cursor")
	}
	first.Done(rest[200:249]...)
	nothing(t, first)
	first.Done(rest[249])
	if recs, err := first.Read(t.Context(), 10, 0); !errors.Is(err, wal.ErrEnd) {
		t.Fatalf("Read at the end = %d records, %v, want ErrEnd", len(recs), err)
	}
	flush()
	crashes["the first one is done"] = copyLog(t, dir)
	first.Close()
	must(t, l.Succeed("u", "s", after))
	crashes["succeeded"] = copyLog(t, dir)
	second.Done(live[60:80]...)
	second.Refuse(live[80], wal.Refusal{Reason: "too old"})
	flush()
	crashes["and went on"] = copyLog(t, dir)
	closeLog(t, l)

	for name, copied := range crashes {
		t.Run(name, func(t *testing.T) {
			l := open(t, copied, o)
			sent := map[uint64]int{}
			drain := func(c *wal.Cursor) {
				for {
					if seq, tail := c.Position(); seq == tail {
						return
					}
					recs, err := c.Read(t.Context(), 1000, 0)
					if errors.Is(err, wal.ErrEnd) {
						return
					}
					must(t, err)
					for _, r := range recs {
						sent[r.Seq]++
					}
					c.Done(recs...)
				}
			}
			before := map[uint64]bool{}
			for _, c := range l.Cursors() {
				_, after, _ := wal.ParseSplit(c.Uplink)
				for seq := after + 1; seq <= c.Seq; seq++ {
					before[seq] = true
				}
			}
			c := cursor(t, l, "u", "s")
			for _, info := range l.Cursors() {
				_, after, ok := wal.ParseSplit(info.Uplink)
				if !ok {
					continue
				}
				second, err := l.Cursor(info.Uplink, "s", wal.Newest)
				must(t, err)
				drain(second)
				c.Until(after)
				drain(c)
				c.Close()
				must(t, l.Succeed("u", "s", after))
				c = second
			}
			must(t, put(t, l, batch("s", 1001, 1005, 100)))
			drain(c)
			must(t, put(t, l, wal.Batch{State: []wal.Change{{Key: "flush", Value: []byte{2}}}}))
			left := l.Cursors()
			if len(left) != 1 || left[0].Uplink != "u" || left[0].Lag.Records != 0 {
				t.Errorf("cursors %+v, want u alone at the end", left)
			}
			letters := map[uint64]bool{}
			l.DeadLetters(func(d wal.DeadLetter) bool {
				letters[d.Seq] = true
				if d.Uplink != "u" {
					t.Errorf("dead letter %d is %q's, want u's", d.Seq, d.Uplink)
				}
				return true
			})
			for seq := uint64(1); seq <= left[0].Seq; seq++ {
				switch {
				case sent[seq] == 0 && !before[seq] && !letters[seq]:
					t.Errorf("record %d is lost", seq)
				case sent[seq] > 1 || sent[seq] == 1 && before[seq]:
					t.Errorf("record %d is read %d times, and had its outcome: %v", seq, sent[seq], before[seq])
				}
			}
		})
	}
}

func TestNamesOfSecondCursors(t *testing.T) {
	for name, want := range map[string]struct {
		uplink string
		after  uint64
		second bool
	}{
		"cloud":                {"cloud", 0, false},
		wal.SplitName("a", 12): {"a", 12, true},
		"a+after:":             {"a+after:", 0, false},
		"a+after:1x":           {"a+after:1x", 0, false},
		"a+after:0":            {"a", 0, true},
	} {
		uplink, after, second := wal.ParseSplit(name)
		if uplink != want.uplink || after != want.after || second != want.second {
			t.Errorf("ParseSplit(%q) = %q, %d, %v, want %+v", name, uplink, after, second, want)
		}
	}
}

func TestAFirstCursorThatIsNotThroughIsNotSucceeded(t *testing.T) {
	l := open(t, t.TempDir(), wal.Options{})
	first := cursor(t, l, "u", "s")
	must(t, put(t, l, batch("s", 1, 20, 100)))
	after := first.Split()
	_, err := l.Cursor(wal.SplitName("u", after), "s", wal.After(after))
	must(t, err)
	recs := expect(t, first, "s", 1, 20, 100)
	first.Done(slices.Delete(recs, 18, 19)...)
	first.Close()
	if err := l.Succeed("u", "s", after); err == nil {
		t.Error("record 19 was given up")
	}
	first.Done(recs...)
	if n := len(l.Cursors()); n != 2 {
		t.Errorf("%d cursors, want both", n)
	}
}

// TestASplitCountsOnlyWhatNobodyHas: the backlog's cursor has nothing to do with what lies behind its end. What the other one has
// passed there is neither waiting for anybody nor dropped when it goes.
func TestASplitCountsOnlyWhatNobodyHas(t *testing.T) {
	const size = 4000
	lane := wal.Options{SegmentBytes: 4 * small, MaxBytes: 2 << 20, Full: wal.DropOldest}
	quota := wal.Options{SegmentBytes: 4 * small, Full: wal.DropOldest, Quotas: map[string]int64{"s": 800_000}}
	for _, test := range []struct {
		name  string
		o     wal.Options
		stuck int // record from which on the second cursor gets no outcome; 0 for none
	}{
		{"a full lane, new records flow", lane, 0},
		{"a full lane, new records are stuck too", lane, 150},
		{"a quota, new records flow", quota, 0},
		{"a quota, new records are stuck too", quota, 150},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := open(t, t.TempDir(), test.o)
			first := cursor(t, l, "u", "s")
			must(t, put(t, l, batch("s", 1, 100, size)))
			first.Done(expect(t, first, "s", 1, 30, size)...)
			after := first.Split()
			second, err := l.Cursor(wal.SplitName("u", after), "s", wal.After(after))
			must(t, err)
			for n := 101; n <= 1200; n += 10 {
				must(t, put(t, l, batch("s", n, n+9, size)))
				if test.stuck == 0 || n < test.stuck {
					second.Done(expect(t, second, "s", n, n+9, size)...)
				}
			}
			flush := func() { must(t, put(t, l, wal.Batch{State: []wal.Change{{Key: "flush", Value: []byte{1}}}})) }
			flush()
			if test.stuck == 0 && l.Stats().Bytes > 5<<18 {
				t.Errorf("%d bytes are on the disk, want the backlog and the newest segment", l.Stats().Bytes)
			}
			dropped := map[uint64]int{}
			for _, r := range l.Stats().Ranges {
				for seq := r.First; seq <= r.Last; seq++ {
					dropped[seq]++
				}
			}
			was, _ := second.Position()
			mayGo := func(seq uint64) bool { return seq > 30 && seq <= 100 || test.stuck > 0 && seq > 150 && seq <= was }
			for seq := uint64(1); seq <= 1200; seq++ {
				want := 0
				if test.stuck > 0 && mayGo(seq) {
					want = 1
				}
				if dropped[seq] != want {
					t.Fatalf("record %d is counted as dropped %d times, want %d; ranges %+v", seq, dropped[seq], want, l.Stats().Ranges)
				}
			}
			s := streamStats(t, l, "s")
			if s.Dropped != uint64(len(dropped)) {
				t.Errorf("%d records are counted as dropped, %d are in ranges", s.Dropped, len(dropped))
			}
			if test.stuck > 0 && len(dropped) < 300 {
				t.Errorf("%d records were dropped, want most of them", len(dropped))
			}
			if test.stuck == 0 && s.Waiting != 70*size {
				t.Errorf("%d bytes wait, want the %d of the backlog", s.Waiting, 70*size)
			}
			if test.stuck == 0 {
				first.Rewind()
				first.Done(expect(t, first, "s", 31, 100, size)...)
			}
			if _, err := first.Read(t.Context(), 10, 0); !errors.Is(err, wal.ErrEnd) {
				t.Errorf("Read at the end = %v, want ErrEnd", err)
			}
			first.Close()
			must(t, l.Succeed("u", "s", after))
			second.Done(expect(t, second, "s", int(was)+1, 1200, size)...)
			flush()
			if got := l.Stats(); got.Streams[0].Dropped != uint64(len(dropped)) || l.Cursors()[0].Lag.Records != 0 {
				t.Errorf("%d records dropped at the end, want %d; cursors %+v", got.Streams[0].Dropped, len(dropped), l.Cursors())
			}
		})
	}
}

// TestWhatIsTakenFromASplitLogIsALossOnlyForWhoLacksIt: files are removed, or damaged and salvaged.
func TestWhatIsTakenFromASplitLogIsALossOnlyForWhoLacksIt(t *testing.T) {
	o := wal.Options{SegmentBytes: small}
	for _, test := range []struct {
		name string
		harm func(dir string)
	}{
		{"the oldest files are gone", func(dir string) {
			for _, f := range segments(t, dir)[:8] {
				must(t, os.Remove(f))
			}
		}},
		{"a file is damaged", func(dir string) {
			for _, n := range []int{0, 6} {
				f := segments(t, dir)[n]
				b, err := os.ReadFile(f)
				must(t, err)
				clear(b[8192:])
				must(t, os.WriteFile(f, b, 0o600))
			}
			_, err := wal.Salvage(dir, wal.SalvageOptions{Options: o}, nil)
			must(t, err)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			l := open(t, dir, o)
			first := cursor(t, l, "u", "s")
			must(t, put(t, l, batch("s", 1, 100, 1000)))
			first.Done(expect(t, first, "s", 1, 30, 1000)...)
			second, err := l.Cursor(wal.SplitName("u", first.Split()), "s", wal.After(100))
			must(t, err)
			for n := 101; n <= 800; n += 10 {
				must(t, put(t, l, batch("s", n, n+9, 1000)))
				second.Done(expect(t, second, "s", n, n+9, 1000)...)
			}
			closeLog(t, l)
			test.harm(dir)
			l = open(t, dir, o)
			lost := uint64(0)
			for _, r := range l.Stats().Ranges {
				if r.First <= 30 || r.Last > 100 {
					t.Errorf("%+v is counted, want nothing but records of the backlog, 31 to 100", r)
				}
				lost += r.Last - r.First + 1
			}
			if dropped := l.Stats().Streams[0].Dropped; lost == 0 || dropped != lost {
				t.Errorf("%d records are counted, %d are in ranges, want some", dropped, lost)
			}
		})
	}
}
