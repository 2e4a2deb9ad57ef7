package wal_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"edgegateway/wal"
)

// model is what a log should do, without files: which records there are, and which have an outcome at which cursor.
type model struct {
	sizes   map[string][]int // of the records of each stream
	cursors []*modelCursor
}

type modelCursor struct {
	uplink, stream string
	c              *wal.Cursor
	outcome        map[uint64]bool
	out            []wal.Record // delivered and without outcome, since the last rewind
	next           uint64       // the record that Read has to return first, or a later one where that has its outcome
}

func (m *modelCursor) done() uint64 {
	n := uint64(0)
	for m.outcome[n+1] {
		n++
	}
	return n
}

func TestCursorsAgainstModel(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { t.Parallel(); runModel(t, seed) })
	}
}

func runModel(t *testing.T, seed uint64) {
	const window = 60
	rnd := rand.New(rand.NewPCG(seed, 1))
	dir := t.TempDir()
	o := wal.Options{SegmentBytes: small, Window: window}
	l := open(t, dir, o)
	m := model{sizes: map[string][]int{"a": {0}, "b": {0}}}
	for _, name := range [][2]string{{"x", "a"}, {"y", "a"}, {"x", "b"}} {
		m.cursors = append(m.cursors, &modelCursor{
			uplink: name[0], stream: name[1], c: cursor(t, l, name[0], name[1]), outcome: map[uint64]bool{}, next: 1,
		})
	}
	letters := 0
	for range 600 {
		mc := m.cursors[rnd.IntN(len(m.cursors))]
		switch op := rnd.IntN(100); {
		case op < 25:
			var b wal.Batch
			for range 1 + rnd.IntN(8) {
				s := []string{"a", "b"}[rnd.IntN(2)]
				size := []int{9, 100, 1400, 5000}[rnd.IntN(4)]
				b.Entries = append(b.Entries, wal.Entry{Stream: s, Time: time.Now(), Data: data(s, len(m.sizes[s]), size)})
				m.sizes[s] = append(m.sizes[s], size)
			}
			must(t, put(t, l, b))
		case op < 55:
			m.read(t, mc, 1+rnd.IntN(20), window)
		case op < 85:
			for range 1 + rnd.IntN(12) {
				if len(mc.out) == 0 {
					break
				}
				i := rnd.IntN(len(mc.out))
				if rnd.IntN(2) == 0 {
					i = 0
				}
				r := mc.out[i]
				mc.out = append(mc.out[:i:i], mc.out[i+1:]...)
				mc.outcome[r.Seq] = true
				if rnd.IntN(10) == 0 {
					mc.c.Drop(r, "no")
					letters++
				} else {
					mc.c.Done(r)
				}
			}
		case op < 93:
			mc.c.Rewind()
			mc.out, mc.next = nil, mc.done()+1
		case op < 96:
			mc.c.Close()
			mc.c = cursor(t, l, mc.uplink, mc.stream)
			mc.out, mc.next = nil, mc.done()+1
		default:
			closeLog(t, l)
			l = open(t, dir, o)
			for _, mc := range m.cursors {
				mc.c = cursor(t, l, mc.uplink, mc.stream)
				mc.out, mc.next = nil, mc.done()+1
			}
		}
		if lag := mc.c.Lag(); lag.Records != uint64(len(m.sizes[mc.stream])-1)-mc.done() {
			t.Fatalf("lag of %s on %s is %d, cursor at %d of %d", mc.uplink, mc.stream, lag.Records, mc.done(), len(m.sizes[mc.stream])-1)
		}
	}
	closeLog(t, l)
	l = open(t, dir, o)
	for _, info := range l.Cursors() {
		for _, mc := range m.cursors {
			if mc.uplink == info.Uplink && mc.stream == info.Stream && info.Seq != mc.done() {
				t.Errorf("cursor of %s on %s is at %d, want %d", info.Uplink, info.Stream, info.Seq, mc.done())
			}
		}
	}
	got := l.Stats()
	if n := got.DeadLetters + int(got.DeadLettersLost); n != letters {
		t.Errorf("%d dead letters, want %d", n, letters)
	}
	for _, s := range got.Streams {
		if s.Records != uint64(len(m.sizes[s.Name])-1) || s.Dropped != 0 {
			t.Errorf("stream %+v, want %d records", s, len(m.sizes[s.Name])-1)
		}
	}
}

// read checks that Read returns exactly the next records without outcome, and nothing beyond the window.
func (m *model) read(t *testing.T, mc *modelCursor, n, window int) {
	t.Helper()
	last := min(uint64(len(m.sizes[mc.stream])-1), mc.done()+uint64(window))
	for mc.next <= last && mc.outcome[mc.next] {
		mc.next++
	}
	if mc.next > last {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Millisecond)
		defer cancel()
		if recs, err := mc.c.Read(ctx, n, 0); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("Read = %d records, %v, want to wait: cursor at %d, next %d", len(recs), err, mc.done(), mc.next)
		}
		return
	}
	for _, r := range read(t, mc.c, n) {
		for mc.outcome[mc.next] {
			mc.next++
		}
		if r.Seq != mc.next || !bytes.Equal(r.Data, data(mc.stream, int(r.Seq), m.sizes[mc.stream][r.Seq])) {
			t.Fatalf("%s on %s: read %d, want %d", mc.uplink, mc.stream, r.Seq, mc.next)
		}
		if mc.next++; r.Seq > last {
			t.Fatalf("read %d beyond the window, cursor at %d", r.Seq, mc.done())
		}
		mc.out = append(mc.out, r)
	}
}
