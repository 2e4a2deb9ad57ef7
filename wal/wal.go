package wal

import (
	"errors"
	"time"
)

// Limits of the format. doc.go says why they suffice.
const (
	MaxRecord = 260 << 10 // bytes of one record's data: an MQTT packet of 256 KiB and what the codec adds
	MaxCommit = 1 << 20   // bytes of one commit before encoding; also the bound of what waits for the next one
)

// Policy says what happens to new records when the lane's max_bytes are used up or the disk is full.
type Policy string

// The policies (DESIGN.md 3.9).
const (
	Block      Policy = "block"       // Append waits for room
	DropOldest Policy = "drop_oldest" // the oldest segment goes, delivered or not; the range is counted
	DropNewest Policy = "drop_newest" // Append returns ErrFull before a sequence number is given; counted
)

// Errors. Those of Open and Append are wrapped with the directory and the cause.
var (
	ErrLocked   = errors.New("log directory is in use by another process")         // Open
	ErrDamaged  = errors.New("log is damaged")                                     // Open, Cursor.Read
	ErrVersion  = errors.New("log was written by another version of the format")   // Open
	ErrFull     = errors.New("log is full")                                        // Append
	ErrTooLarge = errors.New("record is too large")                                // Append
	ErrGone     = errors.New("log has these records no more")                      // Cursor.Back
	ErrEnd      = errors.New("each record up to the cursor's end has its outcome") // Cursor.Read, after Split or Until
	ErrStopped  = errors.New("log has stopped")                                    // everything, after an I/O error; wraps its cause
	ErrClosed   = errors.New("log is closed")                                      // everything, after Close
)

// Entry is one record on its way into the log.
type Entry struct {
	Stream string    // name of the stream; the log gives it a number on first use
	Time   time.Time // for max_age and for the age of a backlog; order never follows from it
	Data   []byte    // at most MaxRecord; not to be changed until the callback
}

// Change sets the value of a key in the lane's state, or deletes the key where Value is nil.
type Change struct {
	Key   string
	Value []byte
}

// Batch is what becomes durable together: all of it in one commit, or nothing.
type Batch struct {
	Entries []Entry
	State   []Change
	Letters []uint64 // numbers of dead letters that go with this commit; one that is gone already is passed over
	Urgent  bool     // commit at once (somebody waits); otherwise within Options.MaxDelay
}

// Record is one record as a cursor reads it.
type Record struct {
	Seq  uint64 // number in the stream: 1, 2, 3, …; a jump is a counted drop
	Time time.Time
	Data []byte // must not be changed

	pos uint64 // position in the lane
}
