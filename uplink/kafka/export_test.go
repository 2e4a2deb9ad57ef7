package kafka

import (
	"context"
	"time"

	"edgegateway/uplink"
)

// Exactly is a driver that always keeps exactly_once, with what tests do to it: Committed is called between a commit and its
// reports, Outside writes the cursor after the transaction instead of in it.
type Exactly struct {
	*Config
	Committed func()
	Outside   bool
	Plain     bool   // at_least_once after all
	Uplink    string // in the place of the one it has: tests that run side by side would fence each other
	Records   int    // of a transaction, at most; 0 for the usual
	// Committing is called before a commit, Timeout is when the broker aborts a transaction; 0 for the usual.
	Committing func()
	Timeout    time.Duration
	// Mending is called between the steps in which what hangs is ended, and an error stops them there. Unmarked ends it without markers.
	Mending  func() error
	Unmarked bool
}

func (e Exactly) Open(ctx context.Context, env uplink.Env) (uplink.Session, error) {
	if e.Uplink != "" {
		env.Uplink = e.Uplink
	}
	if e.Plain {
		return e.Config.Open(ctx, env)
	}
	env.Promise = uplink.Promise{Delivery: uplink.ExactlyOnce, Order: uplink.OrderStrict}
	return e.openExact(ctx, env, hooks{
		committing: e.Committing, committed: e.Committed, outside: e.Outside, records: e.Records, timeout: e.Timeout,
		mending: e.Mending, unmarked: e.Unmarked,
	})
}
