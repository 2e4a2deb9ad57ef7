package wal

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"
)

const (
	gatherPart  = 8 // the part of a commit's time that the next one waits for company at the most
	gatherQuiet = 4 // how often in a row the others may run without appending
)

// run is the committer. It sleeps until something is due, makes one commit of all that waits, and calls back in order.
// What arrives while it writes goes into the next commit, so commits are as large as the load asks for.
func (l *Log) run() {
	defer close(l.finished)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	var movedAt time.Time
	for {
		if !l.moved.Load() {
			movedAt = time.Time{}
		} else if movedAt.IsZero() {
			movedAt = time.Now()
		}
		if err := l.prepared(false); err != nil {
			l.stop(err)
			l.end()
			return
		}
		wait, last := l.due(movedAt)
		l.logQuotas()
		if wait > 0 {
			if err := l.present(watchPeriod); err != nil {
				l.stop(err)
				l.end()
				return
			}
			timer.Reset(min(wait, watchPeriod))
			select {
			case <-l.poke:
			case <-timer.C:
			}
			continue
		}
		stopped := l.cycle(last)
		if stopped || last {
			l.end()
			return
		}
	}
}

// due returns how long the committer may sleep, and whether the log is closing.
func (l *Log) due(movedAt time.Time) (wait time.Duration, closing bool) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closing {
		return 0, true
	}
	if l.wanted > 0 || l.hurry.Load() && l.noSpace == nil {
		return 0, false
	}
	if len(l.quotaLine) > 0 {
		l.admitLocked()
	}
	at := now.Add(time.Hour)
	sooner := func(t time.Time) {
		if t.Before(at) {
			at = t
		}
	}
	if !movedAt.IsZero() {
		delay := idleCommit
		if len(l.waiters) > 0 {
			delay = idleCommit / 20 // somebody waits for what the cursors free
		}
		sooner(movedAt.Add(delay))
	}
	if len(l.quotaLine) > 0 && l.moved.Load() {
		sooner(now.Add(quotaPoll))
	}
	if l.o.MaxAge > 0 {
		sooner(l.aged.Add(min(l.o.MaxAge/10, time.Minute)))
	}
	if l.noSpace != nil && len(l.pending)+len(l.waiters)+len(l.held) > 0 {
		sooner(l.retryAt)
	}
	if len(l.pending) > 0 {
		// On a full disk the batches wait for the next try; only cursors are opened and released.
		blocked := l.noSpace != nil && now.Before(l.retryAt)
		for _, it := range l.pending {
			switch {
			case it.change != nil && (!blocked || !l.stuck):
				sooner(it.at)
			case blocked:
			case it.batch.Urgent:
				sooner(it.at.Add(l.o.UrgentDelay))
			default:
				sooner(it.at.Add(l.o.MaxDelay))
			}
			if !at.After(now) {
				break
			}
		}
		if !blocked && (l.queued >= min(earlyBytes, l.maxCommit()/2) || len(l.waiters) > 0) {
			at = now
		}
	}
	return at.Sub(now), false
}

// cycle makes one commit and what follows from it. It returns true when the log has stopped.
func (l *Log) cycle(last bool) bool {
	l.hurry.Store(false)
	if err := l.expire(); err != nil && !isNoSpace(err) {
		return l.stop(err)
	}
	if !last {
		l.gather()
	}
	for {
		items := l.take(last)
		err := l.makeRoom(items)
		if err == nil {
			err = l.commitItems(items)
		}
		if err == nil {
			err = l.prepared(false) // nothing is acknowledged after a flush is known to have failed
		}
		if err == nil {
			if l.finish(items); last && l.hasPending() {
				continue
			}
			break
		}
		if !isNoSpace(err) {
			return l.stop(err)
		}
		again, err := l.outOfSpace(items, err)
		if err != nil {
			return l.stop(err)
		}
		if !again {
			break
		}
	}
	if err := errors.Join(l.free(), l.trimSpares()); err != nil {
		return l.stop(err)
	}
	l.mu.Lock()
	l.wanted = 0
	l.admitLocked()
	if now := time.Now(); l.noSpace != nil && len(l.waiters) > 0 && now.After(l.retryAt) {
		l.retryAt = now.Add(retryFull)
	}
	l.mu.Unlock()
	l.logFull()
	return false
}

func (l *Log) hasPending() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.pending) > 0
}

// gather lets those go first whom the last commit has called back and who append again at once: they come into the next
// commit then, and not into the one after it. It ends as soon as nobody appends any more, and after a small part of what a
// commit takes.
func (l *Log) gather() {
	until := time.Now().Add(l.took / gatherPart)
	before := 0
	for quiet := 0; quiet < gatherQuiet; runtime.Gosched() {
		l.mu.Lock()
		n, full := len(l.pending), len(l.waiters) > 0
		l.mu.Unlock()
		if quiet++; n != before {
			before, quiet = n, 0
		}
		if full || !time.Now().Before(until) {
			return
		}
	}
}

// take moves what the next commit holds from pending to inflight.
func (l *Log) take(last bool) []*item {
	l.mu.Lock()
	defer l.mu.Unlock()
	blocked := l.noSpace != nil && !last && time.Now().Before(l.retryAt)
	if len(l.inflight) == 0 && !blocked && l.queued <= l.maxCommit() {
		l.inflight, l.pending, l.room = l.pending, l.room, nil // nearly always it is all that waits
		return l.inflight
	}
	var rest []*item
	cost := 0
	for i, it := range l.pending {
		if blocked && (it.change == nil || l.stuck) {
			rest = append(rest, it)
			continue
		}
		if cost > 0 && cost+it.cost > l.maxCommit() {
			rest = append(rest, l.pending[i:]...)
			break
		}
		cost += it.cost
		l.inflight = append(l.inflight, it)
	}
	l.pending = rest
	return l.inflight
}

// commitItems writes items, or only the cursors where there are none.
func (l *Log) commitItems(items []*item) error { return l.commitAll(items, false) }

// commitAll is commitItems, with dead letters or, where those have to wait for room, without.
func (l *Log) commitAll(items []*item, lettersWait bool) error {
	if l.segmentFull(items) {
		if err := l.rotateIfRoom(); err != nil {
			return err
		}
	}
	if !l.moved.Load() && (lettersWait || len(l.held) == 0) && !slices.ContainsFunc(items, func(it *item) bool { return !it.isEmpty() }) {
		return nil
	}
	start := time.Now()
	t := l.begin(lettersWait)
	for _, it := range items {
		t.add(it)
	}
	t.owedGaps()
	raised := t.keepQuotas()
	err := t.commit()
	l.took = time.Since(start)
	if err != nil {
		return err
	}
	if raised {
		l.raiseOpen()
	}
	if !lettersWait && len(t.letters) > 0 { // there is room
		l.mu.Lock()
		l.noSpace = nil
		l.mu.Unlock()
	}
	return l.present(0)
}

// segmentFull tells whether the next segment should begin: when the active one has its size, or when a commit of items would
// make the file longer and it is well filled.
func (l *Log) segmentFull(items []*item) bool {
	a := l.active()
	used, need := a.bytes-a.empty, int64(5*pageSize)
	for _, it := range items {
		need += int64(it.cost)
	}
	return used >= l.o.SegmentBytes || used >= l.o.SegmentBytes/2 && a.bytes+need > l.o.SegmentBytes
}

// finish acknowledges the items in flight and wakes the cursors.
func (l *Log) finish(items []*item) {
	l.mu.Lock()
	l.inflight, l.stuck = nil, false
	for _, it := range items {
		l.queued -= it.cost
		l.leaveLocked(it)
	}
	batches := false
	for _, it := range items {
		batches = batches || it.change == nil && !it.isEmpty()
	}
	if batches {
		l.noSpace = nil
	}
	cursors := l.openCursors()
	l.mu.Unlock()
	for _, it := range items {
		if it.done != nil {
			it.done(nil)
		}
	}
	if len(items) > 0 {
		for _, c := range cursors {
			c.poke()
		}
	}
	clear(items)
	l.room = items[:0]
}

// rotate seals the active segment and begins the next one, which carries the whole state.
func (l *Log) rotate() error {
	a := l.active()
	h := header{
		uuid: l.uuid, epoch: l.epoch, number: a.number + 1, base: l.ctl.last + 1, created: nanos(time.Now()),
		first: make([]uint64, len(l.ctl.tails)),
	}
	for i, t := range l.ctl.tails {
		h.first[i] = t.seq
	}
	c := l.ctl
	c.newest, c.stateSum = 0, l.st.sum
	from, err := l.takeSpare()
	if err != nil {
		return err
	}
	next, err := createSegment(l.dir, &l.o, from, h, c, l.st.raw)
	if err != nil {
		return err
	}
	l.layout = layout{}
	l.mu.Lock()
	l.segs = append(slices.Clip(l.segs), next)
	l.ctl.newest = 0
	l.countLocked(next.bytes)
	l.mu.Unlock()
	if err := a.seal(); err != nil {
		return fmt.Errorf("seal segment: %w", err)
	}
	l.prepare()
	return nil
}

// stop ends all writing after an error that may have cost data: what the kernel still shows is not what is on the
// medium. Nothing is acknowledged any more; reading goes on.
func (l *Log) stop(cause error) bool {
	err := fmt.Errorf("%w: %s: %w", ErrStopped, l.dir, cause)
	l.log.Error("log has stopped", "dir", l.dir, "err", cause)
	l.mu.Lock()
	l.err = err
	l.mu.Unlock()
	return true
}

// end fails what still waits when the committer ends.
func (l *Log) end() {
	_ = l.prepared(true) // whatever came of it, the file is emptied again at the next start
	l.mu.Lock()
	err := l.err
	if err == nil {
		err = ErrClosed
		if l.noSpace != nil && len(l.pending) > 0 {
			err = fmt.Errorf("%w: %w", ErrClosed, l.fullError())
		}
	}
	// Whoever comes after this is refused, because closing or err is set.
	items := slices.Concat(l.inflight, l.pending)
	waiters := slices.Concat(l.waiters, l.quotaLine)
	l.inflight, l.pending, l.waiters, l.quotaLine, l.queued = nil, nil, nil, nil, 0
	clear(l.queuedOf)
	cursors := l.openCursors()
	l.mu.Unlock()
	for _, it := range items {
		if it.done != nil {
			it.done(err)
		}
	}
	for _, w := range waiters {
		w.out <- err
	}
	for _, c := range cursors {
		c.poke()
	}
}

// logFull says once when the log becomes full, and once when it has room again.
func (l *Log) logFull() {
	l.mu.Lock()
	full := l.isFullLocked()
	changed := full != l.wasFull
	l.wasFull = full
	if !full {
		l.lacked = 0
	}
	cause := l.noSpace
	l.mu.Unlock()
	switch {
	case !changed:
	case full && cause != nil:
		l.log.Warn("log is full", "dir", l.dir, "policy", string(l.o.Full), "err", cause)
	case full:
		l.log.Warn("log is full", "dir", l.dir, "policy", string(l.o.Full), "max_bytes", l.o.MaxBytes)
	default:
		l.log.Info("log has room again", "dir", l.dir)
	}
}

func (l *Log) isFullLocked() bool {
	if l.noSpace != nil {
		return true
	}
	return l.o.Full != DropOldest && l.fullLocked(l.lacked)
}
