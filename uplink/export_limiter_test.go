package uplink

import (
	"context"
	"time"
)

// SetClock gives a Limiter another clock. It is called before anything is sent.
func (l *Limiter) SetClock(clock func() (time.Time, time.Duration)) {
	l.clock = clock
	_, mono := clock()
	l.quota.since, l.rates.at, l.tenth.at = mono, mono, mono
}

// Try pays for some of sizes where that can be done at once, and returns for how many, or why not.
func (l *Limiter) Try(backlog bool, sizes ...int) (n int, reason string) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	n = l.wait(ctx, load{sizes: sizes, backlog: backlog}, func(r string) {
		if r != "" {
			reason = r
			cancel()
		}
	})
	return n, reason
}

// Wait is what a Runner calls.
func (l *Limiter) Wait(ctx context.Context, backlog bool, sizes ...int) int {
	return l.wait(ctx, load{sizes: sizes, backlog: backlog}, func(string) {})
}
