package wal_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"edgegateway/wal"
)

// scene is one use of a log that is recorded.
type scene struct {
	t   *testing.T
	log *wal.Log
	rec *wal.Recorder
	h   *history
	p   profile
	rnd *rand.Rand
	lag bool    // control: the uplinks' outcomes reach the log one commit late
	may []error // what the log may come back with; who gets it goes
	run int     // tells the items of one run from those of another

	after func()    // called when the producers have ended
	state wal.State // after that
	ended int       // mark after that

	uplinks sync.WaitGroup
	splits  atomic.Int64 // cursors that were split, and
	joined  atomic.Int64 // that were one again

	acks   atomic.Int64
	fresh  atomic.Int64 // cursors that took the place of others
	waited atomic.Int64 // Appends after which the log was full, and calls that found the disk full
}

// late is an outcome that is held back until so many items are acknowledged.
type late struct {
	at   int64
	give func()
}

const (
	restarted = -1          // stands for the mark after the log was opened again, until there is one
	never     = math.MaxInt // stands for the mark of a callback that brought an error
)

// perform opens the log, has producers and uplinks use it at the same time, and closes it.
func (s *scene) perform(dir string) {
	t := s.t
	if s.p.fullDisk {
		s.may = []error{syscall.ENOSPC}
		s.rec.OnCall(s.fullAtTimes(rand.New(rand.NewPCG(s.rnd.Uint64(), 1))))
	}
	l, err := wal.Open(dir, s.rec.Under(s.p.o))
	if err != nil {
		if len(s.may) == 0 {
			t.Errorf("Open: %v", err)
		}
		return
	}
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
	defer stop()
	var producers sync.WaitGroup
	for i, u := range slices.Clone(s.h.ups) {
		rnd := rand.New(rand.NewPCG(s.rnd.Uint64(), uint64(i)))
		if c := s.openCursor(u, wal.Oldest); c != nil {
			if u.until > 0 {
				c.Until(u.until)
			}
			s.uplinks.Go(func() { s.consume(ctx, c, u, rnd) })
		}
	}
	for i, stream := range []string{"a", "b", "a"} {
		rnd := rand.New(rand.NewPCG(s.rnd.Uint64(), uint64(i)))
		producers.Go(func() { s.produce(i, stream, rnd) })
	}
	producers.Wait()
	if s.after != nil {
		s.after()
	}
	stop()
	s.uplinks.Wait()
	s.rec.Mend()
	if err := l.Close(); err != nil && !s.mayFail(err) {
		t.Errorf("Close: %v", err)
	}
	s.h.fin = l.Stats().Ranges
	if want := s.h.refusedBetween(never, never); l.Stats().Refused != want {
		t.Errorf("%d records refused, %d are counted", want, l.Stats().Refused)
	}
	for _, f := range s.rec.Faults() {
		t.Error(f)
	}
}

// mayFail tells whether an error belongs to the scene.
func (s *scene) mayFail(err error) bool {
	return slices.ContainsFunc(s.may, func(e error) bool { return errors.Is(err, e) })
}

// openCursor opens the cursor of an uplink, or returns nil where it was released or succeeded before.
func (s *scene) openCursor(u *uplinkHistory, start wal.Start) *wal.Cursor {
	if u.released.start != 0 || u.gone {
		return nil
	}
	c, err := s.log.Cursor(u.uplink, u.stream, start)
	if err != nil {
		if !s.mayFail(err) {
			s.t.Errorf("Cursor: %v", err)
		}
		return nil
	}
	s.h.mu.Lock()
	defer s.h.mu.Unlock()
	if u.opened == 0 {
		for _, info := range s.log.Cursors() {
			if info.Uplink == u.uplink && info.Stream == u.stream {
				u.from = info.Seq
			}
		}
		u.opened = s.rec.Mark()
	}
	return c
}

func (s *scene) produce(producer int, stream string, rnd *rand.Rand) {
	for n := range s.p.items {
		done := s.hand(fmt.Sprintf("%d.%d.%d", s.run, producer, n), fmt.Sprint(producer, ".", rnd.IntN(5)), stream, rnd)
		if done == nil {
			return
		}
		if rnd.IntN(3) == 0 || n == s.p.items-1 {
			<-done // and with it all before
		}
	}
}

// hand hands a batch over. What it returns is closed when the batch has its answer; it is nil where the log has stopped.
func (s *scene) hand(id, key, stream string, rnd *rand.Rand) chan struct{} {
	it := &item{id: id}
	b := wal.Batch{
		State:  []wal.Change{{Key: "last", Value: []byte(id)}, {Key: key, Value: make([]byte, rnd.IntN(200))}},
		Urgent: rnd.IntN(2) == 0,
	}
	if rnd.IntN(4) == 0 {
		b.State[1].Value = nil
	}
	for range rnd.IntN(6) {
		sizes := []int{9, 9, 100, 100, 300, 700, 1400, 1400, 5000, 20_000}
		d := make([]byte, sizes[rnd.IntN(len(sizes))])
		for i := range d {
			d[i] = byte(rnd.Uint32())
		}
		b.Entries = append(b.Entries, wal.Entry{Stream: stream, Time: time.Now(), Data: d})
	}
	it.batch = b
	it.start = s.rec.Mark()
	done := make(chan struct{})
	err := s.log.Append(s.t.Context(), b, func(err error) { s.called(it, err); close(done) })
	switch {
	case err == nil:
		if s.log.Stats().State == wal.StateFull {
			s.waited.Add(1)
		}
		return done
	case errors.Is(err, wal.ErrFull) && s.p.o.Full == wal.DropNewest:
		s.refuse(it)
		time.Sleep(s.p.slow)
		close(done)
		return done
	case !s.mayFail(err):
		s.t.Errorf("Append: %v", err)
	}
	return nil
}

// called notes what a callback has said.
func (s *scene) called(it *item, err error) {
	if errors.Is(err, wal.ErrFull) && s.p.o.Full == wal.DropNewest {
		s.refuse(it)
		return
	}
	if err != nil && !s.mayFail(err) {
		s.t.Errorf("callback: %v", err)
	}
	s.h.mu.Lock()
	defer s.h.mu.Unlock()
	it.acked = never // and yet it may be in the log
	if err == nil {
		it.acked = s.rec.Mark()
		s.acks.Add(1)
	}
	s.h.order = append(s.h.order, it)
}

func (s *scene) refuse(it *item) {
	s.h.mu.Lock()
	defer s.h.mu.Unlock()
	s.h.refusals = append(s.h.refusals, refusal{it.start, s.rec.Mark(), uint64(len(it.batch.Entries))})
}

// consume reads, and gives outcomes in any order.
func (s *scene) consume(ctx context.Context, c *wal.Cursor, u *uplinkHistory, rnd *rand.Rand) {
	var held []wal.Record
	var queue []late
	for reads := 1; ; reads++ {
		for len(queue) > 0 && s.acks.Load() >= queue[0].at {
			queue[0].give()
			queue = queue[1:]
		}
		// Where the log waits for room, nothing more comes before the records that are held have their outcome.
		patience, enough := context.WithTimeout(ctx, 10*time.Millisecond)
		recs, err := c.Read(patience, 1+rnd.IntN(20), 0)
		enough()
		idle := errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil
		if errors.Is(err, wal.ErrEnd) {
			s.succeed(ctx, c, u)
			return
		}
		if err != nil && !idle {
			if !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) && !s.mayFail(err) {
				s.t.Errorf("Read: %v", err)
			}
			return
		}
		if len(recs) > 0 {
			s.h.mu.Lock()
			s.h.seen[u.stream] = append(s.h.seen[u.stream], sighting{s.rec.Mark(), recs[len(recs)-1].Seq})
			s.h.mu.Unlock()
			held = append(held, recs...)
		}
		if u.uplink == "y" {
			time.Sleep(s.p.slow)
			for next := s.acks.Load() + s.p.behind; s.acks.Load() < next && ctx.Err() == nil; {
				time.Sleep(time.Millisecond)
			}
		}
		for len(held) > 0 && (len(held) > 15 || idle || rnd.IntN(6) > 0) {
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
		if s.p.split && reads%10 == 0 && len(held) > 0 {
			s.split(ctx, c, u, rnd)
		}
		if s.p.release && u.uplink != "x" && reads%8 == 0 {
			if c, u = s.replace(c, u); c == nil {
				return
			}
			held = nil
		}
	}
}

// replace releases a cursor and opens one for another uplink in its place.
func (s *scene) replace(c *wal.Cursor, u *uplinkHistory) (*wal.Cursor, *uplinkHistory) {
	c.Close()
	released := span{start: s.rec.Mark()}
	err := s.log.Release(u.uplink, u.stream)
	if err == nil {
		released.end = s.rec.Mark()
	} else if !s.mayFail(err) {
		s.t.Errorf("Release: %v", err)
	}
	next := &uplinkHistory{
		uplink: fmt.Sprintf("y%d.%d", s.run, s.fresh.Add(1)), stream: u.stream, outcomes: map[uint64]outcome{},
	}
	s.h.mu.Lock()
	u.released = released
	s.h.ups = append(s.h.ups, next)
	s.h.mu.Unlock()
	return s.openCursor(next, wal.Oldest), next
}

// split has a cursor end at the newest record, and another one begin there, where it is not split already.
func (s *scene) split(ctx context.Context, c *wal.Cursor, u *uplinkHistory, rnd *rand.Rand) {
	s.h.mu.Lock()
	may := u.until == 0 && (u.first == nil || u.took.end > 0)
	s.h.mu.Unlock()
	if _, tail := c.Position(); !may || tail <= u.from {
		return
	}
	after := c.Split()
	next := &uplinkHistory{
		uplink: wal.SplitName(u.owner(), after), stream: u.stream, from: after, outcomes: map[uint64]outcome{}, first: u,
	}
	s.h.mu.Lock()
	u.until = after
	s.h.ups = append(s.h.ups, next)
	s.h.mu.Unlock()
	second := s.openCursor(next, wal.After(after))
	if second == nil {
		c.Until(0)
		return
	}
	s.splits.Add(1)
	rnd = rand.New(rand.NewPCG(rnd.Uint64(), after))
	s.uplinks.Go(func() { s.consume(ctx, second, next, rnd) })
}

// succeed gives the second cursor the name of the first one, which is through. A log on a full disk may have outcomes that are not in a
// commit yet; it is asked again then, as an uplink does.
func (s *scene) succeed(ctx context.Context, c *wal.Cursor, u *uplinkHistory) {
	s.h.mu.Lock()
	next := s.h.secondOf(u)
	next.took.start = s.rec.Mark()
	s.h.mu.Unlock()
	c.Close()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		err := s.log.Succeed(u.owner(), u.stream, u.until)
		if err == nil {
			break
		}
		full := s.mayFail(syscall.ENOSPC) && strings.Contains(err.Error(), "has passed record") && time.Now().Before(deadline)
		switch {
		case full && ctx.Err() == nil:
			continue
		case !full && !s.mayFail(err):
			s.t.Errorf("Succeed: %v", err)
		}
		return
	}
	s.h.mu.Lock()
	next.took.end = s.rec.Mark()
	s.h.mu.Unlock()
	s.joined.Add(1)
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
	next.h.refused = shown.refused
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
	carried := map[*uplinkHistory]*uplinkHistory{}
	for _, u := range s.h.ups {
		name := shown.names[u]
		n := &uplinkHistory{
			uplink: u.uplink, stream: u.stream, from: u.from, outcomes: map[uint64]outcome{}, settled: shown.cursors[name],
		}
		_, known := shown.cursors[name]
		switch {
		case u.gone, s.h.succeeded(u, shown.cursors, cut):
			n.gone = true
		case !known && u.first != nil:
			continue // the power went before it was there
		case known && u.first != nil && name != u.uplink+" on "+u.stream:
			n.uplink = u.owner() // it has taken the name
		case known && u.first != nil:
			n.first = carried[u.first]
			n.first.until = u.first.until
		}
		carried[u] = n
		switch {
		case n.gone:
		case known && u.opened == 0:
			t.Errorf("interrupted at %d, %q: the cursor of %s was never opened", cut, v, name)
		case known:
			n.opened = was(u.opened)
		case u.released.start > 0 && u.released.start < cut:
			n.opened, n.released = was(u.opened), span{1, restarted}
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
