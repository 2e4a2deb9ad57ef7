package main

import (
	"slices"
	"sync"
	"time"

	"edgegateway/wal"
)

// mediumPeriod is how often the medium under a lane is looked at again: disk space comes and goes.
const mediumPeriod = time.Minute

// mediumWatch is what is known of the medium under a lane.
type mediumWatch struct {
	mu     sync.Mutex // guards the rest
	looked time.Time
	doubts []wal.Doubt
	failed bool
}

// doubts returns the reasons not to trust the medium under the lane. Each is logged once, when it comes up.
func (l *laneRun) doubts(now time.Time) []wal.Doubt {
	w := &l.medium
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.looked.IsZero() && now.Sub(w.looked) < mediumPeriod {
		return w.doubts
	}
	w.looked = now
	list, err := wal.Doubts(l.dir, int64(l.config.MaxBytes))
	if err != nil && !w.failed {
		l.log.Warn("medium cannot be looked at", "err", err)
	}
	w.failed = err != nil
	for _, d := range list {
		if !slices.ContainsFunc(w.doubts, func(old wal.Doubt) bool { return old.Kind == d.Kind }) {
			l.log.Warn("medium is doubtful", "kind", d.Kind, "text", d.Text, "hint", d.Hint)
		}
	}
	w.doubts = list
	return list
}
