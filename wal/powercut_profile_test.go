package wal_test

import (
	"math/rand/v2"
	"syscall"
	"time"

	"edgegateway/wal"
)

// profile is a way to use a log.
type profile struct {
	name     string
	o        wal.Options
	slow     time.Duration  // between two reads of the uplink y, and after a refusal
	behind   int64          // batches that are acknowledged between two reads of the uplink y
	items    int            // of each producer
	why      wal.DropReason // that records are dropped for; 0 where none may be
	refuses  bool           // records are refused
	waits    bool           // the log is full at times
	fullDisk bool           // the disk is full at times
	release  bool           // cursors are released, and others opened
	split    bool           // cursors are split, and one again later
}

func profiles() []profile {
	base := wal.Options{SegmentBytes: small, Window: 40, MaxDelay: 3 * time.Millisecond, NewEpoch: 7}
	with := func(full wal.Policy, maxBytes int64, maxAge time.Duration) wal.Options {
		o := base
		o.Full, o.MaxBytes, o.MaxAge = full, maxBytes, maxAge
		return o
	}
	const tiny = 512 << 10
	return []profile{
		{name: "rotation and freeing", o: base, items: 40},
		{name: "drop_oldest", o: with(wal.DropOldest, tiny, 0), slow: 4 * time.Millisecond, items: 60, why: wal.DroppedFull},
		{name: "drop_newest", o: with(wal.DropNewest, tiny, 0), slow: 4 * time.Millisecond, items: 80, refuses: true, waits: true},
		{name: "block", o: with(wal.Block, tiny, 0), slow: 25 * time.Millisecond, items: 50, waits: true},
		{name: "max_age", o: with("", 0, 30*time.Millisecond), slow: 15 * time.Millisecond, items: 60, why: wal.DroppedAge},
		{name: "release", o: base, slow: time.Millisecond, items: 60, release: true},
		{name: "split", o: base, slow: 2 * time.Millisecond, behind: 2, items: 60, split: true},
		{name: "split, drop_oldest", o: with(wal.DropOldest, tiny, 0), slow: 4 * time.Millisecond, items: 60, why: wal.DroppedFull, split: true},
		{name: "full disk", o: base, items: 30, waits: true, fullDisk: true},
		{
			name: "full disk, drop_oldest", o: with(wal.DropOldest, 0, 0), behind: 25, items: 40, why: wal.DroppedFull,
			fullDisk: true,
		},
		{
			name: "full disk, drop_newest", o: with(wal.DropNewest, 0, 0), slow: 4 * time.Millisecond, items: 60, refuses: true, waits: true,
			fullDisk: true,
		},
	}
}

// fullAtTimes lets a few calls that need room find none, then lets many go well.
func (s *scene) fullAtTimes(rnd *rand.Rand) func(wal.Call) error {
	left := 60 // calls until the disk is full, or has room again
	full := false
	return func(c wal.Call) error {
		switch c {
		case wal.PagesWrite, wal.PlainWrite, wal.Create:
		default:
			return nil
		}
		if left--; left < 0 {
			if full = !full; full {
				left = rnd.IntN(4)
			} else {
				left = 80 + rnd.IntN(120)
			}
		}
		if full {
			s.waited.Add(1)
			return syscall.ENOSPC
		}
		return nil
	}
}

// shown counts what the scenes of a profile had in them.
type shown struct{ begun, freed, letters, dropped, refused, released, splits, joined, waited int }

func (n *shown) add(s *scene) {
	begun, freed := s.rec.Segments()
	n.begun, n.freed = n.begun+begun, n.freed+freed
	for _, u := range s.h.ups {
		for _, o := range u.outcomes {
			if o.dropped {
				n.letters++
			}
		}
		if u.released.end > 0 {
			n.released++
		}
	}
	for _, r := range s.h.fin {
		if r.Why != s.p.why {
			s.t.Errorf("range %+v in a scene that drops for %v", r, s.p.why)
		}
		n.dropped++
	}
	n.refused += len(s.h.refusals)
	n.splits, n.joined = n.splits+int(s.splits.Load()), n.joined+int(s.joined.Load())
	n.waited += int(s.waited.Load())
}

// enough tells whether the scenes were lively enough to prove something.
func (n *shown) enough(p profile) bool {
	return n.begun >= 4 && n.freed > 0 && n.letters > 0 && n.dropped > 0 == (p.why != 0) && n.refused > 0 == p.refuses &&
		n.released > 0 == p.release && n.splits > 1 == p.split && n.joined > 0 == p.split && (n.waited > 0 || !p.waits)
}
