package wal

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// item is one thing that the committer takes in order: a batch, a new cursor, or the release of one.
type item struct {
	batch   Batch
	cost    int
	done    func(error)
	at      time.Time
	change  func(*txn) // for a cursor: what it changes; nil for a batch
	settles bool       // of a change: the outcomes of all cursors are to be durable with it
	parts   []part     // of a batch: what counts against quotas
}

// isEmpty tells whether the item writes nothing: its callback only waits for what was appended before it.
func (it *item) isEmpty() bool {
	return it.change == nil && len(it.batch.Entries)+len(it.batch.State)+len(it.batch.Letters) == 0
}

// waiter is an item that waits for room. Waiters enter in the order they came, but for those that wait at a quota.
type waiter struct {
	item *item
	out  chan error // holds one; nil means that the item is queued
}

const (
	entryCost  = recordOverhead + 16
	changeCost = stateOverhead
	// reserveBytes is what a commit and a new segment may take beyond what they hold.
	reserveBytes = 64 << 10
	// earlyBytes of waiting data are worth a commit, whoever waits.
	earlyBytes = 256 << 10
)

// Append queues b for the next commit and returns; it waits only for room, until ctx ends. Once it has returned nil,
// done is called exactly once, in the order of the Append calls: with nil when all of b is on stable storage, or with
// ErrStopped, ErrFull or ErrClosed when it is not and will not be. An empty b costs no commit: done tells when all that was
// appended before it is on stable storage. done runs on the committer: it must not block, and
// must not call Append, Close or a method that waits for a commit. It may be nil. The data of b must not be changed
// until then.
//
// An error means that nothing of b was taken and done is never called: ErrTooLarge when a record or the batch exceeds its
// bound, ErrFull when the log is full and refuses (drop_newest) or the state would exceed 3 MiB, ErrStopped, ErrClosed,
// or the context's error.
func (l *Log) Append(ctx context.Context, b Batch, done func(error)) error {
	cost, err := checkBatch(&b)
	if err != nil {
		return err
	}
	return l.enqueue(ctx, &item{batch: b, cost: cost, done: done, parts: l.quotaParts(&b)})
}

func checkBatch(b *Batch) (int, error) {
	cost := 0
	for i := range b.Entries {
		e := &b.Entries[i]
		if len(e.Data) > MaxRecord {
			return 0, fmt.Errorf("append to stream %s: %w: %d bytes (at most %d)", e.Stream, ErrTooLarge, len(e.Data), MaxRecord)
		}
		if e.Stream == "" || len(e.Stream) > maxName {
			return 0, fmt.Errorf("append: name of a stream has %d bytes (want 1 to %d)", len(e.Stream), maxName)
		}
		cost += len(e.Data) + entryCost
	}
	for i := range b.State {
		c := &b.State[i]
		if c.Key == "" || len(c.Key) > maxKey {
			return 0, fmt.Errorf("append: key of the state has %d bytes (want 1 to %d)", len(c.Key), maxKey)
		}
		cost += len(c.Key) + len(c.Value) + changeCost
	}
	cost += len(b.Letters) * changeCost
	if cost > MaxCommit {
		return 0, fmt.Errorf("append: %w: the batch has %d bytes (at most %d in one commit)", ErrTooLarge, cost, MaxCommit)
	}
	return cost, nil
}

// enqueue puts it into the queue, now or when there is room.
func (l *Log) enqueue(ctx context.Context, it *item) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	l.mu.Lock()
	if err := l.refuseLocked(it); err != nil {
		l.mu.Unlock()
		return err
	}
	w := &waiter{item: it, out: make(chan error, 1)}
	switch {
	case len(it.parts) > 0 && (l.behindLocked(it.parts) || l.overQuotaLocked(it.parts) != ""):
		l.quotaLine = append(l.quotaLine, w)
		l.lackQuotaLocked(it.parts)
	case len(l.waiters) == 0 && l.roomLocked(it.cost):
		l.enterLocked(it)
		l.pushLocked(it)
		// A quiet batch behind another changes nothing in when the committer has to act.
		due := it.batch.Urgent || len(l.pending) == 1 || l.queued >= min(earlyBytes, l.maxCommit()/2)
		l.mu.Unlock()
		if due {
			l.wake()
		}
		return nil
	default:
		l.enterLocked(it)
		l.waiters = append(l.waiters, w)
		l.wantLocked(it.cost)
	}
	l.mu.Unlock()
	select {
	case err := <-w.out:
		return err
	case <-ctx.Done():
		return l.giveUp(w, ctx.Err())
	}
}

// giveUp takes w out of the line. Where its turn came in the same moment the item is queued, and stays so.
func (l *Log) giveUp(w *waiter, cause error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case err := <-w.out:
		return err
	default:
	}
	if i := slices.Index(l.waiters, w); i >= 0 {
		l.waiters = slices.Delete(l.waiters, i, i+1)
		l.leaveLocked(w.item)
	} else if i := slices.Index(l.quotaLine, w); i >= 0 {
		l.quotaLine = slices.Delete(l.quotaLine, i, i+1)
	}
	l.admitLocked() // those behind it may be smaller
	l.wake()
	return cause
}

// refuseLocked says why an item cannot be taken at all.
func (l *Log) refuseLocked(it *item) error {
	switch {
	case l.closing:
		return ErrClosed
	case l.err != nil:
		return l.err
	}
	if l.o.MaxBytes > 0 && int64(it.cost)+l.reserveLocked() > l.o.MaxBytes/2 {
		return fmt.Errorf("append: %w: the batch has %d bytes and the log may have %d", ErrTooLarge, it.cost, l.o.MaxBytes)
	}
	if l.o.Full == DropNewest && l.fullLocked(it.cost) {
		l.countRefusedLocked(&it.batch)
		l.wantLocked(it.cost)
		return l.fullError()
	}
	if err := l.refuseQuotaLocked(it); err != nil {
		return err
	}
	return l.stateRoomLocked(it)
}

func (l *Log) fullError() error {
	if l.noSpace != nil {
		return fmt.Errorf("%w: %s: %w", ErrFull, l.dir, l.noSpace)
	}
	return fmt.Errorf("%w: %s has its %d bytes", ErrFull, l.dir, l.o.MaxBytes)
}

// stateRoomLocked refuses a batch that would make the lane's state too large.
func (l *Log) stateRoomLocked(it *item) error {
	const bound = maxState - maxLetters
	if len(it.batch.State) == 0 {
		return nil
	}
	size := l.st.bytes - l.st.letterBytes
	if size+l.queued+it.cost <= bound {
		return nil // even if each change were a new key
	}
	sizes := map[string]int{}
	add := func(b *Batch) {
		for _, c := range b.State {
			key := string(keyUser) + c.Key
			old, known := sizes[key]
			if v, ok := l.st.raw[key]; !known && ok {
				old = pairSize(key, v)
			}
			now := 0
			if c.Value != nil {
				now = pairSize(key, c.Value)
			}
			size += now - old
			sizes[key] = now
		}
	}
	for _, list := range [][]*item{l.inflight, l.pending} {
		for _, other := range list {
			add(&other.batch)
		}
	}
	add(&it.batch)
	if size > bound {
		return fmt.Errorf("append: %w: the lane's state would have %d bytes (at most %d)", ErrFull, size, bound)
	}
	return nil
}

// fullLocked tells whether cost more would exceed what the lane may have on disk, or the disk has no more.
func (l *Log) fullLocked(cost int) bool {
	if l.noSpace != nil && time.Now().Before(l.retryAt) {
		return true // after that somebody has to try
	}
	return l.o.MaxBytes > 0 && l.usedLocked()+int64(l.queued+cost)+l.reserveLocked() > l.o.MaxBytes
}

func (l *Log) usedLocked() int64 {
	var n int64
	for i, s := range l.segs {
		if n += s.bytes; i < len(l.segs)-1 {
			n += max(s.disk-s.bytes, 0) // the rest of a file that was used before is taken for good
		}
	}
	return n
}

func (l *Log) reserveLocked() int64 { return reserveBytes + 2*int64(l.st.bytes) }

// maxCommit bounds what is committed together. A small log takes less, or one commit would push out all the others.
func (l *Log) maxCommit() int {
	if l.o.MaxBytes == 0 {
		return MaxCommit
	}
	return int(min(MaxCommit, l.o.MaxBytes/4))
}

// roomLocked tells whether an item of that cost may enter the queue now.
func (l *Log) roomLocked(cost int) bool {
	if l.queued > 0 && l.queued+cost > l.maxCommit() {
		return false
	}
	return l.o.Full == DropOldest || !l.fullLocked(cost)
}

// wantLocked has the committer look whether it can make that much room.
func (l *Log) wantLocked(cost int) {
	l.wanted = max(l.wanted, cost)
	l.lacked = cost
	l.wake()
}

func (l *Log) pushLocked(it *item) {
	it.at = time.Now()
	l.pending = append(l.pending, it)
	l.queued += it.cost
}

// admitLocked lets waiters in as far as there is room, in their order.
func (l *Log) admitLocked() {
	l.admitQuotaLocked()
	n := 0
	for _, w := range l.waiters {
		if err := l.refuseLocked(w.item); err != nil {
			l.leaveLocked(w.item)
			w.out <- err
		} else if l.roomLocked(w.item.cost) {
			l.pushLocked(w.item)
			w.out <- nil
		} else {
			break
		}
		n++
	}
	if n > 0 {
		l.waiters = slices.Clone(l.waiters[n:])
	}
}
