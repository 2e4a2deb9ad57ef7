package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
	cancel  context.CancelFunc
	runners sync.WaitGroup
	damaged chan error // holds one: an uplink could not read the log
}

// attach gives an opened lane to the pipeline and starts the uplinks of its streams.
func (g *gateway) attach(ctx context.Context, l *laneRun) *attached {
	log, _ := l.opened()
	ctx, cancel := context.WithCancel(ctx)
	a := &attached{log: log, cancel: cancel, damaged: make(chan error, 1)}
	for _, k := range g.links {
		if k.lane != l {
			continue
		}
		cursor, err := log.Cursor(k.uplink, k.stream, wal.Oldest)
		if err != nil {
			k.log.Error("cursor cannot be opened, the uplink does not run", "err", err)
			continue
		}
		runner := k.start(cursor, g.config.Gateway.StateDir, uplink.Env{
			Gateway: g.config.Gateway.ID, Stream: k.stream, Epoch: log.Epoch(), Uplink: k.uplink, Log: k.log, Promise: k.promise,
		})
		a.runners.Go(func() {
			err := runner.Run(ctx)
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
	}
	// Only now, with every cursor in place, may the first record come.
	g.pipeline.Attach(l.name, wrapLane(walLane{log}))
	for _, c := range log.Cursors() {
		if !slices.ContainsFunc(g.links, func(k *linkRun) bool { return k.uplink == c.Uplink && k.stream == c.Stream }) {
			g.log.Warn("uplink is not in the config any more, its records stay in the log", "uplink", c.Uplink, "stream", c.Stream)
		}
	}
	return a
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
		a.cancel()
		a.runners.Wait()
		if linkCtx.Err() != nil {
			return nil // run closes the log
		}
		if time.Since(began) > steadyLane {
			pause = firstPause
			l.salvages = 0
		} else {
			pause = min(2*pause, lastPause)
		}
		for _, k := range g.links {
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

func (k *linkRun) start(cursor *wal.Cursor, stateDir string, env uplink.Env) *uplink.Runner {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.cursor = cursor
	k.runner = uplink.New(uplink.RunnerConfig{
		Driver: k.Driver, Env: env, Cursor: cursor,
		Choice: func() uplink.Choice { return takeChoice(stateDir, k.stream, k.uplink, k.log) },
		Mark:   mark{choicePath(stateDir, k.stream, k.uplink) + ".ahead"},
	})
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
