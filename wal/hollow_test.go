package wal_test

import (
	"errors"
	"math/rand/v2"
	"os"
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
	// Nothing of that is damage to those who look for it.
	v, err := wal.Verify(dir, nil)
	if must(t, err); v.Count() != 0 {
		t.Errorf("verify: %v", v.Err())
	}
	rep, err := wal.Salvage(dir, wal.SalvageOptions{Options: o}, nil)
	if must(t, err); len(rep.Problems)+len(rep.Damaged)+len(rep.Lost) != 0 {
		t.Errorf("salvage: %+v", rep)
	}
	var exported []uint64
	must(t, wal.Export(dir, wal.Selection{Stream: "busy"}, func(e wal.Exported) error {
		exported = append(exported, e.Seq)
		return nil
	}))
	if n := len(exported); n == 0 || n >= 40 || exported[n-1] != 40 {
		t.Errorf("export gives %v", exported)
	}
	full := o
	full.Verify, full.FromMedium = wal.VerifyFull, true
	l = open(t, dir, full)
	busy = cursor(t, l, "u", "busy")
	if err := busy.Back(1); !errors.Is(err, wal.ErrGone) {
		t.Errorf("Back to what is hollow = %v, want ErrGone", err)
	}
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

// TestSalvageBesideHollowSegments loses the newest segment of a log in which most are hollow.
func TestSalvageBesideHollowSegments(t *testing.T) {
	dir := t.TempDir()
	o := wal.Options{SegmentBytes: middling}
	l := open(t, dir, o)
	busy := cursor(t, l, "u", "busy")
	cursor(t, l, "u", "stalled")
	must(t, put(t, l, batch("stalled", 1, 1, 10)))
	for n := 1; n <= 12; n++ {
		must(t, put(t, l, batch("busy", n, n, 200_000)))
		busy.Done(expect(t, busy, "busy", n, n, 200_000)...)
	}
	closeLog(t, l)
	list := segments(t, dir)
	newest := list[len(list)-1]
	b, err := os.ReadFile(newest)
	must(t, err)
	clear(b[:2*4096])
	must(t, os.WriteFile(newest, b, 0o600))
	if _, err := wal.Open(dir, o); !errors.Is(err, wal.ErrDamaged) {
		t.Fatalf("Open = %v, want ErrDamaged", err)
	}
	rep, err := wal.Salvage(dir, wal.SalvageOptions{Options: o}, nil)
	if must(t, err); len(rep.Damaged) != 1 || rep.Skipped == 0 {
		t.Errorf("salvage: %+v, want one damaged file and numbers left out", rep)
	}
	l = open(t, dir, o)
	expect(t, cursor(t, l, "u", "stalled"), "stalled", 1, 1, 10)
	again := cursor(t, l, "u", "busy")
	seq, tail := again.Position()
	if seq > tail || tail < 12 {
		t.Errorf("busy stands at %d of %d", seq, tail)
	}
	// The next record has a number that nobody has had.
	must(t, put(t, l, wal.Batch{Entries: []wal.Entry{{Stream: "busy", Data: []byte("new")}}}))
	for {
		recs := read(t, again, 1)
		if string(recs[0].Data) == "new" {
			if recs[0].Seq <= 12 {
				t.Errorf("the new record has sequence %d", recs[0].Seq)
			}
			break
		}
		if want := data("busy", int(recs[0].Seq), 200_000); string(recs[0].Data) != string(want) {
			t.Fatalf("record %d holds something else", recs[0].Seq)
		}
		again.Done(recs...)
	}
	closeLog(t, l)
}
