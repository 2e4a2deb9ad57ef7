//go:build ack_before_commit

package main

import (
	"context"

	"edgegateway/pipeline"
)

// This file is the negative control of the end-to-end test and is in no build that anybody installs: it acknowledges before
// the commit, which is the very mistake that the test must be able to find (make e2e-control).
func init() {
	wrapLane = func(l pipeline.Lane) pipeline.Lane { return earlyLane{l} }
}

type earlyLane struct{ pipeline.Lane }

// Append implements pipeline.Lane, wrongly.
func (l earlyLane) Append(ctx context.Context, entries []pipeline.Entry, changes []pipeline.Change, urgent bool, done func(error)) error {
	if err := l.Lane.Append(ctx, entries, changes, urgent, func(error) {}); err != nil {
		return err
	}
	done(nil)
	return nil
}
