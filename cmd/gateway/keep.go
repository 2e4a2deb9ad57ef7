package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"edgegateway/uplink"
	"edgegateway/wal"
)

// Pauses before a lane that has stopped, or cannot be opened, is tried again. A lane that ran for steadyLane begins anew.
const (
	firstPause = time.Second
	lastPause  = time.Minute
	steadyLane = time.Minute
)

// mostSalvages is how often in a row a lane is salvaged by itself: a log that is damaged again at once is on a medium that
// no salvage mends.
const mostSalvages = 2

// attached is what runs on an open lane.
type attached struct {
	log     *wal.Log
	ctx     context.Context //nolint:containedctx // ends with the lane; an uplink may be started later
	cancel  context.CancelFunc
	damaged chan error // holds one: an uplink could not read the log

	mu      sync.Mutex // guards ended, and that nothing starts behind it
	ended   bool
	runners sync.WaitGroup
}

// attach gives an opened lane to the pipeline and starts the uplinks of its streams.
func (g *gateway) attach(ctx context.Context, l *laneRun) *attached {
	log, _ := l.opened()
	ctx, cancel := context.WithCancel(ctx)
	a := &attached{log: log, ctx: ctx, cancel: cancel, damaged: make(chan error, 1)}
	for _, k := range g.links {
		if k.lane != l {
			continue
		}
		if err := g.start(a, k); err != nil {
			k.log.Error("cursor cannot be opened, the uplink does not run", "err", err)
		}
	}
	cursors := log.Cursors()
	for _, k := range g.again {
		if k.lane == l && k.isNeeded(cursors) {
			if err := g.start(a, k); err != nil {
				k.log.Error("cursor cannot be opened, the dead letters are not sent again", "err", err)
			}
		}
	}
	// Only now, with every cursor in place, may the first record come.
	g.pipeline.Attach(l.name, wrapLane(walLane{log}))
	for _, c := range cursors {
		if !g.isConfigured(c.Uplink, c.Stream) {
			g.log.Warn("uplink is not in the config any more, its records stay in the log until it is released",
				"uplink", c.Uplink, "stream", c.Stream, "records", c.Lag.Records)
		}
	}
	l.setRunning(a)
	return a
}

// start opens the cursor of an uplink and runs it for as long as the lane does.
func (g *gateway) start(a *attached, k *linkRun) error {
	from, err := k.from()
	if err != nil {
		return err
	}
	cursor, err := a.log.Cursor(k.uplink, k.stream, from)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended {
		cursor.Close()
		return wal.ErrClosed
	}
	runner, err := g.carry(k, a.log, cursor, uplink.Env{
		Gateway: g.config.Gateway.ID, Stream: k.stream, Route: k.route, Epoch: a.log.Epoch(),
		Uplink: k.uplink, Driver: k.driver, Log: k.log, Promise: k.promise, Claims: &k.claims, Figures: &k.figures,
	})
	if err != nil {
		cursor.Close()
		return err
	}
	a.runners.Go(func() {
		err := runner.Run(a.ctx)
		if err != nil {
			k.log.Error("uplink ended", "err", err)
		}
		if errors.Is(err, wal.ErrDamaged) {
			select {
			case a.damaged <- err:
			default: // one is enough
			}
		}
	})
	return nil
}

// end stops what runs and waits for it.
func (a *attached) end() {
	a.mu.Lock()
	a.ended = true
	a.mu.Unlock()
	a.cancel()
	a.runners.Wait()
}

// keepLane keeps a lane open until linkCtx ends. When its log stops, the uplinks end, the files are closed, and the log is
// opened again from the medium; what waited for an acknowledgement gets an error, and sources that can deliver again do.
// a is nil where the lane could not be opened yet. It returns an error when another process has the directory.
func (g *gateway) keepLane(ctx, linkCtx context.Context, l *laneRun, a *attached) error {
	pause := firstPause
	for {
		if a == nil {
			if err := l.openRetrying(ctx, g.epochs, pause); err != nil {
				if errors.Is(err, wal.ErrLocked) {
					return fmt.Errorf("lane %s: %w", l.name, err)
				}
				return nil // the gateway ends
			}
			a = g.attach(linkCtx, l)
		}
		began := time.Now()
		var cause error
		select {
		case <-linkCtx.Done():
		case <-a.log.Stopped():
			cause = a.log.Err()
		case cause = <-a.damaged:
		}
		l.setRunning(nil)
		a.end()
		if linkCtx.Err() != nil {
			return nil // run closes the log
		}
		if time.Since(began) > steadyLane {
			pause = firstPause
			l.salvages = 0
		} else {
			pause = min(2*pause, lastPause)
		}
		for _, k := range g.allLinks() {
			if k.lane == l {
				k.stop()
			}
		}
		l.close(cause)
		l.log.Error("lane has stopped, it will be opened again from the medium", "err", cause, "after", pause)
		a = nil
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// carry makes what carries the stream. Whether it begins paused is asked under the mutex, so that a pause at this moment finds the one or the
// other.
func (g *gateway) carry(k *linkRun, log *wal.Log, cursor *wal.Cursor, env uplink.Env) (carrier, error) {
	stateDir := g.config.Gateway.StateDir
	k.mu.Lock()
	defer k.mu.Unlock()
	c, err := k.carrier(log, cursor, uplink.RunnerConfig{
		Driver: k.Driver, Env: env, Cursor: cursor, Paused: g.pauses.has(k.uplink), Limiter: g.limits[k.uplink],
		Choice: func() uplink.Choice { return takeChoice(stateDir, k.stream, k.uplink, k.log) },
		Mark:   mark{choicePath(stateDir, k.stream, k.uplink) + ".ahead"},
	})
	if err == nil {
		k.cursor, k.runner = cursor, c
	}
	return c, err
}

// runs returns the runner, or nil where the uplink does not run.
func (k *linkRun) runs() carrier {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.runner
}

func (k *linkRun) stop() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.cursor, k.runner = nil, nil
}

// close ends the use of a log that has stopped. It is opened again from the medium only.
func (l *laneRun) close(cause error) {
	l.mu.Lock()
	log := l.wal
	l.wal, l.err, l.letters, l.distrusted = nil, cause, nil, true
	l.mu.Unlock()
	_ = log.Close() // it says once more why it has stopped
}

// openRetrying opens the lane, at first at once and then again and again: a read-only or full disk may be mended while the
// gateway runs. Damage waits for a person, or is salvaged where the config says so.
func (l *laneRun) openRetrying(ctx context.Context, epochs *epochFile, pause time.Duration) error {
	said := ""
	for {
		err := l.open(epochs)
		if err == nil {
			if said != "" || l.distrusted {
				l.log.Info("lane opened")
			}
			l.distrusted = false
			return nil
		}
		if errors.Is(err, wal.ErrLocked) {
			return err
		}
		if said != err.Error() {
			said = err.Error()
			l.log.Error("lane cannot be opened, nothing is stored in it", "err", err)
		}
		if errors.Is(err, wal.ErrDamaged) && l.config.OnDamage == onDamageSalvage && l.salvages < mostSalvages {
			l.salvages++
			if err = l.salvage(); err == nil {
				continue
			}
			l.setError(err)
		}
		if errors.Is(err, wal.ErrDamaged) || errors.Is(err, wal.ErrVersion) {
			<-ctx.Done()
			return ctx.Err()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
		pause = min(2*pause, lastPause)
	}
}

func (l *laneRun) setRunning(a *attached) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running = a
}

func (l *laneRun) setError(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = err
}

// salvage makes a damaged log one that opens, and says what that has cost.
func (l *laneRun) salvage() error {
	l.log.Warn("log is being salvaged", "attempt", l.salvages, "most", mostSalvages)
	r, err := wal.Salvage(l.dir, wal.SalvageOptions{Options: l.options(0)}, nil)
	if err != nil {
		l.log.Error("log cannot be salvaged", "err", err)
		return err
	}
	for _, lost := range r.Lost {
		l.log.Warn("records were lost", "stream", lost.Stream, "first", lost.First, "last", lost.Last)
	}
	l.log.Warn("log was salvaged", "recovered", r.Recovered, "lost", r.LostRecords(), "skipped", r.Skipped, "state_incomplete", r.StateIncomplete,
		"kept", len(r.Kept))
	return nil
}
