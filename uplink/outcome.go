package uplink

import "errors"

// Verdict is what an outcome says of a record.
type Verdict uint8

// The verdicts. The zero value is Retry: what is not known is not delivered.
const (
	// Retry: not delivered, or nobody knows. The session ends and the next one sends the record again.
	Retry Verdict = iota
	// Ack: the far broker has confirmed the record.
	Ack
	// Drop: refused for good, and it is this very record that is refused. It becomes a dead letter.
	Drop
	// Suspect: the broker refused a batch for good and this record was in it. The Runner sends the suspects again one
	// at a time; a record that is refused alone becomes a dead letter.
	Suspect
)

// Outcome is what a session reports of a record. Err says why, for every verdict but Ack.
type Outcome struct {
	Verdict Verdict
	Err     error
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
