package uplink

import (
	"context"
	"errors"
	"fmt"
	"time"

	"edgegateway/pipeline"
	"edgegateway/wal"
)

// FarCursor is how far a stream is stored at the far side, as the far side says. The zero value means that it has none.
type FarCursor struct{ Epoch, Seq uint64 }

// String returns the cursor as EPOCH/SEQUENCE.
func (c FarCursor) String() string { return fmt.Sprintf("%d/%d", c.Epoch, c.Seq) }

// Resumer is implemented by sessions that keep a far cursor. Open has fenced older instances before it read the cursor, so
// nobody else moves it while the session lives.
type Resumer interface {
	Far() FarCursor
	Resetter
}

// Resetter is implemented by sessions whose far side takes for stored what is below the highest number that it has. What stands behind a
// dead letter is sent only once that is on stable storage in the log and Reset was called; a Resumer has a cursor to move then.
type Resetter interface {
	// Reset moves the far cursor, where there is one: up, over dead letters, and in either direction because the operator has said so.
	// Nothing is in flight then, and the records sent afterwards follow the new cursor.
	Reset(ctx context.Context, to FarCursor) error
}

// Mark keeps over restarts up to where the far side can know a log: nothing behind it was ever sent. Each life of a gateway begins with
// one, because what comes before the first connection is new, however often the gateway is started until then; it goes when the far
// side is found to have nothing beyond, before anything is sent. It stays, or comes back, where the far side is ahead: the log may
// have grown past the far cursor by the next start, and what lies in between would count as delivered.
type Mark interface {
	Load() (FarCursor, bool)
	Store(at FarCursor) error
	Clear() error
}

// Choice is what an operator says when the far cursor does not fit the log.
type Choice string

// The choices.
const (
	// Resume believes the far side: records up to its cursor count as delivered, and what it has lost and the log has
	// no more is given up.
	Resume Choice = "resume"
	// Restart believes the log: the far cursor is set to where the log's cursor stands, and sending goes on there. What the far
	// side has beyond may come again.
	Restart Choice = "restart"
)

// asking is an error that waits for an operator's choice.
type asking struct {
	error
	choices []Choice
}

func (a *asking) Unwrap() error { return a.error }

// ask has the status say that a person must choose, and of what.
func ask(err error, choices ...Choice) error { return Config(&asking{err, choices}) }

// choicesOf returns what err asks an operator to choose from; nothing where it does not ask.
func choicesOf(err error) []Choice {
	if a, ok := errors.AsType[*asking](err); ok {
		return a.choices
	}
	return nil
}

// Position is where a stream stands in the log: the cursor of the uplink, and the end. *wal.Cursor can also be moved.
type Position interface {
	// Position returns the sequence up to which each record has an outcome, and that of the newest record.
	Position() (seq, tail uint64)
	// Pass moves the cursor up to seq, at most to the newest record.
	Pass(seq uint64) error
	// Back moves the cursor down to seq, or returns wal.ErrGone where the log has the records behind it no more.
	Back(seq uint64) error
	// Sync waits until all outcomes given so far are on stable storage.
	Sync(ctx context.Context) error
	// Refused reports whether all records behind from, up to to, are dead letters that the log still has.
	Refused(from, to uint64) bool
}

// Knower is implemented by sessions without a far cursor whose far side tells repeats by their ids.
type Knower interface {
	// Knows reports whether the far side has a record with the number of this one, or a later one, of the same stream and epoch.
	// Nothing is stored by asking. It is asked before anything is sent.
	Knows(ctx context.Context, id pipeline.RecordID) (bool, error)
}

// known asks a far side that tells repeats by their ids whether it has records that this log has never sent.
func (r *Runner) known(ctx context.Context, far Session) error {
	if !r.marked {
		r.unasked()
		return nil
	}
	first := pipeline.RecordID{Gateway: r.cfg.Env.Gateway, Stream: r.cfg.Env.Stream, Epoch: r.cfg.Env.Epoch, Seq: r.reach + 1}
	if k, ok := far.(Knower); ok && !r.believed {
		ahead, err := k.Knows(ctx, first)
		switch {
		case err != nil:
			return err
		case ahead && r.choice() == Resume:
			r.believed = true
			r.followed()
			r.log.Warn("the operator's choice was followed", "choice", string(Resume), "seq", first.Seq)
		case ahead:
			return r.collision(first.Seq)
		}
	}
	r.unasked()
	return r.unmark()
}

// resume brings the cursor and the far cursor together, before anything is sent (DESIGN.md 3.5).
func (r *Runner) resume(ctx context.Context, far Resumer) error {
	if err := r.fit(ctx, far); err != nil {
		return err
	}
	if p, ok := r.cfg.Cursor.(Position); ok { // what it has passed is behind the far cursor, or there is none
		seq, _ := p.Position()
		r.farPasses(seq)
	}
	r.unasked()
	return r.unmark()
}

func (r *Runner) fit(ctx context.Context, far Resumer) error {
	p, ok := r.cfg.Cursor.(Position)
	if !ok {
		return nil
	}
	env, at := r.cfg.Env, far.Far()
	seq, tail := p.Position()
	own := FarCursor{env.Epoch, seq}
	choices := []Choice{Restart, Resume}
	if at.Epoch > env.Epoch {
		choices = choices[:1]
	}
	unfit := func(text string, args ...any) error {
		return ask(fmt.Errorf("the far side is at %v, the log of stream %s at %v and ends at %d: %s",
			at, env.Stream, own, tail, fmt.Sprintf(text, args...)), choices...)
	}
	switch {
	case at == (FarCursor{}) || at.Epoch < env.Epoch:
		// A new place, or one that an earlier log has filled: ids grow with the epoch, so nothing can be taken for a repeat.
		return nil
	case at.Epoch > env.Epoch || at.Seq > r.reach:
		switch choice := r.choice(); {
		case choice == Resume && at.Epoch == env.Epoch:
			err := p.Pass(tail)
			if err == nil { // or what comes next would lie below the far cursor
				err = far.Reset(ctx, FarCursor{env.Epoch, tail})
			}
			return r.took(Resume, at, err)
		case choice == Restart:
			return r.took(Restart, at, far.Reset(ctx, own))
		}
		if err := r.mark(); err != nil {
			return err
		}
		if r.reach < tail {
			return unfit("an old copy of the gateway's disk was put back, or two gateways have the id %s: of this one's records none beyond %d was ever sent, and "+
				"the far side has others by these numbers (want a new log, which begins a new epoch; or choose %s: the far cursor is set back "+
				"and records may be doubled%s)", env.Gateway, r.reach, Restart, orResume(at, env))
		}
		return unfit("an old copy of the gateway's disk was put back, or two gateways have the id %s (want a new log, which begins a new epoch; "+
			"or choose %s: the far cursor is set back and records may be doubled%s)", env.Gateway, Restart, orResume(at, env))
	case at.Seq > seq:
		return p.Pass(at.Seq) // they were stored, and the crash came before the log knew
	case at.Seq < seq:
		if err := p.Sync(ctx); err != nil {
			return fmt.Errorf("wait until the log has stored its dead letters: %w (is the gateway's disk full?)", err)
		}
		if p.Refused(at.Seq, seq) { // they were never sent, and the far cursor was to pass them when the last session ended
			r.log.Info("the far cursor passes dead letters", "first", at.Seq+1, "last", seq)
			return far.Reset(ctx, own)
		}
		// Letters that were purged meanwhile are sent again, too: the far side has none of them.
		switch err := p.Back(at.Seq); {
		case err == nil:
			r.log.Warn("the far side has lost records, they are sent again", "first", at.Seq+1, "last", seq)
			return nil
		case !errors.Is(err, wal.ErrGone):
			return err
		}
		if choice := r.choice(); choice != "" {
			return r.took(choice, at, far.Reset(ctx, own))
		}
		choices = []Choice{Resume}
		return unfit("the far side has lost confirmed records, and the log has them no more (want them restored there; or choose %s: the gap stays "+
			"and sending goes on)", Resume)
	}
	return nil
}

// mark remembers what of the log the far side may know.
func (r *Runner) mark() error {
	at := FarCursor{r.cfg.Env.Epoch, r.reach}
	if r.cfg.Mark == nil || r.marked && r.noted == at {
		return nil
	}
	r.marked = true // whatever comes of it
	if err := r.cfg.Mark.Store(at); err != nil {
		return fmt.Errorf("note up to where the far side can know stream %s: %w", r.cfg.Env.Stream, err)
	}
	r.noted = at
	return nil
}

// begin notes what the log has at the start of a life. Where that cannot be stored it is tried again with each session; a copy of the
// disk that was put back shows without it as well, unless the gateway is started again before there is a connection.
func (r *Runner) begin() {
	if r.begun {
		return
	}
	r.begun = true
	if err := r.mark(); err != nil {
		r.begun = false
		if text := err.Error(); text != r.unnoted {
			r.unnoted = text
			r.log.Warn("the start cannot be noted, it is tried again", "err", err)
		}
	}
}

// unmark forgets it once the two fit again.
func (r *Runner) unmark() error {
	r.begun = true
	if !r.marked {
		return nil
	}
	err := r.cfg.Mark.Clear()
	r.marked = err != nil
	return err
}

func orResume(at FarCursor, env Env) string {
	if at.Epoch != env.Epoch {
		return ""
	}
	return fmt.Sprintf(", or %s: what the log has now counts as delivered", Resume)
}

// choice takes what the operator has chosen since the last try; it holds for one session.
func (r *Runner) choice() Choice {
	if r.cfg.Choice == nil {
		return ""
	}
	return r.cfg.Choice()
}

// unasked forgets a choice that was left where nothing is to be chosen: the next time there is, it would be followed without a look.
func (r *Runner) unasked() {
	r.mu.Lock()
	asked := r.asked
	r.mu.Unlock()
	if asked {
		return
	}
	if c := r.choice(); c != "" {
		r.log.Warn("the operator's choice is forgotten: both sides fit, so nothing was to be chosen", "choice", string(c))
	}
}

func (r *Runner) followed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = false
}

func (r *Runner) took(c Choice, far FarCursor, err error) error {
	if err == nil {
		r.followed()
		r.log.Warn("the operator's choice was followed", "choice", string(c), "far", far.String(), "at", time.Now().UTC().Format(time.RFC3339))
	}
	return err
}
