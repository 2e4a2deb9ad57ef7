package wal

// window remembers which records beyond the cursor have an outcome. A record has its place by its sequence, so a mark
// costs no search and no allocation.
type window struct {
	slots []uint64 // position<<1 | 1 where there is an outcome; 0 for a record that was not delivered
	mask  uint64
	done  uint64 // sequence up to which each record has an outcome
	pos   uint64 // position of the record done, or a later one before the next of its stream
	high  uint64 // highest sequence that was ever delivered or marked
}

func newWindow(size int, done, pos uint64, runs []run) window {
	n := 64
	for n < size {
		n *= 2
	}
	w := window{slots: make([]uint64, n), mask: uint64(n - 1), done: done, pos: pos, high: done}
	seq := done
	for _, r := range runs {
		if r.skip > uint64(n) || r.n > uint64(n) {
			break
		}
		seq += r.skip
		for range r.n {
			if seq++; seq-done > uint64(n) {
				return w
			}
			w.slots[seq&w.mask] = 1
			w.high = seq
		}
	}
	return w
}

// deliver notes where a record lies. It returns false when the record has its outcome already.
func (w *window) deliver(seq, pos uint64) bool {
	slot := &w.slots[seq&w.mask]
	*slot = pos<<1 | *slot&1
	w.high = max(w.high, seq)
	return *slot&1 == 0
}

// marked tells whether a record has its outcome.
func (w *window) marked(seq uint64) bool {
	return seq <= w.done || seq <= w.high && w.slots[seq&w.mask]&1 != 0
}

// mark gives a record its outcome. In order, which is how most come, the cursor moves with it.
func (w *window) mark(seq uint64) {
	if seq <= w.done || seq > w.high {
		return
	}
	slot := &w.slots[seq&w.mask]
	if seq != w.done+1 {
		*slot |= 1
		return
	}
	w.done, w.pos = seq, max(w.pos, *slot>>1)
	*slot = 0
}

// advance moves over the unbroken run of outcomes.
func (w *window) advance() {
	for w.done < w.high {
		slot := &w.slots[(w.done+1)&w.mask]
		if *slot&1 == 0 {
			break
		}
		w.done++
		w.pos = max(w.pos, *slot>>1)
		*slot = 0
	}
}

// raise moves to seq, whatever has no outcome yet.
func (w *window) raise(seq, pos uint64) {
	if seq-w.done >= uint64(len(w.slots)) {
		clear(w.slots)
		w.done = seq
	}
	for ; w.done < seq; w.done++ {
		w.slots[(w.done+1)&w.mask] = 0
	}
	w.pos, w.high = max(w.pos, pos), max(w.high, seq)
}

// runs returns the outcomes beyond the cursor, as far as a commit stores them.
func (w *window) runs() []run {
	var out []run
	var r run
	for seq := w.done + 1; seq <= w.high; seq++ {
		if w.slots[seq&w.mask]&1 != 0 {
			r.n++
			continue
		}
		if r.n > 0 {
			if out = append(out, r); len(out) == maxRuns {
				return out
			}
			r = run{}
		}
		r.skip++
	}
	if r.n > 0 {
		out = append(out, r)
	}
	return out
}
