package uplink

import (
	"context"
	"log/slog"

	"edgegateway/pipeline"
)

// Driver is an uplink's section of the config file, strictly decoded. A driver may also have
// `Check() []pipeline.Problem` for what a single field cannot tell.
type Driver interface {
	// Open makes a session with the far broker: it dials, signs in and checks what it can. The Runner calls it again
	// with back-off for as long as it fails. It returns when ctx ends.
	Open(ctx context.Context, env Env) (Session, error)
}

// Env is what the gateway gives a driver for one session: one uplink of one stream.
type Env struct {
	Gateway string // gateway id
	Stream  string
	Route   string // what {stream} stands for where it is not Stream: dead letters that are sent again have a stream of their own
	Epoch   uint64 // life of the lane's log
	Uplink  string // name in the config
	Driver  string // kind of uplink; dead letters bear it
	Promise Promise
	Acked   uint64 // as a session opens: up to here each record has its outcome, and the log may have it no more; 0 where that is not known
	// Slowed is told by sessions what bounds of the far side make them wait, for Status.Limit, and "" when they do not any more.
	// It may be nil, and never blocks.
	Slowed func(reason string)
	// Figures are the driver's own metrics; what it keeps there outlives the session. Nil forgets them.
	Figures *Figures
	Claims  *Claims // the fences that this instance holds or has lost; the Runner's own where it is nil
	Log     *slog.Logger
}

// Record is one record on its way out.
type Record struct {
	ID      pipeline.RecordID
	Message pipeline.Message
	JSON    []byte // the payload of docs/payload.md; must not be changed
}

// Session is one life of a connection. The Runner sends records in sequence, without gaps, and gives the session up at
// the first sign of trouble; a new session begins again at the first record that has no final outcome. So a driver
// needs no queue, no retry and no timer of its own. Where the order is not strict, records that the far side has answered with
// Retry come again in the same session, behind later ones.
//
// A session that keeps a far cursor (Resumer) moves it only behind records it has stored. One that becomes a dead letter is passed
// by the Runner, with Resetter.Reset, once the letter is on stable storage in the log: a kill in between then loses neither. So a
// session that reports Drop of a record sends nothing that stands behind it, and Send returns nil: the Runner hands that over
// again (docs/adr/0014-dead-letters.md).
type Session interface {
	// Send hands over records in order. It may return before they are confirmed and may be called again at once; it
	// blocks while the client's own buffers are full, until ctx ends. report is called once for each record, in any
	// order, from any goroutine, also before Send returns; it never blocks. An error of Send means that the session
	// is of no more use: records without a report are in doubt and will be sent again by the next session.
	Send(ctx context.Context, recs []Record, report func(seq uint64, o Outcome)) error
	// Close ends the session at once, whatever is in flight. After it has returned report is not called any more.
	// It must not wait for the broker for more than a second.
	Close()
}

// Copier is implemented by sessions that keep nothing of the records of a Send once it has returned, so that the Runner can use their
// memory again.
type Copier interface{ Copies() }
