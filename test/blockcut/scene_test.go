package blockcut_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"edgegateway/test/blockcut/blockdev"
	"edgegateway/wal"
)

// profile is a way to use a log, and an ext4 to use it on.
type profile struct {
	name  string
	ext4  string // mount options
	o     wal.Options
	slow  time.Duration  // between two reads of the uplink y
	items int            // of each producer
	why   wal.DropReason // that records are dropped for; 0 where none may be
}

const (
	segmentBytes = 64 << 10
	firstEpoch   = 7
)

func profiles() []profile {
	base := wal.Options{SegmentBytes: segmentBytes, Window: 40, MaxDelay: 3 * time.Millisecond, NewEpoch: firstEpoch}
	full, aged := base, base
	full.Full, full.MaxBytes = wal.DropOldest, 512<<10
	aged.MaxAge = 40 * time.Millisecond
	return []profile{
		{"rotation and freeing", "", base, 0, 40, 0},
		{"drop_oldest", "commit=1", full, 4 * time.Millisecond, 60, wal.DroppedFull},
		{"max_age", "data=journal", aged, 15 * time.Millisecond, 60, wal.DroppedAge},
	}
}

// scene is one use of a log on a device that is recorded.
type scene struct {
	t     *testing.T
	d     *blockdev.Device
	p     profile
	rnd   *rand.Rand
	h     history
	fault blockdev.Fault // comes when the producers begin

	log     *wal.Log
	begun   int // segments
	freed   int // segments
	met     int // 1: the fault came
	stopped int // 1: the log has stopped
}

func newScene(t *testing.T, d *blockdev.Device, p profile, seed uint64) *scene {
	s := &scene{t: t, d: d, p: p, rnd: rand.New(rand.NewPCG(seed, 4711))}
	s.h = history{why: p.why, seen: map[string][]sighting{}, epoch: never, closed: never}
	for _, name := range [][2]string{{"x", "a"}, {"x", "b"}, {"y", "a"}} {
		s.h.ups = append(s.h.ups, &uplink{name: name[0], stream: name[1], opened: never, outcomes: map[uint64]outcome{}})
	}
	return s
}

// never is the mark of what has not happened.
const never = math.MaxInt

// mark puts a mark into the line of writes and flushes.
func (s *scene) mark() int {
	n, err := s.d.Mark()
	if err != nil {
		s.t.Error(err)
	}
	return n
}

// perform mounts the device, and has producers and uplinks use a log on it at the same time. Afterwards the history says
// what was told to the log, what it has answered, and when.
func (s *scene) perform() {
	t := s.t
	must(t, s.d.Reset())
	must(t, s.d.Record())
	dir, err := mount(s.d, t.TempDir(), s.p.ext4)
	must(t, err)
	s.log, err = wal.Open(dir, s.p.o)
	must(t, err)
	s.h.epoch = s.mark()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var uplinks, producers sync.WaitGroup
	for i, u := range s.h.ups {
		c, err := s.log.Cursor(u.name, u.stream, wal.Oldest)
		must(t, err)
		s.h.mu.Lock()
		u.opened = s.mark()
		s.h.mu.Unlock()
		rnd := rand.New(rand.NewPCG(s.rnd.Uint64(), uint64(i)))
		uplinks.Go(func() { s.consume(ctx, c, u, rnd) })
	}
	if s.fault.Ops != 0 {
		must(t, s.d.Fail(s.fault))
	}
	for i, stream := range []string{"a", "b", "a"} {
		rnd := rand.New(rand.NewPCG(s.rnd.Uint64(), uint64(i)))
		producers.Go(func() { s.produce(i, stream, rnd) })
	}
	producers.Wait()
	stop()
	uplinks.Wait()
	s.finish(dir)
}

func (s *scene) finish(dir string) {
	t := s.t
	stopped := s.log.Err()
	if stopped != nil && (s.fault.Ops == 0 || !errors.Is(stopped, wal.ErrStopped)) {
		t.Errorf("log has stopped: %v", stopped)
	}
	if stopped != nil {
		s.stopped = 1
	}
	s.h.fin = s.log.Stats().Ranges
	switch err := s.log.Close(); {
	case err == nil:
		s.h.closed = s.mark()
		s.h.fin = s.log.Stats().Ranges
	case s.fault.Ops == 0:
		t.Errorf("Close: %v", err)
	}
	if s.fault.Ops == 0 {
		r, err := wal.Inspect(dir)
		must(t, err)
		var first, last int
		_, err = fmt.Sscanf(r.Segments[0].Name+" "+r.Segments[len(r.Segments)-1].Name, "%d.seg %d.seg", &first, &last)
		must(t, err)
		s.begun, s.freed = last, first-1
	}
	must(t, s.d.Unmount())
	counts, err := s.d.Counts()
	must(t, err)
	if counts.Failed > 0 {
		s.met = 1
	}
}

func (s *scene) produce(producer int, stream string, rnd *rand.Rand) {
	for n := range s.p.items {
		it := &item{id: fmt.Sprintf("%d.%d", producer, n), acked: never}
		it.batch = batch(it.id, producer, stream, rnd)
		it.start = s.mark()
		done := make(chan error, 1)
		err := s.log.Append(s.t.Context(), it.batch, func(err error) {
			s.h.answered(it, err, s.mark())
			done <- err
		})
		if err != nil {
			s.failed("Append", err)
			return
		}
		if rnd.IntN(3) == 0 || n == s.p.items-1 {
			if err := <-done; err != nil { // and with it all before
				s.failed("callback", err)
				return
			}
		}
	}
}

// failed tells of an error that the fault does not explain.
func (s *scene) failed(what string, err error) {
	if s.fault.Ops == 0 || !errors.Is(err, wal.ErrStopped) {
		s.t.Errorf("%s: %v", what, err)
	}
}

// batch returns records of all sizes, and with them the number of the item in the state.
func batch(id string, producer int, stream string, rnd *rand.Rand) wal.Batch {
	var b wal.Batch
	for range rnd.IntN(6) {
		sizes := []int{9, 9, 100, 100, 300, 700, 1400, 1400, 5000, 20_000}
		d := make([]byte, sizes[rnd.IntN(len(sizes))])
		for i := range d {
			d[i] = byte(rnd.Uint32())
		}
		b.Entries = append(b.Entries, wal.Entry{Stream: stream, Time: time.Now(), Data: d})
	}
	other := wal.Change{Key: fmt.Sprint(producer, ".", rnd.IntN(5)), Value: make([]byte, rnd.IntN(200))}
	if rnd.IntN(4) == 0 {
		other.Value = nil
	}
	b.State = []wal.Change{{Key: newest, Value: []byte(id)}, other}
	b.Urgent = rnd.IntN(2) == 0
	return b
}

// consume reads, and gives outcomes in any order.
func (s *scene) consume(ctx context.Context, c *wal.Cursor, u *uplink, rnd *rand.Rand) {
	var held []wal.Record
	for {
		recs, err := c.Read(ctx, 1+rnd.IntN(20), 0)
		if err != nil {
			if !errors.Is(err, context.Canceled) {
				s.failed("Read", err)
			}
			return
		}
		s.h.saw(u.stream, recs[len(recs)-1].Seq, s.mark())
		held = append(held, recs...)
		if s.p.slow > 0 && u.name == "y" {
			time.Sleep(s.p.slow)
		}
		for len(held) > 0 && (len(held) > 15 || rnd.IntN(6) > 0) {
			i := 0
			if rnd.IntN(2) == 0 {
				i = rnd.IntN(len(held))
			}
			r := held[i]
			held = append(held[:i:i], held[i+1:]...)
			s.settle(c, u, r, rnd.IntN(12) == 0 && len(r.Data) < 2000)
		}
		if rnd.IntN(15) == 0 {
			c.Rewind()
			held = nil
		}
	}
}

// settle gives a record its outcome, and notes before and after.
func (s *scene) settle(c *wal.Cursor, u *uplink, r wal.Record, refused bool) {
	o := outcome{start: s.mark(), end: never, refused: refused}
	s.h.outcome(u, r.Seq, o)
	if refused {
		c.Drop(r, "refused")
	} else {
		c.Done(r)
	}
	o.end = s.mark()
	s.h.outcome(u, r.Seq, o)
}
