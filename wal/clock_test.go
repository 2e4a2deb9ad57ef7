package wal

import (
	"sync"
	"testing"
	"time"
)

// testClock is a clock that a test sets.
type testClock struct {
	mu   sync.Mutex
	wall time.Time
	mono time.Duration
}

func (c *testClock) read() (time.Time, time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.wall, c.mono
}

// pass lets time pass, and sets the wall clock off by step besides.
func (c *testClock) pass(d, step time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mono += d
	c.wall = c.wall.Add(d + step)
}

func TestClockThatJumpsDropsNothing(t *testing.T) {
	dir := t.TempDir()
	clock := &testClock{wall: time.Now().Round(0)}
	o := Options{SegmentBytes: minSegmentBytes, MaxAge: 24 * time.Hour, clock: clock.read}
	var l *Log
	begin := func() {
		t.Helper()
		var err error
		if l, err = Open(dir, o); err != nil {
			t.Fatal(err)
		}
	}
	begin()
	defer func() { _ = l.Close() }()
	if _, err := l.Cursor("u", "s", Oldest); err != nil {
		t.Fatal(err)
	}
	put := func() {
		t.Helper()
		now, _ := clock.read()
		done := make(chan error, 1)
		err := l.Append(t.Context(), Batch{Urgent: true, Entries: []Entry{{Stream: "s", Time: now, Data: make([]byte, 20_000)}}}, func(err error) { done <- err })
		if err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	dropped := func() uint64 { return l.Stats().Streams[0].Dropped }
	for range 20 {
		put()
	}
	for _, step := range []time.Duration{10 * year, -10 * year, -30 * year, 30 * year} {
		clock.pass(time.Minute, step)
		put()
		// It holds for a log that is opened while the clock is wrong, too.
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		begin()
		put()
		if n := dropped(); n != 0 {
			t.Fatalf("%d records were dropped when the clock jumped by %v", n, step)
		}
	}
	clock.pass(26*time.Hour, 0)
	put()
	if n := dropped(); n < 20 {
		t.Errorf("%d records were dropped after a day, want those of the day before", n)
	}
}
