package uplink

import (
	"math"
	"time"
)

// succeed makes a flight the one that Status looks at. What the last one has left in doubt goes over to it, but for what has its
// outcome by now, because the far cursor has passed it.
func (r *Runner) succeed(f *flight) {
	f.doubts = map[uint64]int64{}
	r.mu.Lock()
	last := r.flight
	r.flight = f
	r.mu.Unlock()
	if last == nil {
		return
	}
	last.mu.Lock()
	left := last.doubts
	last.doubts = nil
	last.mu.Unlock()
	passed := uint64(0)
	if p, ok := r.cfg.Cursor.(Position); ok {
		passed, _ = p.Position()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for seq, first := range left {
		if seq > passed {
			f.doubts[seq] = first
		}
	}
}

// doubtLocked keeps when the records that are still in flight at the end of a session were sent first.
func (f *flight) doubtLocked() {
	f.aloft.each(func(up *aloft) { f.doubts[up.seq] = up.since })
	f.aloft.clear()
}

// inDoubt returns when the oldest record was sent first of which it is not known whether the far side has it; zero for none.
func (f *flight) inDoubt() (oldest time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	first := f.aloft.oldest()
	for _, since := range f.doubts {
		first = min(first, since)
	}
	if first == math.MaxInt64 {
		return time.Time{}
	}
	return time.Unix(0, first)
}
