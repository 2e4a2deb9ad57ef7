package uplink

import (
	"context"
	"fmt"
	"time"

	"edgegateway/wal"
)

// watch settles reports until the session is over: halted and nothing worth waiting for, stalled, or told to stop.
func (f *flight) watch(ctx context.Context) {
	stall := f.r.cfg.Timing.Stall
	timer := time.NewTimer(stall)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			f.drain()
			return
		case <-f.wake:
			if f.settle() {
				return
			}
		case <-f.r.renew:
			f.halt(nil)
		case now := <-timer.C:
			f.mu.Lock()
			left, stalled := stall, false
			if f.aloft.count > 0 {
				left = f.progress.Add(stall).Sub(now)
				stalled = left <= 0
			}
			if stalled {
				f.haltLocked(fmt.Errorf("connected, but no answer for %v with %d records in flight", stall, f.aloft.count))
			}
			f.mu.Unlock()
			if stalled {
				return
			}
			timer.Reset(left)
		}
	}
}

// drain gives the records in flight a last chance to be confirmed before a stop, or they would be sent twice.
func (f *flight) drain() {
	f.halt(nil)
	timer := time.NewTimer(f.r.cfg.Timing.Drain)
	defer timer.Stop()
	for {
		over := f.settle()
		f.mu.Lock()
		up := f.aloft.count
		f.mu.Unlock()
		if over || up == 0 {
			return
		}
		select {
		case <-timer.C:
			return
		case <-f.wake:
		}
	}
}

// settle brings what was reported to the cursor and reports whether the session is over.
func (f *flight) settle() (over bool) {
	f.mu.Lock()
	reports := f.reports
	f.reports, f.spare, f.settling = f.spare, nil, true
	f.mu.Unlock()
	acks := f.acks[:0]
	progress := false
	acked := 0
	confirm := func() {
		if len(acks) > 0 {
			f.r.cfg.Cursor.Done(acks...)
			f.r.confirmed(len(acks))
			acked += len(acks)
			f.passAll(acks)
			clear(acks)
			acks = acks[:0]
		}
	}
	for _, p := range reports {
		if len(acks) == readMost {
			confirm()
		}
		progress = progress || p.Verdict != Retry
		if p.isNew() {
			if err := f.collides(p); err != nil {
				f.halt(err)
				over = true
				continue
			}
		}
		switch p.Verdict {
		case Ack:
			acks = append(acks, wal.Record{Seq: p.seq})
			if f.held != nil {
				f.release(p)
			}
		case Drop:
			f.drop(p)
		case Suspect:
			f.suspected(p)
		default:
			if !f.hold(p) {
				f.retry(p)
				over = true
			}
		}
	}
	confirm()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range reports {
		f.aloft.settled(p)
	}
	clear(reports)
	f.spare, f.acks, f.settling = reports[:0], acks[:0], false
	if progress {
		f.progress = time.Now()
	}
	f.end.acked = f.end.acked || acked > 0
	f.r.inFlight(f.aloft.count, f.heldLocked())
	signal(f.room)
	failed := f.end.err != nil || f.end.log != nil
	return over || failed || (f.halted && f.aloft.count == 0 && len(f.reports) == 0)
}

// passAll forgets the tries of records that were confirmed.
func (f *flight) passAll(acks []wal.Record) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := 0; i < len(acks) && len(f.r.tries) > 0; i++ {
		f.r.pass(acks[i].Seq)
	}
}

// drop makes a dead letter of a record that the far side, or the driver, has refused for good.
func (f *flight) drop(p *aloft) {
	if !p.unasked {
		f.mu.Lock()
		f.refusedLocked(p)
		f.mu.Unlock()
	}
	f.refuse(*p.rec, p.Err)
	f.release(p)
}
