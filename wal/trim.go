package wal

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"
)

// retryFull is how long the log waits before it tries a full disk again.
const retryFull = time.Second

// clockSet is the time before which a clock cannot have been right: such a segment has no age.
var clockSet = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)

// needed tells whether a cursor still has to read a record of segment i.
func (l *Log) needed(i int) bool {
	for j := range l.ctl.cursors {
		p := &l.ctl.cursors[j]
		before, last := l.span(i, l.st.cursors[p.id].stream)
		if last = l.st.end(p.id, last); last > before && last > p.seq {
			return true
		}
	}
	return false
}

// span returns the sequence before the first and that of the last record of a stream in segment i.
func (l *Log) span(i int, stream uint32) (before, last uint64) {
	if s := l.segs[i]; int(stream) < len(s.first) {
		before = s.first[stream]
	}
	if i+1 < len(l.segs) {
		if next := l.segs[i+1]; int(stream) < len(next.first) {
			return before, next.first[stream]
		}
		return before, before
	}
	return before, l.ctl.tails[stream].seq
}

// free unlinks the oldest segments that no cursor needs. A crash in between leaves that to the next start.
func (l *Log) free() error {
	for len(l.segs) > 1 && !l.needed(0) {
		if err := l.unlinkOldest(); err != nil {
			return err
		}
	}
	if err := l.hollowOut(); err != nil {
		return err
	}
	// The active segment goes too when that is what it takes to have room again.
	l.mu.Lock()
	want := l.wanted
	if len(l.waiters) > 0 {
		want = max(want, l.waiters[0].item.cost)
	}
	full := l.noSpace == nil && l.o.Full != DropOldest && l.fullLocked(want)
	l.mu.Unlock()
	if full && len(l.segs) == 1 && l.active().base <= l.ctl.last && !l.needed(0) {
		if err := l.rotate(); err != nil {
			if isNoSpace(err) {
				return nil
			}
			return err
		}
		return l.unlinkOldest()
	}
	return nil
}

func (l *Log) unlinkOldest() error {
	oldest := l.segs[0]
	l.mu.Lock()
	l.segs = l.segs[1:len(l.segs):len(l.segs)]
	l.retryAt = time.Time{} // there may be room again
	l.mu.Unlock()
	if err := l.retire(oldest); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("free segment: %w", err)
	}
	return nil
}

// makeRoom drops the oldest segments, where that is the policy, until items fit into max_bytes.
func (l *Log) makeRoom(items []*item) error {
	if l.o.MaxBytes == 0 || l.o.Full != DropOldest || len(items) == 0 {
		return nil
	}
	for {
		cost := 0
		for _, it := range items {
			cost += it.cost
		}
		l.mu.Lock()
		over := l.usedLocked()+int64(cost)+l.reserveLocked() > l.o.MaxBytes
		l.mu.Unlock()
		if !over {
			return nil
		}
		if dropped, err := l.dropOldest(DroppedFull); err != nil || !dropped {
			return err
		}
	}
}

// dropOldest lets the oldest segment go, delivered or not. First the cursors are raised past it and the ranges counted,
// in a commit of their own; only then the file is unlinked. It returns false where there is nothing to drop.
func (l *Log) dropOldest(why DropReason) (bool, error) {
	if len(l.segs) == 1 {
		if l.active().base > l.ctl.last {
			return false, nil
		}
		if err := l.rotate(); err != nil {
			return false, err
		}
	}
	if l.needed(0) {
		if err := l.commitDrop(func(t *txn) { t.raise(why) }); err != nil {
			return false, err
		}
		l.raiseOpen()
	}
	return true, l.unlinkOldest()
}

// raise moves the cursors past the oldest segment and counts what at least one of them had not passed.
func (t *txn) raise(why DropReason) {
	l := t.l
	gone := map[uint32][]stretch{}
	for i := range t.ctl.cursors {
		p := &t.ctl.cursors[i]
		stream := l.st.cursors[p.id].stream
		before, last := l.span(0, stream)
		if last <= before || last <= p.seq {
			continue
		}
		gone[stream] = addStretch(gone[stream], stretch{max(p.seq, before), l.st.end(p.id, last)})
		p.runs = shiftRuns(p.runs, last-p.seq)
		p.seq, p.pos = last, max(p.pos, l.segs[1].base-1)
	}
	for stream, list := range gone {
		for _, s := range list {
			t.drop(stream, s.after+1, s.last, why)
		}
	}
}

// shiftRuns takes n records off the front of runs.
func shiftRuns(runs []run, n uint64) []run {
	out := slices.Clone(runs)
	for len(out) > 0 && n > 0 {
		r := &out[0]
		d := min(r.skip, n)
		r.skip, n = r.skip-d, n-d
		d = min(r.n, n)
		if r.skip == 0 {
			r.n, n = r.n-d, n-d
		}
		if r.n > 0 {
			break
		}
		out = out[1:]
	}
	return out
}

// raiseOpen moves the open cursors to where the last commit raised them.
func (l *Log) raiseOpen() {
	l.mu.Lock()
	cursors := l.openCursors()
	l.mu.Unlock()
	for _, c := range cursors {
		if p := l.ctl.cursor(c.id); p != nil {
			c.raise(p.seq, p.pos)
		}
	}
}

// expire lets segments go whose newest record is older than max_age.
func (l *Log) expire() error {
	if l.o.MaxAge == 0 {
		return nil
	}
	l.aged = time.Now()
	limit := l.ages.now(l.o.clock()).Add(-l.o.MaxAge)
	if limit.Before(clockSet) {
		return nil
	}
	for {
		s := l.segs[0]
		newest := time.Unix(0, s.newest)
		if s.newest == 0 || newest.Before(clockSet) || newest.After(limit) {
			return nil
		}
		if dropped, err := l.dropOldest(DroppedAge); err != nil || !dropped {
			return err
		}
	}
}

// outOfSpace follows the policy when a commit of items found no room. again says that room was made.
func (l *Log) outOfSpace(items []*item, cause error) (again bool, err error) {
	l.mu.Lock()
	l.noSpace, l.retryAt = cause, time.Now().Add(retryFull)
	// They go back to the front, in their order, or are refused below.
	l.pending = slices.Concat(items, l.pending)
	l.inflight = nil
	l.stuck = len(items) > 0 && !slices.ContainsFunc(items, func(it *item) bool { return it.change == nil })
	l.mu.Unlock()
	if again, err := l.spareRoom(); again || err != nil {
		return again, err
	}
	switch l.o.Full {
	case Block:
	case DropNewest:
		l.refuseBatches()
	case DropOldest:
		if len(l.segs) > 1 {
			dropped, err := l.dropOldest(DroppedFull)
			if dropped || err != nil && !isNoSpace(err) {
				return dropped, err
			}
		}
	}
	// Cursors go on, and with them the freeing of space: they need no new pages. Dead letters may; where there is no room for
	// them they wait (letters.go), and what is not about outcomes goes without them.
	err = l.commitItems(nil)
	if isNoSpace(err) && len(l.held) > 0 {
		err = l.commitWithoutLetters()
	}
	if err != nil && !isNoSpace(err) {
		return false, err
	}
	return false, nil
}

// commitWithoutLetters writes the cursors, as far as no dead letter waits, and what opens, releases and purges.
func (l *Log) commitWithoutLetters() error {
	l.mu.Lock()
	var some, rest []*item
	for _, it := range l.pending {
		if it.change != nil && !it.settles {
			some = append(some, it)
		} else {
			rest = append(rest, it)
		}
	}
	l.inflight, l.pending = some, rest
	l.mu.Unlock()
	err := l.commitAll(some, true)
	if err == nil {
		l.finish(some)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.inflight, l.pending = nil, slices.Concat(some, l.pending) // which may have grown
	}
	l.stuck = slices.ContainsFunc(l.pending, func(it *item) bool { return it.change != nil })
	return err
}

// refuseBatches fails what waits with ErrFull.
func (l *Log) refuseBatches() {
	l.mu.Lock()
	var keep, gone []*item
	for _, it := range l.pending {
		if it.change != nil {
			keep = append(keep, it)
			continue
		}
		gone = append(gone, it)
		l.queued -= it.cost
		l.leaveLocked(it)
		l.countRefusedLocked(&it.batch)
	}
	l.pending = keep
	err := l.fullError()
	l.mu.Unlock()
	for _, it := range gone {
		if it.done != nil {
			it.done(err)
		}
	}
}
