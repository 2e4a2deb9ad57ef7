package uplink

import "errors"

// Verdict is what an outcome says of a record.
type Verdict uint8

// The verdicts. The zero value is Retry: what is not known is not delivered.
const (
	// Retry: not delivered, or nobody knows. The session ends and the next one sends the record again; see Outcome.Answered
	// for when it need not end.
	Retry Verdict = iota
	// Ack: the far broker has confirmed the record.
	Ack
	// Drop: refused for good, and it is this very record that is refused. It becomes a dead letter.
	Drop
	// Suspect: the broker refused a batch for good and this record was in it. The Runner sends the suspects again in
	// halves; a record that is refused alone becomes a dead letter.
	Suspect
)

// Outcome is what a session reports of a record. Err says why, for every verdict but Ack.
type Outcome struct {
	Err     error
	Verdict Verdict
	// Answered says of a Retry that the far side has answered for this very record: it is not stored, and others may go on. It
	// counts as an attempt, and where the order is not strict the session lives on. Without it the record is in doubt.
	Answered bool
	// Repeat says of an Ack that the far side had a record of this id before, and so has not stored this one.
	Repeat bool
}

// Config marks an error that a person must mend: wrong password, missing topic, no rights. The Runner goes on trying,
// slowly, and the status shows the text. Records are held.
func Config(err error) error { return &configError{err} }

// IsConfig reports whether err or what it wraps was marked by Config.
func IsConfig(err error) bool {
	_, ok := errors.AsType[*configError](err)
	return ok
}

type configError struct{ err error }

func (e *configError) Error() string { return e.err.Error() }
func (e *configError) Unwrap() error { return e.err }

// Fenced marks an error that says that another instance of this gateway has taken the place of the session. It is one for a
// person, as with Config; the Runner waits much longer before it opens a session again, which would fence the other in turn.
func Fenced(err error) error { return Config(&fencedError{err}) }

// IsFenced reports whether err or what it wraps was marked by Fenced.
func IsFenced(err error) bool {
	_, ok := errors.AsType[*fencedError](err)
	return ok
}

type fencedError struct{ err error }

func (e *fencedError) Error() string { return e.err.Error() }
func (e *fencedError) Unwrap() error { return e.err }
