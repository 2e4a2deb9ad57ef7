package uplink

import (
	"context"
	"time"
)

// Pause holds the records of this Runner: what is in flight may still be confirmed for Timing.Drain, then the session is closed and
// none is opened until Resume. It does not wait for that.
func (r *Runner) Pause() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.paused = true
	if r.endTurn != nil {
		r.endTurn()
	}
}

// Resume lets the records go again, at once: a pause after a failure is not waited for.
func (r *Runner) Resume() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.paused = false
	signal(r.resumed)
}

// turn waits until the Runner is not paused, and returns the context of a session and of the pause behind it: it ends with Pause.
func (r *Runner) turn(ctx context.Context) (context.Context, context.CancelFunc) {
	turn, cancel := context.WithCancel(ctx)
	for ctx.Err() == nil && !r.begins(cancel) {
		select {
		case <-ctx.Done():
		case <-r.resumed:
		}
	}
	return turn, cancel
}

// begins notes how a turn is ended, or that the Runner is paused.
func (r *Runner) begins(cancel context.CancelFunc) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.paused {
		r.enterLocked(Paused, time.Time{})
		r.status.Limit, r.status.own, r.status.far = "", "", ""
		r.sayLocked(r.log.Info, "uplink paused", "")
		return false
	}
	r.endTurn = cancel
	r.enterLocked(Connecting, time.Time{})
	return true
}
