package mqtt_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"edgegateway/pipeline"
)

// fakeSink is a lane whose commits the test makes, or that makes them itself every so often.
type fakeSink struct {
	changed chan struct{} // has room for one signal

	mu      sync.Mutex // guards the fields below
	queue   []queued
	stored  []pipeline.Message
	names   map[string]bool
	refuse  error // what Put returns
	commits int
	urgent  int // batches put as urgent
	full    chan struct{}
	dead    bool
}

// crash loses what is queued, and takes nothing more until revive.
func (s *fakeSink) crash() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue, s.dead = nil, true
}

func (s *fakeSink) revive() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dead = false
}

type queued struct {
	batch pipeline.Batch
	done  func(error)
}

func newSink() *fakeSink {
	return &fakeSink{changed: make(chan struct{}, 1), names: map[string]bool{}}
}

func (s *fakeSink) Put(ctx context.Context, b pipeline.Batch, done func(error)) error {
	s.mu.Lock()
	full := s.full
	s.mu.Unlock()
	if full != nil {
		select {
		case <-full:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.refuse != nil {
		return s.refuse
	}
	if s.dead {
		return nil // and done never comes
	}
	if b.Urgent {
		s.urgent++
	}
	s.queue = append(s.queue, queued{b, done})
	select {
	case s.changed <- struct{}{}:
	default:
	}
	return nil
}

func (s *fakeSink) Remembered(prefix string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for name := range s.names {
		if strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
	}
	return names
}

// commit makes one commit of all that is queued, or fails it, and returns how many batches it held.
func (s *fakeSink) commit(err error) int {
	s.mu.Lock()
	queue := s.queue
	s.queue = nil
	if len(queue) > 0 {
		s.commits++
	}
	for _, q := range queue {
		if err != nil {
			break
		}
		if q.batch.Once == "" || !s.names[q.batch.Once] {
			s.stored = append(s.stored, q.batch.Messages...)
		}
		if q.batch.Once != "" {
			s.names[q.batch.Once] = true
		}
		for _, name := range q.batch.Forget {
			delete(s.names, name)
		}
	}
	s.mu.Unlock()
	for _, q := range queue {
		if q.done != nil {
			q.done(err)
		}
	}
	return len(queue)
}

// auto commits what is queued, each time after pause, until the test ends.
func (s *fakeSink) auto(t testing.TB, pause time.Duration) *fakeSink {
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-s.changed:
				if pause > 0 {
					time.Sleep(pause)
				}
				s.commit(nil)
			case <-stop:
				s.commit(nil)
				return
			}
		}
	})
	t.Cleanup(func() { close(stop); wg.Wait() })
	return s
}

func (s *fakeSink) setRefuse(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse = err
}

func (s *fakeSink) queued() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.queue)
}

func (s *fakeSink) messages() []pipeline.Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.stored)
}

func (s *fakeSink) payloads() []string {
	var all []string
	for _, m := range s.messages() {
		all = append(all, m.Value.Text())
	}
	return all
}

func (s *fakeSink) waitQueued(t testing.TB, n int) {
	t.Helper()
	eventually(t, "batches in the queue", func() bool { return s.queued() == n })
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}
