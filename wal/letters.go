package wal

import (
	"cmp"
	"slices"
)

// Purge takes dead letters out of the log and returns how many there were of those named, once that is durable. It also works
// on a full disk.
func (l *Log) Purge(numbers []uint64) (int, error) {
	purged := 0
	err := l.change(func(t *txn) { purged = t.purge(numbers) })
	if err != nil {
		return 0, err
	}
	return purged, nil
}

// purge takes dead letters out with this commit and returns how many of them there were.
func (t *txn) purge(numbers []uint64) int {
	n := 0
	for _, number := range numbers {
		key := numberedKey(keyLetter, number)
		if _, there := t.l.st.raw[key]; !there || t.purged[number] {
			continue
		}
		if t.purged == nil {
			t.purged = map[uint64]bool{}
		}
		t.purged[number] = true
		t.set(key, nil)
		n++
	}
	return n
}

// A dead letter that finds no room on the full disk waits in memory, and its record in the log. A commit is made without it then, in
// which its cursor stops before the record: after a power cut the record is read, sent and refused again. Others go on, and
// outcomes beyond it are kept as those out of order are. It is stored as soon as there is room.

// await keeps the letters that wait, under the bound of those that are stored: beyond it the oldest go, counted.
func (l *Log) await(letters []DeadLetter) {
	size := 0
	for i := range letters {
		size += letterSize(&letters[i])
	}
	l.held = letters[:0:0]
	for i := range letters {
		d := &letters[i]
		if d.gone || size > l.maxLetters() {
			size -= letterSize(d)
			l.heldLost++
			continue
		}
		l.held = append(l.held, *d)
	}
	l.setWaiting(l.held)
}

func letterSize(d *DeadLetter) int { return len(d.Data) + len(d.Reason) + letterOverhead }

// setWaiting shows which letters wait.
func (l *Log) setWaiting(letters []DeadLetter) {
	waiting := make(map[letterID]bool, len(letters))
	for i := range letters {
		waiting[letterID{letters[i].Uplink, letters[i].Stream, letters[i].Seq}] = true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch before := len(l.waitingLetters); {
	case len(waiting) > 0 && before == 0:
		l.log.Warn("no room for dead letters, they wait and their records stay in the log", "dir", l.dir, "count", len(waiting))
	case len(waiting) == 0 && before > 0:
		l.log.Info("dead letters have found room", "dir", l.dir, "count", before)
	}
	l.waitingLetters = waiting
}

// holdBack takes what waits out of what the commit says of the cursors.
func (t *txn) holdBack(waiting []DeadLetter) {
	records := map[uint32][]*DeadLetter{}
	for i := range waiting {
		d := &waiting[i]
		// One below what is durable was dropped from the log meanwhile.
		if p := t.l.ctl.cursor(d.cursor); p != nil && d.Seq > p.seq {
			records[d.cursor] = append(records[d.cursor], d)
		}
	}
	for id, some := range records {
		slices.SortFunc(some, func(a, b *DeadLetter) int { return cmp.Compare(a.Seq, b.Seq) })
		if p := t.ctl.cursor(id); p != nil {
			*p = p.without(some)
		}
	}
}

// without returns where a cursor stands when these records have no outcome.
func (p cursorPos) without(records []*DeadLetter) cursorPos {
	out := p
	at := p.seq // every record up to it has an outcome, or is one of them
	if first := records[0]; first.Seq <= p.seq {
		out.seq, out.pos = first.Seq-1, min(p.pos, first.pos-1)
	}
	out.runs = nil
	last := out.seq // the end of the run before
	add := func(from, to uint64) {
		for len(records) > 0 && records[0].Seq < from {
			records = records[1:]
		}
		for from <= to && len(out.runs) < maxRuns {
			end, next := to, to+1
			if len(records) > 0 && records[0].Seq <= to {
				end, next = records[0].Seq-1, records[0].Seq+1
				records = records[1:]
			}
			if end >= from {
				out.runs = append(out.runs, run{skip: from - last - 1, n: end - from + 1})
				last = end
			}
			from = next
		}
	}
	add(out.seq+1, at)
	for _, r := range p.runs {
		add(at+r.skip+1, at+r.skip+r.n)
		at += r.skip + r.n
	}
	return out
}
