package wal

// window remembers which records beyond the cursor have an outcome. A record has its place by its sequence, so a mark
// costs no search. It has as much room as there are records without outcome: it doubles up to size.
type window struct {
	size  uint64
	slots []uint64 // position<<1 | 1 where there is an outcome; 0 for a record that was not delivered
	mask  uint64
	done  uint64 // sequence up to which each record has an outcome
	pos   uint64 // position of the record done, or a later one before the next of its stream
	high  uint64 // highest sequence that was ever delivered or marked
}

func newWindow(size int, done, pos uint64, runs []run) window {
	w := window{size: 64, done: done, pos: pos, high: done}
	for w.size < uint64(size) {
		w.size *= 2
	}
	w.slots, w.mask = make([]uint64, 64), 63
	seq := done
	for _, r := range runs {
		if r.skip > w.size || r.n > w.size {
			break
		}
		seq += r.skip
		for range r.n {
			if seq++; seq-done > w.size {
				return w
			}
			w.reach(seq)
			w.slots[seq&w.mask] = 1
			w.high = seq
		}
	}
	return w
}

// reach makes room for a record.
func (w *window) reach(seq uint64) {
	n := uint64(len(w.slots))
	for n < seq-w.done && n < w.size {
		n *= 2
	}
	if n == uint64(len(w.slots)) {
		return
	}
	slots := make([]uint64, n)
	for s := w.done + 1; s <= w.high; s++ {
		slots[s&(n-1)] = w.slots[s&w.mask]
	}
	w.slots, w.mask = slots, n-1
}

// deliver notes where a record lies. It returns false when the record has its outcome already.
func (w *window) deliver(seq, pos uint64) bool {
	w.reach(seq)
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
