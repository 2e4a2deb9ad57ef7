package uplink

import (
	"context"
	"sync"
	"time"

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
	if resumer, ok := far.(Resumer); ok {
		if err := r.resume(open, resumer); err != nil {
			far.Close()
			return ending{err: err}
		}
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
