package wal_test

import (
	"math/rand/v2"
	"testing"

	"edgegateway/wal"
)

const middling = 256 << 10 // a segment that is worth being replaced

func TestStalledStreamKeepsNothingButItsOwnSegments(t *testing.T) {
	dir := t.TempDir()
	o := wal.Options{SegmentBytes: middling, MaxBytes: 2 << 20}
	l := open(t, dir, o)
	busy := cursor(t, l, "u", "busy")
	cursor(t, l, "u", "stalled")
	must(t, put(t, l, batch("stalled", 1, 1, 10)))
	for n := 1; n <= 40; n++ { // four times max_bytes
		must(t, put(t, l, batch("busy", n, n, 200_000)))
		busy.Done(expect(t, busy, "busy", n, n, 200_000)...)
		if n == 20 {
			must(t, put(t, l, batch("stalled", 2, 2, 10)))
		}
	}
	s := l.Stats()
	if s.State != wal.StateOK || s.Bytes > 2<<20 || s.Streams[0].Dropped+s.Streams[1].Dropped != 0 {
		t.Errorf("state %s, %d bytes on disk: %+v", s.State, s.Bytes, s.Streams)
	}
	// Who comes new gets what is there without a hole.
	late := cursor(t, l, "late", "busy")
	first := read(t, late, 1)[0].Seq
	for n := first + 1; n <= 40; n++ {
		if r := read(t, late, 1); r[0].Seq != n {
			t.Fatalf("a new cursor reads %d after %d", r[0].Seq, n-1)
		}
	}
	closeLog(t, l)
	if r, err := wal.Inspect(dir); err != nil || len(r.Segments) < 10 {
		t.Errorf("inspect: %d segments, %v", len(r.Segments), err)
	}
	l = open(t, dir, o)
	busy = cursor(t, l, "u", "busy")
	stalled := cursor(t, l, "u", "stalled")
	must(t, put(t, l, batch("busy", 41, 41, 10)))
	expect(t, busy, "busy", 41, 41, 10)
	stalled.Done(expect(t, stalled, "stalled", 1, 2, 10)...)
	l2 := l.Cursors()
	if len(l2) != 3 {
		t.Fatalf("%d cursors", len(l2))
	}
	late = cursor(t, l, "late", "busy")
	late.Done(readAll(t, late)...)
	eventually(t, "everything is freed", func() bool { return len(segments(t, dir)) <= 2 })
}

// TestPowerCutWhileSegmentsAreReplaced cuts the power at each write and each change of a name.
func TestPowerCutWhileSegmentsAreReplaced(t *testing.T) {
	dir := t.TempDir()
	rec := wal.NewRecorder(dir)
	o := wal.Options{SegmentBytes: middling}
	l := open(t, dir, rec.Under(o))
	busy := cursor(t, l, "u", "busy")
	cursor(t, l, "u", "stalled")
	must(t, put(t, l, batch("stalled", 1, 1, 10)))
	begun := rec.Len()
	for n := 1; n <= 8; n++ {
		must(t, put(t, l, batch("busy", n, n, 150_000)))
		busy.Done(expect(t, busy, "busy", n, n, 150_000)...)
	}
	must(t, put(t, l, batch("busy", 9, 9, 10)))
	closeLog(t, l)
	if faults := rec.Faults(); len(faults) > 0 {
		t.Fatal(faults)
	}
	replica, rnd := wal.NewReplica(t.TempDir()), rand.New(rand.NewPCG(3, 4))
	m, points := rec.DiskAt(begun, wal.Control{}), 0
	for i := begun; i < rec.Len(); i++ {
		if !m.Apply(rec, i) {
			continue
		}
		for _, v := range m.Variants() {
			must(t, replica.Build(m, v, rnd))

			l, err := wal.Open(replica.Dir, replica.Under(wal.Options{SegmentBytes: middling}))
			if err != nil {
				t.Fatalf("%s, %s: %v", rec.Describe(i), v, err)
			}
			expect(t, cursor(t, l, "u", "stalled"), "stalled", 1, 1, 10)
			from := int(seqOfBusy(l)) + 1
			if n := l.Stats().Streams[0].Records; n > 0 && from <= min(int(n), 8) {
				expect(t, cursor(t, l, "u", "busy"), "busy", from, min(int(n), 8), 150_000)
			}
			must(t, l.Close())
			points++
		}
	}
	t.Logf("%d power cuts", points)
	if points < 200 {
		t.Errorf("%d power cuts, want at least 200", points)
	}
	if _, err := wal.Inspect(replica.Dir); err != nil {
		t.Error(err)
	}
}

// seqOfBusy returns where the cursor of the busy stream stands.
func seqOfBusy(l *wal.Log) uint64 {
	for _, c := range l.Cursors() {
		if c.Stream == "busy" {
			return c.Seq
		}
	}
	return 0
}
