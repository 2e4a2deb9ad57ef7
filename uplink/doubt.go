package uplink

import "time"

// succeed makes a flight the one that Status looks at. What the last one has left in doubt goes over to it, but for what has its
// outcome by now, because the far cursor has passed it.
func (r *Runner) succeed(f *flight) {
	f.doubts = map[uint64]time.Time{}
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
	for seq, up := range f.aloft {
		f.doubts[seq] = up.since
	}
	clear(f.aloft)
}

// inDoubt returns when the oldest record was sent first of which it is not known whether the far side has it; zero for none.
func (f *flight) inDoubt() (oldest time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	older := func(t time.Time) {
		if oldest.IsZero() || t.Before(oldest) {
			oldest = t
		}
	}
	for _, up := range f.aloft {
		older(up.since)
	}
	for _, first := range f.doubts {
		older(first)
	}
	return oldest
}
