package wal_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"edgegateway/wal"
)

// TestEverythingAtOnce has producers, uplinks that lag and rewind, and onlookers meet rotation, dropping and freeing.
// Each uplink must see each record in order, but for those that are in a counted range.
func TestEverythingAtOnce(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, wal.Options{MaxBytes: 640 << 10, SegmentBytes: small, Full: wal.DropOldest, Window: 300})
	const perStream = 1500
	streams := []string{"a", "b"}
	ctx, stop := context.WithTimeout(t.Context(), 60*time.Second)
	defer stop()

	var uplinks, onlookers sync.WaitGroup
	for i, uplink := range []string{"fast", "slow", "restless"} {
		for _, s := range streams {
			c := cursor(t, l, uplink, s)
			uplinks.Go(func() { goThrough(ctx, t, l, c, s, perStream, i) })
		}
	}
	watch, enough := context.WithCancel(ctx)
	onlookers.Go(func() {
		for watch.Err() == nil {
			if _, err := wal.Inspect(dir); err != nil {
				t.Errorf("Inspect: %v", err)
			}
			l.Cursors()
			l.State("", func(string, []byte) bool { return true })
			time.Sleep(time.Millisecond)
		}
	})
	var producers sync.WaitGroup
	for _, s := range streams {
		producers.Go(func() {
			for n := 1; n <= perStream; n++ {
				b := batch(s, n, n, 200+n%7000)
				b.Urgent = n%5 == 0
				if err := l.Append(ctx, b, nil); err != nil {
					t.Errorf("Append: %v", err)
					return
				}
			}
		})
	}
	producers.Wait()
	uplinks.Wait()
	enough()
	onlookers.Wait()
	if s := l.Stats(); s.Bytes > 640<<10 || s.State != wal.StateOK {
		t.Errorf("%d bytes on disk, state %s", s.Bytes, s.State)
	}
}

// goThrough reads a stream to its end. kind 0 keeps up, 1 dawdles, 2 rewinds and gives outcomes in any order.
func goThrough(ctx context.Context, t *testing.T, l *wal.Log, c *wal.Cursor, stream string, end uint64, kind int) {
	seen := make([]bool, end+1)
	highest := uint64(0)
	dropped := func(r wal.DropRange) bool { return r.Stream == stream && r.Last == end }
	for highest < end {
		recs, err := c.Read(shortly(ctx, t), 1+rand.IntN(50), 0)
		if err != nil && ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
			if slices.ContainsFunc(l.Stats().Ranges, dropped) {
				break // nothing more will come
			}
			continue
		}
		if err != nil {
			t.Errorf("Read of kind %d on %s after %d: %v, %+v", kind, stream, highest, err, l.Stats())
			return
		}
		for i, r := range recs {
			if want := data(stream, int(r.Seq), 200+int(r.Seq)%7000); !bytes.Equal(r.Data, want) {
				t.Errorf("record %d of %s is not what was put in", r.Seq, stream)
				return
			}
			if i > 0 && r.Seq <= recs[i-1].Seq || kind != 2 && r.Seq <= highest {
				t.Errorf("record %d of %s after %d", r.Seq, stream, highest)
			}
			seen[r.Seq] = true
			highest = max(highest, r.Seq)
		}
		switch kind {
		case 1:
			time.Sleep(3 * time.Millisecond)
		case 2:
			rand.Shuffle(len(recs), func(i, j int) { recs[i], recs[j] = recs[j], recs[i] })
			if rand.IntN(3) == 0 {
				recs = recs[:len(recs)/2]
				c.Done(recs...)
				c.Rewind()
				c.Lag()
				continue
			}
		}
		c.Done(recs...)
	}
	for _, r := range l.Stats().Ranges {
		for seq := r.First; r.Stream == stream && seq <= r.Last; seq++ {
			seen[seq] = true
		}
	}
	for seq := uint64(1); seq <= end; seq++ {
		if !seen[seq] {
			t.Errorf("record %d of %s was neither read nor counted as dropped", seq, stream)
			return
		}
	}
	if _, err := c.Read(shortly(ctx, t), 1, 0); kind != 2 && !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Read beyond the end: %v", err)
	}
}

func shortly(ctx context.Context, t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}
