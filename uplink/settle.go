package uplink

import (
	"context"
	"errors"
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
			if len(f.aloft) > 0 {
				left = f.progress.Add(stall).Sub(now)
				stalled = left <= 0
			}
			if stalled {
				f.haltLocked(fmt.Errorf("connected, but no answer for %v with %d records in flight", stall, len(f.aloft)))
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
		up := len(f.aloft)
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
	f.reports = nil
	f.mu.Unlock()
	acks := make([]wal.Record, 0, len(reports))
	for _, p := range reports {
		switch p.Verdict {
		case Ack:
			acks = append(acks, p.rec)
		case Drop:
			f.drop(p)
		case Suspect:
			f.suspect(p)
		default:
			f.halt(reason(p.Err, "the record was not taken"))
			over = true
		}
	}
	if len(acks) > 0 {
		f.r.cfg.Cursor.Done(acks...)
		f.r.confirmed(len(acks))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.end.acked = f.end.acked || len(acks) > 0
	f.r.inFlight(len(f.aloft))
	signal(f.room)
	failed := f.end.err != nil || f.end.log != nil
	return over || failed || (f.halted && len(f.aloft) == 0 && len(f.reports) == 0)
}

func (f *flight) drop(p report) {
	text := reason(p.Err, "refused without a reason").Error()
	f.r.cfg.Cursor.Drop(p.rec, text)
	f.r.dropped(p.rec.Seq, text)
}

// suspect remembers that the records up to this one go alone in the next session, and lets this one run out. It ends
// earlier where the driver gives it up.
func (f *flight) suspect(p report) {
	f.refused = true
	if p.rec.Seq <= f.r.alone { // it was alone
		f.drop(p)
		return
	}
	if f.nextAlone == 0 {
		f.r.log.Info("batch refused, its records go one at a time", "seq", p.rec.Seq, "err", p.Err)
	}
	f.nextAlone = max(f.nextAlone, p.rec.Seq)
	f.halt(nil)
}

func reason(err error, otherwise string) error {
	if err == nil {
		return errors.New(otherwise)
	}
	return err
}
