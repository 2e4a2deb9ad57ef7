package main

import (
	"context"
	"errors"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"edgegateway/wal"
)

// measureOutcomes gives records their outcome, one at a time, with nothing else going on. It counts the time that the
// thread has run, without that of other programs.
func (b *bench) measureOutcomes(ctx context.Context) (err error) {
	const window, rounds = 50_000, 10
	b.progress("outcomes: %d", window*rounds)
	dir, err := b.newDir("outcomes")
	if err != nil {
		return err
	}
	o := options("")
	o.Window, o.MaxDelay = window, time.Hour
	l, err := wal.Open(dir, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close(), b.empty()) }()
	c, err := l.Cursor("far", stream, wal.Oldest)
	if err != nil {
		return err
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var times []float64
	var allocs uint64
	for range rounds {
		recs, err := fill(ctx, l, c, window)
		if err != nil {
			return err
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		began := threadTime()
		for i := range recs {
			c.Done(recs[i])
		}
		times = append(times, float64((threadTime()-began).Nanoseconds())/window)
		runtime.ReadMemStats(&after)
		allocs += after.Mallocs - before.Mallocs
	}
	b.report(figure{name: "outcome", ours: median(times), reference: 20, unit: "ns", goal: atMost(1)})
	// A handful is the committer's, which writes the cursor meanwhile.
	b.report(figure{
		name: "outcome-allocations", ours: float64(allocs), reference: window * rounds, unit: "times", goal: atMost(.001),
	})
	return nil
}

// fill appends n small records and reads them.
func fill(ctx context.Context, l *wal.Log, c *wal.Cursor, n int) ([]wal.Record, error) {
	const at = 1000
	data := make([]byte, 16)
	for range n / at {
		batch := wal.Batch{Urgent: true, Entries: make([]wal.Entry, at)}
		for i := range batch.Entries {
			batch.Entries[i] = wal.Entry{Stream: stream, Time: time.Now(), Data: data}
		}
		done := make(chan error, 1)
		if err := l.Append(ctx, batch, func(err error) { done <- err }); err != nil {
			return nil, err
		}
		if err := <-done; err != nil {
			return nil, err
		}
	}
	recs := make([]wal.Record, 0, n)
	for len(recs) < n {
		more, err := c.Read(ctx, n-len(recs), 0)
		if err != nil {
			return nil, err
		}
		recs = append(recs, more...)
	}
	return recs, nil
}

// threadTime is how long this thread has run.
func threadTime() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) // it exists wherever this program runs
	return time.Duration(t.Nano())
}
