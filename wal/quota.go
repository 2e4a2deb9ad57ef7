package wal

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// A quota bounds what one stream may have waiting in the log: the bytes of its data that one of its cursors has not passed,
// and that are queued. At its quota a stream is full for itself alone. What its cursors have passed in memory counts as
// passed: a quota shares out the lane among the streams, and does not bound the disk, for which there is MaxBytes.

// part is what a batch has for one stream with a quota.
type part struct {
	stream string
	bytes  int64
}

// quotaParts sums up a batch by the streams that have a quota.
func (l *Log) quotaParts(b *Batch) []part {
	if len(l.o.Quotas) == 0 {
		return nil
	}
	var out []part
	for i := range b.Entries {
		e := &b.Entries[i]
		if l.o.Quotas[e.Stream] == 0 {
			continue
		}
		j := slices.IndexFunc(out, func(p part) bool { return p.stream == e.Stream })
		if j < 0 {
			j, out = len(out), append(out, part{stream: e.Stream})
		}
		out[j].bytes += int64(len(e.Data))
	}
	return out
}

// heldLocked returns the bytes of a stream that wait for one of its cursors.
func (l *Log) heldLocked(stream string) int64 {
	n, ok := l.st.numbers[stream]
	if !ok {
		return 0
	}
	var waiting []stretch
	for i := range l.ctl.cursors {
		p := &l.ctl.cursors[i]
		if l.st.cursors[p.id].stream != n {
			continue
		}
		seq := p.seq
		if c := l.open[p.id]; c != nil {
			c.mu.Lock()
			seq = max(seq, c.win.done)
			c.mu.Unlock()
		}
		waiting = addStretch(waiting, stretch{seq, l.st.end(p.id, l.ctl.tails[n].seq)})
	}
	var sum uint64
	for _, s := range waiting {
		sum += l.ends.of(n).bytesOf(s, l.ctl.tails[n])
	}
	return int64(sum)
}

// overQuotaLocked tells which stream's quota keeps a batch out, or "".
func (l *Log) overQuotaLocked(parts []part) string {
	if l.o.Full == DropOldest {
		return "" // it makes room for itself, in the commit
	}
	for _, p := range parts {
		if l.heldLocked(p.stream)+l.queuedOf[p.stream]+p.bytes > l.o.Quotas[p.stream] {
			return p.stream
		}
	}
	return ""
}

// behindLocked tells whether somebody waits already at one of the quotas: whoever comes later goes behind.
func (l *Log) behindLocked(parts []part) bool {
	return slices.ContainsFunc(l.quotaLine, func(w *waiter) bool { return share(w.item.parts, parts) })
}

func share(a, b []part) bool {
	return slices.ContainsFunc(a, func(p part) bool {
		return slices.ContainsFunc(b, func(q part) bool { return p.stream == q.stream })
	})
}

// refuseQuotaLocked says why a quota keeps an item out for good: it is larger than the quota, or the policy is to refuse.
func (l *Log) refuseQuotaLocked(it *item) error {
	for _, p := range it.parts {
		if quota := l.o.Quotas[p.stream]; p.bytes > quota {
			return fmt.Errorf("append: %w: the batch has %d bytes for stream %s and its quota is %d", ErrTooLarge, p.bytes, p.stream, quota)
		}
	}
	if l.o.Full != DropNewest {
		return nil
	}
	stream := l.overQuotaLocked(it.parts)
	if stream == "" {
		return nil
	}
	l.lackQuotaLocked(it.parts)
	l.countRefusedLocked(&it.batch)
	return fmt.Errorf("%w: stream %s has its quota of %d bytes in %s", ErrFull, stream, l.o.Quotas[stream], l.dir)
}

// lackQuotaLocked remembers what found no room, so that the stream shows as full for as long as that is so.
func (l *Log) lackQuotaLocked(parts []part) {
	for _, p := range parts {
		l.lackedOf[p.stream] = p.bytes
	}
	l.wake()
}

// enterLocked counts an item against its quotas, from when it has passed them until it is committed or given up.
func (l *Log) enterLocked(it *item) {
	for _, p := range it.parts {
		l.queuedOf[p.stream] += p.bytes
	}
}

func (l *Log) leaveLocked(it *item) {
	for _, p := range it.parts {
		l.queuedOf[p.stream] -= p.bytes
	}
}

// admitQuotaLocked lets those on who waited at a quota that has room again, in their order for each stream. From there on
// they wait for room in the lane as everybody does.
func (l *Log) admitQuotaLocked() {
	if len(l.quotaLine) == 0 {
		return
	}
	var stay []*waiter
	var blocked []part
	for _, w := range l.quotaLine {
		if err := l.refuseLocked(w.item); err != nil {
			w.out <- err
			continue
		}
		if share(blocked, w.item.parts) || l.overQuotaLocked(w.item.parts) != "" {
			blocked = append(blocked, w.item.parts...)
			stay = append(stay, w)
			continue
		}
		l.enterLocked(w.item)
		l.waiters = append(slices.Clip(l.waiters), w)
	}
	l.quotaLine = stay
}

// atQuotaLocked tells whether the stream is full for itself alone.
func (l *Log) atQuotaLocked(stream string) bool {
	lacked := l.lackedOf[stream]
	return lacked > 0 && l.heldLocked(stream)+l.queuedOf[stream]+lacked > l.o.Quotas[stream]
}

// logQuotas says once when a stream comes to its quota, and once when a quarter of it is free again: between the two a stream
// that is drained as fast as it is filled comes to its quota with each batch.
func (l *Log) logQuotas() {
	for _, stream := range l.quotaNames {
		l.mu.Lock()
		full, said := l.atQuotaLocked(stream), l.fullStreams[stream]
		if !full {
			delete(l.lackedOf, stream)
			quota := l.o.Quotas[stream]
			full = said && l.heldLocked(stream)+l.queuedOf[stream] > quota-quota/4
		}
		changed := full != said
		l.fullStreams[stream] = full
		l.mu.Unlock()
		switch {
		case changed && full:
			l.log.Warn("stream is at its quota", "dir", l.dir, "stream", stream, "policy", string(l.o.Full), "quota", l.o.Quotas[stream])
		case changed:
			l.log.Info("stream has room again", "dir", l.dir, "stream", stream)
		}
	}
}

func quotaNames(quotas map[string]int64) []string { return slices.Sorted(maps.Keys(quotas)) }

// keepQuotas raises the cursors of each stream that this commit would take beyond its quota, where the policy is
// drop_oldest. A quarter of the quota goes at once, so that a stream that is always full does not make a range of each
// commit. What this commit appends stays.
func (t *txn) keepQuotas() (raised bool) {
	l := t.l
	if l.o.Full != DropOldest {
		return false
	}
	for _, name := range l.quotaNames {
		n, ok := l.st.numbers[name]
		if !ok || int(n) >= len(l.ctl.tails) {
			continue
		}
		quota := uint64(l.o.Quotas[name])
		waiting := t.waiting(n)
		if len(waiting) == 0 {
			continue
		}
		was, ends := l.ctl.tails[n], l.ends.of(n)
		sum := t.ctl.tails[n].bytes - was.bytes // what this commit appends
		for _, s := range waiting {
			sum += ends.bytesOf(s, was)
		}
		if sum <= quota {
			continue
		}
		to, gone := tooMuch(waiting, sum-(quota-quota/4), ends, was)
		if len(gone) == 0 {
			continue
		}
		t.raiseStream(n, to)
		for _, s := range gone {
			t.drop(n, s.after+1, s.last, DroppedFull)
		}
		raised = true
	}
	return raised
}

// waiting returns what the log has of a stream before this commit that a cursor has not passed.
func (t *txn) waiting(stream uint32) (list []stretch) {
	for i := range t.ctl.cursors {
		if p := &t.ctl.cursors[i]; t.streamOf(p.id) == stream {
			list = addStretch(list, stretch{p.seq, t.l.st.end(p.id, t.l.ctl.tails[stream].seq)})
		}
	}
	return list
}

// tooMuch returns the oldest records that wait with so many bytes, and where they end.
func tooMuch(waiting []stretch, bytes uint64, ends streamEnds, was tail) (to streamEnd, gone []stretch) {
	for _, s := range waiting {
		if has := ends.bytesOf(s, was); has < bytes {
			bytes -= has
			gone, to = append(gone, s), ends.at(s.last, was)
			continue
		}
		if part := ends.seqAt(ends.bytesAt(s.after, was)+bytes, was); part.seq > s.after {
			part.seq = min(part.seq, s.last)
			gone, to = append(gone, stretch{s.after, part.seq}), part
		}
		break
	}
	return to, gone
}

// streamOf returns the stream of a cursor, which this commit may have made.
func (t *txn) streamOf(cursor uint32) uint32 {
	if name, ok := t.names[cursor]; ok {
		return name.stream
	}
	return t.l.st.cursors[cursor].stream
}

func (t *txn) raiseStream(stream uint32, to streamEnd) {
	for i := range t.ctl.cursors {
		p := &t.ctl.cursors[i]
		if t.streamOf(p.id) == stream && p.seq < to.seq {
			p.runs = shiftRuns(p.runs, to.seq-p.seq)
			p.seq, p.pos = to.seq, max(p.pos, to.pos)
		}
	}
}

// countRefusedLocked counts the records of a batch that is not taken. They become durable with the next commit, which comes
// within a second.
func (l *Log) countRefusedLocked(b *Batch) {
	l.refused += uint64(len(b.Entries))
	for i := range b.Entries {
		l.refusals[b.Entries[i].Stream]++
	}
	l.cursorMoved()
}

// takeRefusals adds what was refused since the last commit to the streams. A stream that the log has not seen keeps its
// count in memory until it is numbered.
func (t *txn) takeRefusals() {
	l := t.l
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, n := range l.refusals {
		if s, ok := l.st.numbers[name]; ok {
			t.ctl.tails[s].refused += n
			if t.refusals == nil {
				t.refusals = map[string]uint64{}
			}
			t.refusals[name] = n
		}
	}
}

// settleRefusalsLocked forgets what a commit has made durable.
func (t *txn) settleRefusalsLocked() {
	for name, n := range t.refusals {
		if left := t.l.refusals[name] - n; left > 0 {
			t.l.refusals[name] = left
		} else {
			delete(t.l.refusals, name)
		}
	}
}

// quotaPoll is how often waiters at a quota are looked after while cursors move.
const quotaPoll = 50 * time.Millisecond
