package uplink

import (
	"errors"
	"time"

	"edgegateway/wal"
)

// try is what is known of a record that was sent and has no outcome yet. It outlives the session.
type try struct {
	first    time.Time // when it was sent first
	attempts int       // how often the far side has refused it
	// final is why it is not sent again: it was refused for good, or a limit of the policy is reached. Nil: it is.
	final error
}

// tryLocked returns the try of a record.
func (f *flight) tryLocked(p *aloft) *try {
	t := f.r.tries[p.seq]
	if t == nil {
		t = &try{first: time.Unix(0, p.since)}
		f.r.tries[p.seq] = t
	}
	return t
}

// refusedLocked counts that the far side has refused a record.
func (f *flight) refusedLocked(p *aloft) *try {
	t := f.tryLocked(p)
	t.attempts++
	f.r.attempted(p.seq, t.attempts)
	return t
}

// spent reports whether a record that was not taken once more has reached a limit of the policy.
func (r *Runner) spent(t *try) bool {
	p := &r.cfg.Policy
	return p.RetryAttempts > 0 && t.attempts >= p.RetryAttempts || p.RetryAge > 0 && time.Since(t.first) >= p.RetryAge
}

// retry ends the session because a record was not taken or is in doubt. One that has reached a limit becomes a dead letter in
// the next session: by then it is known whether the far side has it after all.
func (f *flight) retry(p *aloft) {
	err := reason(p.Err, "the record was not taken")
	f.mu.Lock()
	f.unsettled = append(f.unsettled, p.seq)
	if !p.Answered {
		f.doubts[p.seq] = p.since
	}
	switch {
	case p.Answered:
		if t := f.refusedLocked(p); f.r.spent(t) {
			t.final = err
			f.solved = true
		}
	case f.r.cfg.Policy.RetryAge > 0:
		if t := f.tryLocked(p); f.r.spent(t) {
			t.final = err
		}
	}
	f.haltLocked(err)
	f.mu.Unlock()
}

// ageLocked keeps when the records that are still in flight at the end of a session were sent first.
func (f *flight) ageLocked() {
	if f.r.cfg.Policy.RetryAge <= 0 {
		return
	}
	f.aloft.each(func(up *aloft) {
		t := f.tryLocked(up)
		if t.final == nil && f.r.spent(t) {
			t.final = reason(f.end.err, "no answer came")
		}
	})
}

// pass forgets the tries of records that have their outcome.
func (r *Runner) pass(seq uint64) {
	if len(r.tries) > 0 && r.tries[seq] != nil {
		delete(r.tries, seq)
		r.attempted(seq, 0)
	}
}

// forget drops the tries of all records up to seq.
func (r *Runner) forget(seq uint64) {
	for n := range r.tries {
		if n <= seq {
			r.pass(n)
		}
	}
}

// refuse gives a record its outcome: a dead letter.
func (f *flight) refuse(rec wal.Record, err error) {
	why := wal.Refusal{Reason: reason(err, "refused without a reason").Error(), Driver: f.r.cfg.Env.Driver}
	f.mu.Lock()
	if t := f.r.tries[rec.Seq]; t != nil {
		why.Attempts = t.attempts
	}
	f.r.pass(rec.Seq)
	f.mu.Unlock()
	f.r.cfg.Cursor.Refuse(rec, why)
	f.r.dropped(rec.Seq, why.Reason)
}

func reason(err error, otherwise string) error {
	if err == nil {
		return errors.New(otherwise)
	}
	return err
}
