package kafka

import (
	"context"
	"testing"
	"time"
)

// Hand-overs that are smaller than the window go side by side until they fill it: one at a time they would be too few to prove that it
// may grow, and it would stay small for ever.
func TestSmallHandOversFillTheWindow(t *testing.T) {
	s := &session{room: make(chan struct{}, 1)}
	s.ctx = t.Context()
	s.pace.Took(16<<10, 20*time.Millisecond) // the window is 240 KB
	s.pace.Took(240<<10, 75*time.Millisecond)
	window := s.pace.Bytes(flightBytes)
	const chunk = 300_000
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // a wait is an error
	ahead := 0
	for s.bytes+chunk <= window {
		if _, err := s.wait(ctx, []outgoing{{size: chunk}}); err != nil {
			t.Fatalf("%d of %d bytes are in flight, and %d more wait: %v", s.bytes, window, chunk, err)
		}
		s.chunks, s.bytes, ahead = s.chunks+1, s.bytes+chunk, s.bytes
	}
	if _, err := s.wait(ctx, []outgoing{{size: chunk}}); err == nil {
		t.Errorf("%d bytes are in flight, the window is %d, and more may go", s.bytes, window)
	}
	if s.pace.Took(ahead+chunk, 75*time.Millisecond); s.pace.Bytes(flightBytes) <= window {
		t.Errorf("a window of %d bytes with %d in it did not grow", window, ahead+chunk)
	}
}
