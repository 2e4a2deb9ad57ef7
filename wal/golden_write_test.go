package wal_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"edgegateway/wal"
)

// golden is what a golden directory holds. It is the same whichever version of the format it was written in.
type golden struct {
	records map[string][][]byte // by stream, from sequence 1; those of aged are gone
	state   map[string]string
	open    map[string][]uint64 // by "uplink on stream": the records without outcome
	ends    map[string]uint64   // where the cursors stand
	letters []wal.DeadLetter    // uplink, stream, sequence, reason and data
	dropped map[string][2]uint64
}

// goldenData is record n of a stream. Some are large enough for a block of their own, some can be compressed.
func goldenData(stream string, n int) []byte {
	size := []int{24, 130, 60, 900, 24, 48, 5200}[(n+len(stream))%7]
	b := fmt.Appendf(nil, "%s %d ", stream, n)
	for x := uint32(n); len(b) < size; x = x*1664525 + 1013904223 {
		b = append(b, byte(x>>24)|byte(n%2*0xf8))
	}
	return b
}

// writeGolden writes a log with something of everything that the format knows, and says what it holds. It uses nothing
// that the first version of the program did not have, because that one has to write it too.
func writeGolden(t *testing.T, dir string, options func(part int, o wal.Options) wal.Options) golden {
	t.Helper()
	g := golden{
		records: map[string][][]byte{}, state: map[string]string{}, open: map[string][]uint64{}, ends: map[string]uint64{},
		dropped: map[string][2]uint64{},
	}
	add := func(b *wal.Batch, stream string, at time.Time) {
		d := goldenData(stream, len(g.records[stream])+1)
		g.records[stream] = append(g.records[stream], d)
		b.Entries = append(b.Entries, wal.Entry{Stream: stream, Time: at, Data: d})
	}
	// Three records of 2021 that are too old.
	l := open(t, dir, options(0, wal.Options{SegmentBytes: small, NewEpoch: 7, MaxAge: time.Hour}))
	cursor(t, l, "late", "aged")
	for range 3 {
		var b wal.Batch
		add(&b, "aged", time.Date(2021, 3, 4, 5, 6, 7, 0, time.UTC))
		must(t, put(t, l, b))
	}
	closeLog(t, l)
	g.dropped["aged"] = [2]uint64{1, 3}
	g.ends["late on aged"] = 3

	l = open(t, dir, options(0, wal.Options{SegmentBytes: small, NewEpoch: 8}))
	for _, name := range [][2]string{{"quick", "level"}, {"slow", "level"}, {"quick", "alarm/ä"}} {
		cursor(t, l, name[0], name[1])
	}
	for n := range 36 {
		if n == 12 || n == 24 {
			closeLog(t, l)
			l = open(t, dir, options(n/12, wal.Options{SegmentBytes: small, NewEpoch: 8}))
		}
		var b wal.Batch
		for i := range 1 + n%3 {
			add(&b, []string{"level", "alarm/ä", "level"}[(n+i)%3], time.Unix(1.7e9+int64(n), int64(i)))
		}
		key := fmt.Sprint("key ", n%13)
		if n == 30 {
			b.State = []wal.Change{{Key: key}}
			delete(g.state, key)
		} else {
			g.state[key] = fmt.Sprintf("value %d %0*d", n, 20+n, 0)
			b.State = []wal.Change{{Key: key, Value: []byte(g.state[key])}}
		}
		must(t, put(t, l, b))
	}
	closeLog(t, l)

	// Outcomes: everything for one cursor, with holes for another, a few for the third.
	l = open(t, dir, options(0, wal.Options{SegmentBytes: small, NewEpoch: 8}))
	for _, c := range []struct {
		uplink, stream string
		read           int
		hole           func(seq uint64) bool
		drop           []uint64
	}{
		{"quick", "level", 43, func(s uint64) bool { return s > 35 && s%5 == 0 }, []uint64{17, 38}},
		{"slow", "level", 30, func(s uint64) bool { return s > 12 && s%3 != 0 }, nil},
		{"quick", "alarm/ä", 60, func(uint64) bool { return false }, []uint64{2}},
	} {
		cur := cursor(t, l, c.uplink, c.stream)
		name := c.uplink + " on " + c.stream
		total := uint64(len(g.records[c.stream]))
		settled := map[uint64]bool{}
		for _, r := range readUpTo(t, cur, min(c.read, int(total))) {
			switch {
			case c.hole(r.Seq):
				continue
			case slices.Contains(c.drop, r.Seq):
				reason := fmt.Sprintf("refused: %s %d", c.stream, r.Seq)
				cur.Drop(r, reason)
				g.letters = append(g.letters, wal.DeadLetter{Uplink: c.uplink, Stream: c.stream, Seq: r.Seq, Reason: reason, Data: r.Data})
			default:
				cur.Done(r)
			}
			settled[r.Seq] = true
		}
		end := uint64(0)
		for settled[end+1] {
			end++
		}
		g.ends[name] = end
		for seq := end + 1; seq <= total; seq++ {
			if !settled[seq] {
				g.open[name] = append(g.open[name], seq)
			}
		}
		cur.Close()
		// Each in a commit of its own, so that the dead letters have their order.
		must(t, put(t, l, wal.Batch{State: []wal.Change{{Key: "round", Value: []byte(name)}}}))
		g.state["round"] = name
	}
	closeLog(t, l)
	if len(g.letters) != 3 || len(slices.Collect(maps.Keys(g.open))) != 2 {
		t.Fatalf("the golden log is too dull: %d letters, %d cursors behind", len(g.letters), len(g.open))
	}
	return g
}

// readUpTo reads the next n records.
func readUpTo(t *testing.T, c *wal.Cursor, n int) []wal.Record {
	t.Helper()
	var out []wal.Record
	for len(out) < n {
		out = append(out, read(t, c, n-len(out))...)
	}
	return out
}
