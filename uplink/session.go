package uplink

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"edgegateway/pipeline"
	"edgegateway/wal"
)

// ending is why a session is over. All zero: it was told to stop, or it makes way for singling out a refused record.
type ending struct {
	err   error // something failed at the far side or on the way
	log   error // the log gives no more records
	acked bool  // the session confirmed something
}

// session opens one session, runs it until something ends it, and closes it.
func (r *Runner) session(ctx context.Context) ending {
	open, cancel := context.WithTimeout(ctx, r.cfg.Timing.Open)
	defer cancel()
	far, err := r.cfg.Driver.Open(open, r.cfg.Env)
	if err != nil {
		return ending{err: err}
	}
	r.connected()
	r.cfg.Cursor.Rewind()
	// The session outlives ctx by the time that a stop waits for outcomes in flight.
	sending, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	reading, stopReading := context.WithCancel(ctx)
	defer stopReading()
	f := &flight{
		r: r, far: far, stopReading: stopReading,
		aloft: map[uint64]aloft{}, wake: make(chan struct{}, 1), room: make(chan struct{}, 1),
	}
	var feeder sync.WaitGroup
	feeder.Go(func() { f.feed(reading, sending) })
	f.watch(ctx)
	f.halt(nil)
	stop()
	far.Close()
	feeder.Wait()
	f.settle() // what was reported before Close returned is true and counts
	f.mu.Lock()
	f.ended = true // a report from now on never does
	end := f.end
	f.mu.Unlock()
	r.inFlight(0)
	r.alone = max(r.alone, f.nextAlone)
	if f.refused {
		end.err = nil // what ended it is the refusal, and that has been dealt with
	}
	return end
}

// flight is what one session has in the air. feed puts records in, the driver's reports and watch take them out.
type flight struct {
	r           *Runner
	far         Session
	stopReading context.CancelFunc
	wake        chan struct{} // to watch: there is something to settle, or the flight has changed
	room        chan struct{} // to feed: there may be room
	nextAlone   uint64        // last suspect; like refused used by watch only
	refused     bool          // a record was a suspect

	mu       sync.Mutex       // guards the fields below
	aloft    map[uint64]aloft // sent and without a report
	bytes    int              // of their data
	reports  []report         // reported and not settled yet
	progress time.Time        // of the last report, or when the first record went up
	halted   bool             // nothing more goes up
	ended    bool
	end      ending
}

type aloft struct {
	rec  wal.Record
	size int
}

type report struct {
	rec wal.Record
	Outcome
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// halt stops feeding. The first error given is the session's.
func (f *flight) halt(err error) {
	f.mu.Lock()
	f.haltLocked(err)
	f.mu.Unlock()
}

func (f *flight) haltLocked(err error) {
	if f.end.err == nil {
		f.end.err = err
	}
	f.halted = true
	f.stopReading()
	signal(f.room)
	signal(f.wake)
}

// feed reads, decodes and sends until the flight is halted.
func (f *flight) feed(reading, sending context.Context) {
	var last uint64
	for {
		records, bytes, ok := f.waitForRoom(last)
		if !ok {
			return
		}
		batch, err := f.r.cfg.Cursor.Read(reading, records, bytes)
		if err != nil {
			if reading.Err() == nil {
				f.mu.Lock()
				f.end.log = err
				f.haltLocked(nil)
				f.mu.Unlock()
			}
			return
		}
		if len(batch) == 0 {
			continue
		}
		last = batch[len(batch)-1].Seq
		out := f.takeOff(batch)
		if len(out) == 0 {
			continue
		}
		if err := f.far.Send(sending, out, f.report); err != nil {
			f.halt(err)
			return
		}
	}
}

// waitForRoom returns how much may go up now. A record to be sent alone waits for an empty sky; otherwise a quarter of
// the bound must be free, so that batches stay batches.
func (f *flight) waitForRoom(last uint64) (records, bytes int, ok bool) {
	maxRecords, maxBytes := f.r.cfg.MaxRecords, f.r.cfg.MaxBytes
	for {
		f.mu.Lock()
		halted, up, upBytes := f.halted, len(f.aloft)+len(f.reports), f.bytes
		f.mu.Unlock()
		switch {
		case halted:
			return 0, 0, false
		case last < f.r.alone:
			if up == 0 {
				return 1, maxBytes, true
			}
		case up == 0 || (maxRecords-up >= max(1, maxRecords/4) && maxBytes-upBytes >= maxBytes/4):
			return maxRecords - up, max(1, maxBytes-upBytes), true
		}
		<-f.room // halt signals it too
	}
}

// takeOff notes records as sent and returns them decoded. What cannot be decoded never will be: it is dropped.
func (f *flight) takeOff(batch []wal.Record) []Record {
	env := f.r.cfg.Env
	out := make([]Record, 0, len(batch))
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.halted {
		return nil
	}
	for _, rec := range batch {
		m, err := pipeline.Decode(rec.Data)
		if err != nil {
			f.reports = append(f.reports, report{rec, Outcome{Drop, fmt.Errorf("record cannot be read: %w", err)}})
			signal(f.wake)
			continue
		}
		id := pipeline.RecordID{Gateway: env.Gateway, Stream: env.Stream, Epoch: env.Epoch, Seq: rec.Seq}
		out = append(out, Record{ID: id, Message: m, JSON: pipeline.AppendJSON(nil, id, &m)})
		if len(f.aloft) == 0 {
			f.progress = time.Now()
		}
		f.aloft[rec.Seq] = aloft{rec, len(rec.Data)}
		f.bytes += len(rec.Data)
	}
	f.r.inFlight(len(f.aloft))
	return out
}

// report is what the driver calls. It only notes the outcome, so that it never blocks; a second report of a record and
// one after the session's end go unheard.
func (f *flight) report(seq uint64, o Outcome) {
	f.mu.Lock()
	defer f.mu.Unlock()
	up, ok := f.aloft[seq]
	if !ok || f.ended {
		return
	}
	delete(f.aloft, seq)
	f.bytes -= up.size
	f.reports = append(f.reports, report{up.rec, o})
	if o.Verdict != Retry {
		f.progress = time.Now()
	}
	signal(f.wake)
}

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
		switch {
		case p.Verdict == Ack:
			acks = append(acks, p.rec)
		case p.Verdict == Drop:
			f.drop(p)
		case p.Verdict == Suspect:
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
