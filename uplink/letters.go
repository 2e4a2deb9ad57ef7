package uplink

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"edgegateway/wal"
)

// Where the far side keeps a cursor, or takes what is below its highest number for stored (Resetter), a dead letter waits until all below
// it has an outcome and nothing is in flight. Then it is given to the log, and once that has it on stable storage the far cursor passes it:
//
//	… acked ─▶ Cursor.Refuse ─▶ Sync ─▶ Resetter.Reset ─▶ what stands behind is read again and sent
//
// A kill before Sync leaves a record without an outcome that the far cursor has not passed: it is sent, and refused, again. A
// kill before Reset leaves a far cursor below the letter; resume moves it. So the letter is never lost, and nothing doubled.

// lateRoom is how long the log may take to store a letter before the status says that it waits: a commit takes less.
const lateRoom = 3 * time.Second

// letterLocked notes a record that is refused for good. Whatever ends the session, it is not sent again.
func (f *flight) letterLocked(rec wal.Record, err error) {
	f.tryLocked(&aloft{seq: rec.Seq, since: f.sent.UnixNano()}).final = err
	f.letters = append(f.letters, rec)
	f.nudgeLocked()
}

// bury brings the letters that are there into the log and the far cursor past them. It returns false when the session is over.
func (f *flight) bury(reading, sending context.Context) bool {
	for f.resetter != nil {
		letters, wait, ok := f.takeLetters()
		switch {
		case !ok:
			return false
		case wait:
			<-f.room // halt signals it too
		case len(letters) == 0:
			return true
		default:
			if err := f.buryThese(reading, sending, letters); err != nil {
				return false
			}
		}
	}
	return true
}

// takeLetters returns the letters that stand next: with nothing between them, and nothing below that has no outcome.
func (f *flight) takeLetters() (letters []wal.Record, wait, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.halted {
		return nil, false, false
	}
	if len(f.letters) == 0 {
		return nil, false, true
	}
	slices.SortFunc(f.letters, func(a, b wal.Record) int {
		if a.Seq < b.Seq {
			return -1
		}
		return 1
	})
	first := f.letters[0].Seq
	next := ^uint64(0) // the first record behind it that was taken for this flight; the driver has not sent it
	below := false
	f.aloft.each(func(a *aloft) {
		below = below || a.seq < first
		next = min(next, a.seq)
	})
	if below {
		return nil, true, true
	}
	if f.settling || len(f.reports) > 0 {
		return nil, true, true
	}
	n := 1
	for n < len(f.letters) && f.letters[n].Seq < next {
		n++
	}
	letters = f.letters[:n]
	f.letters, f.bytes = nil, 0
	f.aloft.clear()
	return letters, false, true
}

func (f *flight) buryThese(reading, ctx context.Context, letters []wal.Record) error {
	last := letters[len(letters)-1].Seq
	whole, err := f.readAgain(reading, letters)
	if err != nil {
		return err
	}
	for _, rec := range whole {
		f.mu.Lock()
		why := f.r.tries[rec.Seq].final
		f.mu.Unlock()
		f.refuse(rec, why)
	}
	if p, ok := f.r.cfg.Cursor.(Position); ok {
		late := time.AfterFunc(lateRoom, func() { f.r.waitsForRoom(last, len(whole)) })
		err := p.Sync(ctx)
		if !late.Stop() {
			f.r.inFlight(0, 0)
		}
		if err != nil {
			if ctx.Err() == nil {
				f.endLog(err)
			}
			return err
		}
	}
	reset, cancel := context.WithTimeout(ctx, f.r.cfg.Timing.Open)
	defer cancel()
	if err := f.resetter.Reset(reset, FarCursor{f.r.cfg.Env.Epoch, last}); err != nil {
		if !errors.Is(err, context.Canceled) || ctx.Err() == nil {
			f.halt(err)
		}
		return err
	}
	f.r.farPasses(last)
	f.mu.Lock()
	f.end.acked = true // it goes on
	f.mu.Unlock()
	f.r.cfg.Cursor.Rewind()
	return nil
}

// readAgain returns letters with their data, of which nothing was kept when they were sent. All below the first has its outcome, and so has
// what lies between them, so they are the next that the log gives. What it has dropped meanwhile is missing, and has its outcome.
func (f *flight) readAgain(ctx context.Context, letters []wal.Record) (whole []wal.Record, err error) {
	if !slices.ContainsFunc(letters, func(rec wal.Record) bool { return rec.Data == nil }) {
		return letters, nil
	}
	f.r.cfg.Cursor.Rewind()
	for len(letters) > 0 {
		batch, err := f.r.cfg.Cursor.Read(ctx, len(letters), f.r.cfg.MaxBytes)
		if err != nil {
			if ctx.Err() == nil {
				f.endLog(err)
			}
			return nil, err
		}
		for _, rec := range batch {
			for len(letters) > 0 && letters[0].Seq < rec.Seq {
				letters = letters[1:]
			}
			if len(letters) == 0 {
				break
			}
			if letters[0].Seq != rec.Seq {
				err := fmt.Errorf("record %d has no outcome, and stands below the dead letter %d", rec.Seq, letters[0].Seq)
				f.halt(err)
				return nil, err
			}
			whole, letters = append(whole, rec), letters[1:]
		}
	}
	return whole, nil
}

// waitsForRoom says that letters cannot be stored for now. The far cursor must not pass them before, so nothing goes on.
func (r *Runner) waitsForRoom(seq uint64, letters int) {
	const text = "refused for good, and the gateway's disk has no room to keep it as a dead letter, so nothing behind it goes on (want room on the disk)"
	r.inFlight(0, letters)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status.HeldFor = text
	if r.heldSaid != text {
		r.heldSaid = text
		r.log.Error("dead letter cannot be stored, the stream waits", "seq", seq, "reason", text)
	}
}

// farPasses notes how far the far cursor is known to be.
func (r *Runner) farPasses(seq uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.passed = seq
}

// Passed reports whether the far cursor is known to have passed a record. Until then a dead letter must not go: it is what says that
// the record is not to be sent again.
func (r *Runner) Passed(seq uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return seq <= r.passed
}
