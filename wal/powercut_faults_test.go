package wal_test

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"edgegateway/wal"
)

// sweep is a scene in which one call after the other is made to fail.
type sweep struct {
	name  string
	fault error
	calls []wal.Call // that fail
	times int        // so many of them, one after the other
	full  wal.Policy
	stops bool // the log has to stop; otherwise it has to go on as if nothing had been
}

func sweeps() []sweep {
	writes := []wal.Call{wal.PagesWrite, wal.MetaWrite, wal.PlainWrite, wal.Create}
	space := append([]wal.Call{wal.FirstWrite}, writes...)
	rest := []wal.Call{wal.PagesFlush, wal.MetaFlush, wal.PlainFlush, wal.DirFlush, wal.Rename, wal.Remove}
	return []sweep{
		{name: "EIO of a write", fault: syscall.EIO, calls: writes, times: 1, stops: true},
		{name: "EIO of a flush or a name", fault: syscall.EIO, calls: rest, times: 1, stops: true},
		{name: "EROFS from one call on", fault: syscall.EROFS, calls: append(rest, writes...), times: 1 << 30, stops: true},
		{name: "ENOSPC of a flush", fault: syscall.ENOSPC, calls: rest[:4], times: 1, stops: true},
		{name: "ENOSPC of a rename", fault: syscall.ENOSPC, calls: []wal.Call{wal.Rename}, times: 1},
		{name: "ENOSPC of one write", fault: syscall.ENOSPC, calls: space, times: 1},
		{name: "ENOSPC of three writes", fault: syscall.ENOSPC, calls: space, times: 3},
		{name: "ENOSPC of three writes, drop_newest", fault: syscall.ENOSPC, calls: space, times: 3, full: wal.DropNewest},
	}
}

// background has the calls that are made beside the commits too, where a drained file is emptied for later: the commit of that
// moment may still be acknowledged.
var background = map[wal.Call]bool{wal.PlainWrite: true, wal.PlainFlush: true, wal.DirFlush: true}

// TestFaults plays a scene again and again, and each time makes another call fail.
func TestFaults(t *testing.T) {
	most := 6 // cases of each sweep
	if v := os.Getenv("FAULT_CASES"); v != "" {
		var err error
		most, err = strconv.Atoi(v)
		must(t, err)
	}
	cases, wrong := 0, 0
	for _, w := range sweeps() {
		n := w.count(t)
		step := max(1, (n+most-1)/most)
		var mu sync.Mutex
		done := 0
		t.Run(w.name, func(t *testing.T) {
			// Most of the time a log on a full disk waits.
			room := make(chan struct{}, 8*runtime.GOMAXPROCS(0))
			var all sync.WaitGroup
			for i := 0; i < n; i += step {
				room <- struct{}{}
				all.Go(func() {
					defer func() { <-room }()
					hit, faults := w.play(t, i)
					mu.Lock()
					defer mu.Unlock()
					if hit {
						done++
					}
					for _, f := range faults {
						wrong++
						t.Errorf("call %d of %d: %s", i, n, f)
					}
				})
			}
			all.Wait()
			t.Logf("%d calls, %d made to fail", n, done)
			if done < (n/step)/2 {
				t.Errorf("only %d of %d calls were reached", done, n/step)
			}
		})
		cases += done
	}
	reportLine(t, "FAULT_RESULT", fmt.Sprintf("faults: cases %d false %d", cases, wrong))
}

func (w *sweep) scene(t *testing.T, dir string, fail func(wal.Call) error) *scene {
	p := profiles()[0]
	p.items, p.o.Full, p.split = 20, w.full, true
	s := newScene(t, p, 5, dir)
	s.may = []error{w.fault}
	if w.stops {
		s.may = append(s.may, wal.ErrStopped)
	}
	s.after = s.goesOn
	if w.stops {
		s.after = s.stopsSoon
	}
	s.rec.OnCall(func(c wal.Call) error {
		if slices.Contains(w.calls, c) {
			return fail(c)
		}
		return nil
	})
	return s
}

// count returns how many calls a scene has that could fail.
func (w *sweep) count(t *testing.T) int {
	n := 0
	dir := t.TempDir()
	s := w.scene(t, dir, func(wal.Call) error { n++; return nil })
	s.perform(dir)
	return n
}

// play makes call i fail, and returns whether it came, and what was wrong then.
func (w *sweep) play(t *testing.T, i int) (hit bool, wrong []string) {
	dir := t.TempDir()
	n := -1
	var what wal.Call
	s := w.scene(t, dir, func(c wal.Call) error {
		if n++; n < i || n >= i+w.times {
			return nil
		}
		what = c
		return w.fault
	})
	s.perform(dir)
	at, hit := s.rec.FailedAt()
	if !hit {
		return false, nil
	}
	fault := func(format string, args ...any) {
		wrong = append(wrong, fmt.Sprintf("%s, ", what)+fmt.Sprintf(format, args...))
	}
	switch {
	case s.log == nil: // there never was one
	case w.stops:
		// A fault that only the last commit meets is told by Close.
		if err := s.log.Err(); s.state != wal.StateStopped && at < s.ended || err != nil && !strings.Contains(err.Error(), dir) {
			fault("the log has not stopped: %s, %v", s.state, err)
		}
		for _, it := range s.h.order {
			if it.acked != never && it.acked > at && !background[what] {
				fault("item %s was acknowledged after the fault", it.id)
			}
		}
	default:
		if s.state != wal.StateOK {
			fault("the log did not recover: %s, %v", s.state, s.log.Stats().Err)
		}
		for _, it := range s.h.order {
			if it.acked == never {
				fault("item %s was given up", it.id)
			}
		}
	}
	// What a power cut leaves now.
	replica := wal.NewReplica(t.TempDir())
	m := s.rec.DiskAt(s.rec.Len(), wal.Control{})
	for _, v := range m.Variants() {
		must(t, replica.Build(m, v, s.rnd))
		_, bad := s.h.examine(replica.Dir, replica.Under(checkOptions), s.rec.Len(), s.rec.Len())
		for _, b := range bad {
			fault("%s: %s", v, b)
		}
	}
	return true, wrong
}

// stopsSoon waits until the log has stopped, where something has failed.
func (s *scene) stopsSoon() {
	for range 500 {
		s.state = s.log.Stats().State
		if _, hit := s.rec.FailedAt(); !hit || s.state == wal.StateStopped {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	s.ended = s.rec.Mark()
}

// goesOn has batches appended until one is taken: the disk has room again.
func (s *scene) goesOn() {
	for n := range 500 {
		before := s.acks.Load()
		done := s.hand(fmt.Sprint("after.", n), "after", "a", s.rnd)
		if done == nil {
			return
		}
		if <-done; s.acks.Load() > before {
			// The last of the faults may come only now.
			if s.state = s.log.Stats().State; s.state == wal.StateOK {
				return
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
}
