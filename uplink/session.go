package uplink

import (
	"context"
	"sync"
	"time"

	"edgegateway/pipeline"
	"edgegateway/wal"
)

// ending is why a session is over. All zero: it was told to stop, or it makes way for the next one, which knows what to do.
type ending struct {
	err   error // something failed at the far side or on the way
	log   error // the log gives no more records
	acked bool  // the session confirmed something
}

// session opens one session, runs it until something ends it, and closes it.
func (r *Runner) session(ctx context.Context) ending {
	open, cancel := context.WithTimeout(ctx, r.cfg.Timing.Open)
	defer cancel()
	r.begin()
	env := r.cfg.Env
	if p, ok := r.cfg.Cursor.(Position); ok {
		env.Acked, _ = p.Position()
	}
	far, err := r.cfg.Driver.Open(open, env)
	if err != nil {
		return ending{err: err}
	}
	if resumer, ok := far.(Resumer); ok {
		err = r.resume(open, resumer)
	} else {
		err = r.known(open, far)
	}
	if err != nil {
		far.Close()
		return ending{err: err}
	}
	if p, ok := r.cfg.Cursor.(Position); ok && len(r.tries) > 0 {
		seq, _ := p.Position()
		r.forget(seq)
	}
	r.connected()
	r.cfg.Cursor.Rewind()
	// The session outlives ctx by the time that a stop waits for outcomes in flight.
	sending, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	reading, stopReading := context.WithCancel(ctx)
	defer stopReading()
	f := &flight{
		r: r, far: far, stopReading: stopReading, sent: time.Now(),
		wake: make(chan struct{}, 1), room: make(chan struct{}, 1), json: pipeline.NewJSONWriter(r.cfg.Env.Gateway, r.cfg.Env.Stream, r.cfg.Env.Epoch),
	}
	_, f.copies = far.(Copier)
	r.succeed(f)
	if f.resetter, _ = far.(Resetter); f.resetter == nil && holds(r.cfg.Env.Promise.Order) {
		f.held = &holding{queues: map[string]*queue{}}
	}
	var feeder sync.WaitGroup
	feeder.Go(func() { f.feed(reading, sending) })
	if w, ok := far.(Watcher); ok {
		feeder.Go(func() { f.guard(sending, w) })
	}
	f.watch(ctx)
	f.halt(nil)
	stop()
	far.Close()
	feeder.Wait()
	f.settle() // what was reported before Close returned is true and counts
	return f.over()
}

// over ends the flight and returns why it is over.
func (f *flight) over() ending {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = true // a report from now on never counts
	if f.held != nil && f.held.alarm != nil {
		f.held.alarm.Stop()
	}
	f.ageLocked()
	f.beginLocked()
	f.doubtLocked()
	f.r.inFlight(0, 0)
	if f.solved {
		f.end.err = nil // what ended it was dealt with
	}
	return f.end
}

// flight is what one session has in the air. feed puts records in, the driver's reports and watch take them out.
type flight struct {
	r           *Runner
	far         Session
	resetter    Resetter // far, where dead letters come first; or nil
	stopReading context.CancelFunc
	copies      bool          // far is a Copier
	wake        chan struct{} // to watch: there is something to settle, or the flight has changed
	room        chan struct{} // to feed: there may be room, or something else to do

	// Used by feed.
	typical int // bytes of a payload, about
	texts   pipeline.Decoder
	json    *pipeline.JSONWriter
	ready   []Record // of the last batch, and the room of their payloads, to be used again; for a Copier only
	slabs   [][]byte
	batch   []wal.Record // the last one that was read, and its room

	acks []wal.Record // room for settle

	mu        sync.Mutex       // guards the fields below, Runner.tries and Runner.search
	aloft     sky              // sent and without a report
	doubts    map[uint64]int64 // when records were sent first that earlier sessions have left in doubt, and this one has not sent yet; in Unix ns
	bytes     int              // of their data
	reports   []*aloft         // reported and not settled yet
	spare     []*aloft         // room for them
	settling  bool             // reports were taken and are on their way to the cursor
	letters   []wal.Record     // with a resetter: refused for good, and the far side has not passed them yet
	held      *holding         // nil where the order is strict
	nudged    bool             // feed is to look again before it reads
	interrupt func()           // ends its reading; nil where it does not read
	unsettled []uint64         // records that were not taken
	suspect   uint64           // the last one of a refused batch; 0 for none
	solved    bool             // what ended the session was dealt with: the next one needs no pause
	sent      time.Time        // when something was sent last
	progress  time.Time        // of the last reports, or when the first record went up
	halted    bool             // nothing more goes up
	ended     bool
	end       ending
}

// aloft is a record that has gone up, and once it is reported what was said of it.
type aloft struct {
	seq uint64
	rec *wal.Record // nil with a resetter: few need more of it than its number, and buryThese reads those again
	Outcome
	key     string // with order: key
	size    int32  // of its data
	since   int64  // when it was sent, in nanoseconds since 1970
	alone   bool   // in a search: nothing else was in flight
	fresh   bool   // the far side could not have it before
	unasked bool   // this session has not sent it, and it never was in the sky
	up      bool   // see sky
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
