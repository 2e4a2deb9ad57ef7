package uplink

import (
	"context"
	"time"
)

// aliveTimeout bounds a question to an idle session. With the time between them it is less than ten seconds.
const aliveTimeout = 5 * time.Second

// guard asks an idle session again and again whether it still owns its place.
func (f *flight) guard(ctx context.Context, w Watcher) {
	every := f.r.cfg.Timing.Watch
	timer := time.NewTimer(every)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		f.mu.Lock()
		halted, busy, quiet := f.halted, f.aloft.count > 0, time.Since(f.sent)
		f.mu.Unlock()
		switch {
		case halted:
			return
		case busy: // the answer will tell
			timer.Reset(every)
			continue
		case quiet < every:
			timer.Reset(every - quiet)
			continue
		}
		alive, cancel := context.WithTimeout(ctx, aliveTimeout)
		err := w.Alive(alive)
		cancel()
		if err != nil {
			if ctx.Err() == nil {
				f.halt(err)
			}
			return
		}
		f.r.alive()
		timer.Reset(every)
	}
}
