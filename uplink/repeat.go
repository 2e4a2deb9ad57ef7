package uplink

import "fmt"

// A far side that knows records by their ids says of one that it has it already (Outcome.Repeat). That is well where the record may
// have been sent before. It is not for one that this log first had after the Runner began and that goes out the first time: an
// old copy of the gateway's disk was put back, and the number was given to another record before. To count it as delivered would
// lose it silently.

// isNew reports whether a record is taken for a repeat that cannot be one.
func (p *aloft) isNew() bool { return p.Verdict == Ack && p.Repeat && p.fresh }

// collides says why a record that isNew is held; nil where an operator has said that the far side is to be believed. What lies
// behind is marked as not sent, over restarts too, or it would count as delivered the next time.
func (f *flight) collides(p *aloft) error {
	r := f.r
	f.mu.Lock()
	believed := r.believed
	f.mu.Unlock()
	if believed {
		return nil
	}
	if r.choice() == Resume {
		f.mu.Lock()
		r.believed = true
		f.mu.Unlock()
		r.followed()
		if err := r.unmark(); err != nil {
			return err
		}
		r.log.Warn("the operator's choice was followed", "choice", string(Resume), "seq", p.seq)
		return nil
	}
	f.mu.Lock()
	r.reach = min(r.reach, p.seq-1)
	f.haltLocked(nil) // what goes up after this would raise it again
	f.mu.Unlock()
	if err := r.mark(); err != nil {
		return err
	}
	return r.collision(p.seq)
}

// collision says that the far side has another record with a number than this log.
func (r *Runner) collision(seq uint64) error {
	return ask(fmt.Errorf("the far side has another record with the number %d of stream %s, epoch %d: an old copy of the gateway's disk was put back, "+
		"or two gateways have the id %s (want a new log, which begins a new epoch; or choose %s: what the far side has counts as delivered)",
		seq, r.cfg.Env.Stream, r.cfg.Env.Epoch, r.cfg.Env.Gateway, Resume), Resume)
}
