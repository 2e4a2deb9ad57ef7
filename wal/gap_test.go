package wal_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"edgegateway/wal"
)

// gapData is a gap record as a test knows it again.
func gapData(stream string, r wal.DropRange) []byte {
	if stream == "deaf" {
		return nil
	}
	b, err := json.Marshal(r)
	if err != nil {
		panic(err)
	}
	return append([]byte("gap "), b...)
}

func gapOf(t *testing.T, data []byte) (r wal.DropRange, ok bool) {
	t.Helper()
	text, ok := strings.CutPrefix(string(data), "gap ")
	if ok {
		must(t, json.Unmarshal([]byte(text), &r))
	}
	return r, ok
}

// readAll reads what a cursor has before it.
func readAll(t *testing.T, c *wal.Cursor) []wal.Record {
	t.Helper()
	var out []wal.Record
	for n := c.Lag().Records; uint64(len(out)) < n; {
		out = append(out, read(t, c, 1000)...)
	}
	return out
}

func TestGapRecordStandsInTheStreamForEachDrop(t *testing.T) {
	dir := t.TempDir()
	o := wal.Options{MaxBytes: 512 << 10, SegmentBytes: small, Full: wal.DropOldest, Gap: gapData}
	l := open(t, dir, o)
	cursor(t, l, "u", "s")
	cursor(t, l, "u", "deaf")
	for n := 1; n <= 150; n++ {
		must(t, put(t, l, batch("s", n, n, 5_000), batch("deaf", n, n, 5_000)))
	}
	closeLog(t, l)
	l = open(t, dir, o)
	ranges := map[string]wal.DropRange{}
	for _, r := range l.Stats().Ranges {
		ranges[fmt.Sprint(r.Stream, r.First, r.Last, r.Count)] = r
	}
	told := 0
	recs := readAll(t, cursor(t, l, "u", "s"))
	for i, r := range recs {
		if i > 0 && r.Seq != recs[i-1].Seq+1 {
			t.Fatalf("record %d follows %d", r.Seq, recs[i-1].Seq)
		}
		if g, ok := gapOf(t, r.Data); ok {
			told++
			if known, ok := ranges[fmt.Sprint(g.Stream, g.First, g.Last, g.Count)]; !ok || g.Last >= r.Seq || g.Why != known.Why {
				t.Errorf("gap record %d tells of %+v, which the log does not know", r.Seq, g)
			}
		}
	}
	if told < 2 {
		t.Errorf("%d gap records in the %d records that are left", told, len(recs))
	}
	for _, r := range readAll(t, cursor(t, l, "u", "deaf")) {
		if _, ok := gapOf(t, r.Data); ok {
			t.Errorf("a gap record in a stream that does not want it: %d", r.Seq)
		}
	}
}

func TestRefusedRecordsAreToldOfWhenThereIsRoomAgain(t *testing.T) {
	dir := t.TempDir()
	o := wal.Options{SegmentBytes: small, Full: wal.DropNewest, Quotas: map[string]int64{"s": quota}, Gap: gapData}
	l := open(t, dir, o)
	c := cursor(t, l, "u", "s")
	must(t, put(t, l, batch("s", 1, 10, 10_000)))
	refuse := func(n int) {
		if err := put(t, l, batch("s", 1, n, 10_000)); !errors.Is(err, wal.ErrFull) {
			t.Fatalf("Append beyond the quota: %v", err)
		}
	}
	refuse(3)
	refuse(4)
	c.Done(expect(t, c, "s", 1, 5, 10_000)...)
	// What was refused is known after a restart too.
	closeLog(t, l)
	l = open(t, dir, o)
	c = cursor(t, l, "u", "s")
	c.Done(expect(t, c, "s", 6, 10, 10_000)...)
	must(t, put(t, l, batch("s", 12, 12, 10)))
	must(t, put(t, l, batch("s", 13, 13, 10)))
	recs := readAll(t, c)
	if len(recs) != 3 || recs[0].Seq != 11 || recs[2].Seq != 13 {
		t.Fatalf("%d records, want the gap record and two", len(recs))
	}
	if g, ok := gapOf(t, recs[0].Data); !ok || g.Count != 7 || g.First != 0 || g.Last != 0 || g.Why != wal.Refused || g.Stream != "s" {
		t.Errorf("record 11 is %q, want a gap record of 7 refused records", recs[0].Data)
	}
	refuse(10)
	closeLog(t, l)
	l = open(t, dir, o)
	must(t, put(t, l, batch("s", 15, 15, 10)))
	recs = readAll(t, cursor(t, l, "u", "s"))
	if g, ok := gapOf(t, recs[len(recs)-2].Data); !ok || g.Count != 10 {
		t.Errorf("record %d is %q, want a gap record of 10 refused records", recs[len(recs)-2].Seq, recs[len(recs)-2].Data)
	}
}

func TestGapRecordThatAgesAloneMakesNoOther(t *testing.T) {
	l := open(t, t.TempDir(), wal.Options{SegmentBytes: small, MaxAge: 100 * time.Millisecond, Gap: gapData})
	cursor(t, l, "u", "s")
	must(t, put(t, l, wal.Batch{Entries: []wal.Entry{{Stream: "s", Data: []byte("old")}, {Stream: "s", Data: []byte("old")}}}))
	eventually(t, "the records and their gap record are gone", func() bool { return streamStats(t, l, "s").Dropped == 3 })
	time.Sleep(300 * time.Millisecond)
	if s := streamStats(t, l, "s"); s.Records != 3 || s.Dropped != 3 {
		t.Errorf("%d records, %d dropped, want 3 of each: two and their gap record", s.Records, s.Dropped)
	}
}

func TestGapRecordsAreOwedOnAFullDisk(t *testing.T) {
	var disk wal.Disk
	l := open(t, t.TempDir(), disk.Under(wal.Options{SegmentBytes: small, Full: wal.DropOldest, Gap: gapData}))
	c := cursor(t, l, "u", "s")
	for n := 1; n <= 30; n++ {
		must(t, put(t, l, batch("s", n, n, 10_000)))
	}
	disk.Full.Store(true)
	result := make(chan error, 1)
	b := batch("s", 31, 31, 200_000)
	b.Urgent = true
	must(t, l.Append(t.Context(), b, func(err error) { result <- err }))
	eventually(t, "something was dropped", func() bool { return streamStats(t, l, "s").Dropped > 20 })
	disk.Full.Store(false)
	must(t, within(t, result))
	told := uint64(0)
	for _, r := range readAll(t, c) {
		if g, ok := gapOf(t, r.Data); ok {
			told += g.Count
		}
	}
	if want := streamStats(t, l, "s").Dropped; told != want {
		t.Errorf("gap records tell of %d records, %d were dropped", told, want)
	}
}

// TestGapRecordAndDropAreOneCommit cuts the power at each write and each flush: the newest range that the log knows is told
// of in the stream, and nothing is told of that the log does not know. That is so for whole segments and for quotas.
func TestGapRecordAndDropAreOneCommit(t *testing.T) {
	for _, o := range []wal.Options{
		{MaxBytes: 512 << 10, SegmentBytes: small, Full: wal.DropOldest, Gap: gapData},
		{SegmentBytes: small, Full: wal.DropOldest, Gap: gapData, Quotas: map[string]int64{"s": 64 << 10}},
	} {
		dir := t.TempDir()
		rec := wal.NewRecorder(dir)
		l := open(t, dir, rec.Under(o))
		cursor(t, l, "u", "s")
		rnd := rand.New(rand.NewPCG(1, 2))
		for n := 1; n <= 40; n++ {
			must(t, put(t, l, batch("s", n, n, 8_000+rnd.IntN(12_000))))
		}
		if len(l.Stats().Ranges) < 3 {
			t.Fatalf("%d ranges were dropped", len(l.Stats().Ranges))
		}
		closeLog(t, l)
		if faults := rec.Faults(); len(faults) > 0 {
			t.Fatal(faults)
		}
		replica := wal.NewReplica(t.TempDir())
		m, points, dropped := rec.DiskAt(0, wal.Control{}), 0, 0
		for i := range rec.Len() {
			if !m.Apply(rec, i) || i%3 != 0 {
				continue
			}
			variants := m.Variants()
			must(t, replica.Build(m, variants[rnd.IntN(len(variants))], rnd))
			points++
			if names := segments(t, replica.Dir); len(names) > 0 && gapsAreRight(t, replica, rec.Describe(i)) {
				dropped++
			}
		}
		t.Logf("%d power cuts, %d of them after a drop", points, dropped)
		if points < 50 || dropped < 10 {
			t.Errorf("%d power cuts, %d of them after a drop", points, dropped)
		}
	}
}

func gapsAreRight(t *testing.T, replica *wal.Replica, when string) (dropped bool) {
	t.Helper()
	l, err := wal.Open(replica.Dir, replica.Under(wal.Options{SegmentBytes: small}))
	if err != nil {
		t.Fatalf("%s: %v", when, err)
	}
	defer func() { must(t, l.Close()) }()
	if len(l.Cursors()) == 0 {
		return false
	}
	ranges := l.Stats().Ranges
	told := map[uint64]bool{}
	for _, r := range readAll(t, cursor(t, l, "u", "s")) {
		g, ok := gapOf(t, r.Data)
		if !ok {
			continue
		}
		known := false
		for _, k := range ranges {
			known = known || k.First == g.First && k.Last == g.Last && k.Why == g.Why
		}
		if !known {
			t.Errorf("%s: record %d tells of %d to %d, which was not dropped", when, r.Seq, g.First, g.Last)
		}
		told[g.Last] = true
	}
	if len(ranges) == 0 {
		return false
	}
	if last := ranges[len(ranges)-1]; !told[last.Last] {
		t.Errorf("%s: %d to %d was dropped and nothing tells of it", when, last.First, last.Last)
	}
	return true
}

func TestDirectoryThatWasRemovedStopsTheLog(t *testing.T) {
	tests := []struct {
		name   string
		harm   func(dir string) error
		writes bool
	}{
		{"removed while it writes", os.RemoveAll, true},
		{"removed while it is idle", os.RemoveAll, false},
		{"moved away", func(dir string) error { return os.Rename(dir, dir+".away") }, false},
		{"the newest segment replaced", func(dir string) error {
			name := filepath.Join(dir, "00000001.seg")
			b, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			return errors.Join(os.Remove(name), os.WriteFile(name, b, 0o600))
		}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var lines lockedBuffer
			dir := filepath.Join(t.TempDir(), "log")
			l := open(t, dir, wal.Options{Log: textLog(&lines)})
			cursor(t, l, "u", "s")
			must(t, put(t, l, batch("s", 1, 1, 10)))
			must(t, tt.harm(dir))
			if tt.writes {
				if err := put(t, l, batch("s", 2, 2, 10)); !errors.Is(err, wal.ErrStopped) {
					t.Errorf("a record that went nowhere was answered with %v", err)
				}
			}
			eventually(t, "the log has stopped", func() bool { return l.Stats().State == wal.StateStopped })
			if n := lines.count("log has stopped"); n != 1 || lines.count("while it was in use") != 1 {
				t.Errorf("%d lines say so:\n%s", n, lines.String())
			}
		})
	}
}

func TestLockIsRefusedInOneLineThatNamesTheProcess(t *testing.T) {
	dir := t.TempDir()
	open(t, dir, wal.Options{})
	_, err := wal.Open(dir, wal.Options{})
	if !errors.Is(err, wal.ErrLocked) || !strings.Contains(err.Error(), "process "+strconv.Itoa(os.Getpid())) || strings.Contains(err.Error(), "\n") {
		t.Errorf("Open of a log in use: %v", err)
	}
}

// pollerGoal is the most that the profile may cost the flash memory, in GB/day.
const pollerGoal = 3.5

// reading looks like an encoded reading of 100 bytes: what does not change is most of it.
func reading(n int) []byte {
	text := fmt.Sprintf("\x01\x04%019d\x06boiler%28s\x00\x04degC\x00\x04%08x", 1_796_000_000_000_000_000+int64(n)*10_000_000, fmt.Sprintf("boiler/kettle/water%d", n%20), uint32(n)*2654435761)
	return append([]byte(text), make([]byte, 100-len(text))...)
}

// TestDefaultPollerProfileSparesTheFlash simulates 100 readings/s of 100 bytes, which nobody waits for, and a far side that
// confirms them.
func TestDefaultPollerProfileSparesTheFlash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const seconds = 10
		l := open(t, t.TempDir(), wal.Options{MaxBytes: 512 << 20, MaxDelay: time.Second})
		c := cursor(t, l, "u", "s")
		before := l.Stats()
		for n := 1; n <= 100*seconds; n++ {
			must(t, l.Append(t.Context(), wal.Batch{Entries: []wal.Entry{{Stream: "s", Time: time.Now(), Data: reading(n)}}}, nil))
			time.Sleep(10 * time.Millisecond)
			if recs, err := wal.TakeNow(c); err != nil {
				t.Fatal(err)
			} else if len(recs) > 0 {
				c.Done(recs...)
			}
		}
		s := l.Stats()
		commits := s.Commits - before.Commits
		perDay := float64(s.Flash-before.Flash) / seconds * 86400 / 1e9
		t.Logf("%d commits in %d s, %d bytes written, %.2f GB/day in the model of flash pages", commits, seconds, s.Written-before.Written, perDay)
		if commits < seconds-1 || commits > seconds+2 {
			t.Errorf("%d commits in %d s, want one a second", commits, seconds)
		}
		if perDay > pollerGoal {
			t.Errorf("%.2f GB/day, want at most %v", perDay, pollerGoal)
		}
		closeLog(t, l)
	})
}

func TestWearIsCountedForTheLifeOfTheLog(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, wal.Options{})
	cursor(t, l, "u", "s")
	for n := 1; n <= 5; n++ {
		must(t, put(t, l, batch("s", n, n, 10)))
	}
	s := l.Stats()
	// A small commit is one flash page of data and one for the meta page.
	before := s.FlashEver
	must(t, put(t, l, batch("s", 6, 6, 10)))
	if d := l.Stats().FlashEver - before; d != 32<<10 {
		t.Errorf("a small commit counts %d bytes of flash, want 32 KiB", d)
	}
	before = l.Stats().FlashEver
	must(t, put(t, l, batch("s", 7, 7, 100_000)))
	if d := l.Stats().FlashEver - before; d < 7*16<<10+16<<10 || d > 9*16<<10 {
		t.Errorf("a commit of 100 kB counts %d bytes of flash", d)
	}
	s = l.Stats()
	if s.Flash != s.FlashEver || s.Written != s.WrittenEver || s.Written == 0 {
		t.Errorf("in the first life of the log %+v", s)
	}
	closeLog(t, l)
	again := open(t, dir, wal.Options{}).Stats()
	// The last commit counts itself only with the one after it.
	if again.FlashEver < before || again.FlashEver > s.FlashEver || again.Flash > again.FlashEver {
		t.Errorf("after a restart %d bytes of flash ever, %d before", again.FlashEver, s.FlashEver)
	}
}
