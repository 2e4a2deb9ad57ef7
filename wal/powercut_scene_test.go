package wal_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"edgegateway/wal"
)

// profile is a way to use a log.
type profile struct {
	name  string
	o     wal.Options
	slow  time.Duration  // between two reads of the uplink y
	items int            // of each producer
	why   wal.DropReason // that records are dropped for; 0 where none may be
}

func profiles() []profile {
	base := wal.Options{SegmentBytes: small, Window: 40, MaxDelay: 3 * time.Millisecond, NewEpoch: 7}
	full, aged := base, base
	full.Full, full.MaxBytes = wal.DropOldest, 512<<10
	aged.MaxAge = 30 * time.Millisecond
	return []profile{
		{"rotation and freeing", base, 0, 40, 0},
		{"drop_oldest", full, 4 * time.Millisecond, 60, wal.DroppedFull},
		{"max_age", aged, 15 * time.Millisecond, 60, wal.DroppedAge},
	}
}

// scene is one use of a log that is recorded.
type scene struct {
	t   *testing.T
	log *wal.Log
	rec *wal.Recorder
	h   *history
	p   profile
	rnd *rand.Rand
	lag bool // control: the uplinks' outcomes reach the log one commit late
	run int  // tells the items of one run from those of another

	acks atomic.Int64
}

// late is an outcome that is held back until so many items are acknowledged.
type late struct {
	at   int64
	give func()
}

// restarted stands for the mark after the log was opened again, until there is one.
const restarted = -1

// perform opens the log, has producers and uplinks use it at the same time, and closes it.
func (s *scene) perform(dir string) {
	t := s.t
	l, err := wal.Open(dir, s.rec.Under(s.p.o))
	must(t, err)
	s.log = l
	s.h.epoch = max(s.h.epoch, 1)
	if len(s.h.ups) == 0 {
		s.h.epoch = s.rec.Mark()
		for _, name := range [][2]string{{"x", "a"}, {"x", "b"}, {"y", "a"}} {
			s.h.ups = append(s.h.ups, &uplinkHistory{uplink: name[0], stream: name[1], outcomes: map[uint64]outcome{}})
		}
	}
	s.h.restarted(s.rec.Mark())
	ctx, stop := context.WithCancel(t.Context())
	var uplinks sync.WaitGroup
	for i, u := range s.h.ups {
		c := cursor(t, l, u.uplink, u.stream)
		s.h.mu.Lock()
		if u.opened == 0 {
			u.opened = s.rec.Mark()
		}
		s.h.mu.Unlock()
		rnd := rand.New(rand.NewPCG(s.rnd.Uint64(), uint64(i)))
		uplinks.Go(func() { s.consume(ctx, c, u, rnd) })
	}
	var producers sync.WaitGroup
	for i, stream := range []string{"a", "b", "a"} {
		rnd := rand.New(rand.NewPCG(s.rnd.Uint64(), uint64(i)))
		producers.Go(func() { s.produce(i, stream, rnd) })
	}
	producers.Wait()
	stop()
	uplinks.Wait()
	must(t, l.Close())
	s.h.fin = l.Stats().Ranges
	for _, f := range s.rec.Faults() {
		t.Error(f)
	}
}

func (s *scene) produce(producer int, stream string, rnd *rand.Rand) {
	for n := range s.p.items {
		it := &item{id: fmt.Sprintf("%d.%d.%d", s.run, producer, n)}
		var b wal.Batch
		for range rnd.IntN(6) {
			sizes := []int{9, 9, 100, 100, 300, 700, 1400, 1400, 5000, 20_000}
			d := make([]byte, sizes[rnd.IntN(len(sizes))])
			for i := range d {
				d[i] = byte(rnd.Uint32())
			}
			b.Entries = append(b.Entries, wal.Entry{Stream: stream, Time: time.Now(), Data: d})
		}
		key := fmt.Sprint(producer, ".", rnd.IntN(5))
		b.State = []wal.Change{{Key: "last", Value: []byte(it.id)}, {Key: key, Value: make([]byte, rnd.IntN(200))}}
		if rnd.IntN(4) == 0 {
			b.State[1].Value = nil
		}
		b.Urgent = rnd.IntN(2) == 0
		it.batch = b
		it.start = s.rec.Mark()
		done := make(chan struct{})
		err := s.log.Append(s.t.Context(), b, func(err error) {
			defer close(done)
			if err != nil {
				s.t.Errorf("callback: %v", err)
				return
			}
			s.h.mu.Lock()
			defer s.h.mu.Unlock()
			it.acked = s.rec.Mark()
			s.h.order = append(s.h.order, it)
			s.acks.Add(1)
		})
		if err != nil {
			s.t.Errorf("Append: %v", err)
			return
		}
		if rnd.IntN(3) == 0 || n == s.p.items-1 {
			<-done // and with it all before
		}
	}
}

// consume reads, and gives outcomes in any order.
func (s *scene) consume(ctx context.Context, c *wal.Cursor, u *uplinkHistory, rnd *rand.Rand) {
	var held []wal.Record
	var queue []late
	for {
		for len(queue) > 0 && s.acks.Load() >= queue[0].at {
			queue[0].give()
			queue = queue[1:]
		}
		recs, err := c.Read(ctx, 1+rnd.IntN(20), 0)
		if err != nil {
			if !errors.Is(err, context.Canceled) {
				s.t.Errorf("Read: %v", err)
			}
			return
		}
		s.h.mu.Lock()
		s.h.seen[u.stream] = append(s.h.seen[u.stream], sighting{s.rec.Mark(), recs[len(recs)-1].Seq})
		s.h.mu.Unlock()
		held = append(held, recs...)
		if s.p.slow > 0 && u.uplink == "y" {
			time.Sleep(s.p.slow)
		}
		for len(held) > 0 && (len(held) > 15 || rnd.IntN(6) > 0) {
			i := rnd.IntN(len(held))
			if rnd.IntN(2) == 0 {
				i = 0
			}
			r := held[i]
			held = append(held[:i:i], held[i+1:]...)
			s.settle(c, u, r, rnd.IntN(12) == 0 && len(r.Data) < 2000, &queue)
		}
		if rnd.IntN(15) == 0 {
			c.Rewind()
			held = nil
		}
	}
}

// settle gives a record its outcome, and notes before and after.
func (s *scene) settle(c *wal.Cursor, u *uplinkHistory, r wal.Record, drop bool, queue *[]late) {
	note := func(o outcome) {
		s.h.mu.Lock()
		u.outcomes[r.Seq] = o
		s.h.mu.Unlock()
	}
	o := outcome{start: s.rec.Mark(), dropped: drop}
	note(o)
	give := func() {
		if drop {
			c.Drop(r, "refused")
		} else {
			c.Done(r)
		}
	}
	if !s.lag {
		give()
	}
	o.end = s.rec.Mark()
	note(o)
	if s.lag {
		*queue = append(*queue, late{s.acks.Load() + 3, give})
	}
}

// interrupt returns the scene as it goes on after an event, with a copy of the log in dir: after a power cut, or, where the
// variant is empty, after the process was killed, so that what it wrote is in the page cache.
func (s *scene) interrupt(cut int, v wal.Variant, dir string) *scene {
	t := s.t
	next := &scene{t: t, h: &history{seen: map[string][]sighting{}, epoch: s.h.epoch}, p: s.p, rnd: s.rnd, run: s.run + 1}
	medium := s.rec.DiskAt(cut, wal.Control{})
	look := t.TempDir()
	if v == "" {
		must(t, wal.NewReplica(dir).Build(medium, wal.Everything, s.rnd))
		var err error
		next.rec, err = s.rec.Killed(cut, dir)
		must(t, err)
	} else {
		must(t, wal.NewReplica(dir).Build(medium, v, s.rnd))
		next.rec = wal.NewRecorder(dir)
		must(t, next.rec.Resume())
	}
	must(t, os.CopyFS(look, os.DirFS(dir)))
	shown, wrong := s.h.examine(look, wal.Unflushed(checkOptions), s.rec.NextChange(cut), cut)
	for _, w := range wrong {
		t.Errorf("interrupted at %d, %q: %s", cut, v, w)
	}
	// After a power cut a new record begins, and what was before it was before its first mark.
	was := func(mark int) int {
		switch {
		case mark >= cut:
			return restarted
		case v != "":
			return 0
		}
		return mark
	}
	for _, it := range s.h.order[:min(shown.items, len(s.h.order))] {
		again := *it
		again.start, again.acked = max(0, was(it.start)), was(it.acked)
		next.h.order = append(next.h.order, &again)
	}
	for _, u := range s.h.ups {
		name := u.uplink + " on " + u.stream
		n := &uplinkHistory{
			uplink: u.uplink, stream: u.stream, opened: was(u.opened), outcomes: map[uint64]outcome{}, settled: shown.cursors[name],
		}
		for seq, o := range u.outcomes {
			if o.start < cut && !shown.open[name][seq] {
				n.outcomes[seq] = outcome{start: was(o.start), end: restarted, dropped: o.dropped}
			}
		}
		next.h.ups = append(next.h.ups, n)
	}
	for stream, list := range s.h.seen {
		for _, r := range list {
			if r.at < cut {
				next.h.seen[stream] = append(next.h.seen[stream], sighting{was(r.at), r.seq})
			}
		}
	}
	return next
}

// shown counts what the scenes of a profile had in them.
type shown struct{ begun, freed, letters, dropped int }

func (n *shown) add(s *scene) {
	begun, freed := s.rec.Segments()
	n.begun, n.freed = n.begun+begun, n.freed+freed
	for _, u := range s.h.ups {
		for _, o := range u.outcomes {
			if o.dropped {
				n.letters++
			}
		}
	}
	for _, r := range s.h.fin {
		if r.Why != s.p.why {
			s.t.Errorf("range %+v in a scene that drops for %v", r, s.p.why)
		}
		n.dropped++
	}
}

// mustShow fails where the scenes were too dull to prove anything.
func (n *shown) mustShow(t *testing.T, p profile) {
	t.Helper()
	t.Logf("%d segments begun, %d freed, %d dead letters, %d dropped ranges", n.begun, n.freed, n.letters, n.dropped)
	if n.begun < 4 || n.freed == 0 || n.letters == 0 || (n.dropped > 0) != (p.why != 0) {
		t.Error("the scenes are too dull")
	}
}
