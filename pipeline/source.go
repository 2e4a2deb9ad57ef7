package pipeline

import (
	"context"
	"errors"
	"sync"
)

// maxNewest is how many topics of a source keep their newest message for the page.
const maxNewest = 500

// source is the Sink of one device.
type source struct {
	name     string
	pipeline *Pipeline

	newestMu sync.Mutex // guards the two below
	newest   map[string]Message
	more     bool

	orderMu sync.Mutex // guards the map, not the queues
	order   map[string]*queue
}

// Put implements Sink.
func (s *source) Put(ctx context.Context, b Batch, done func(error)) error {
	for i := range b.Messages {
		b.Messages[i].Source = s.name
	}
	t := s.enter(b.Order, done)
	if err := s.pipeline.put(ctx, &b, t); err != nil {
		t.cancel()
		return err
	}
	s.remember(b.Messages)
	t.committed(nil) // Put's own share
	return nil
}

// Remembered implements Sink.
func (s *source) Remembered(prefix string) []string {
	var names []string
	seen := make(map[string]bool)
	for _, l := range s.pipeline.lanes {
		l.remembered(prefix, func(name string) {
			if !seen[name] {
				seen[name] = true
				names = append(names, name)
			}
		})
	}
	return names
}

func (s *source) remember(messages []Message) {
	s.newestMu.Lock()
	defer s.newestMu.Unlock()
	for i := range messages {
		topic := messages[i].Topic
		if _, known := s.newest[topic]; !known && len(s.newest) >= maxNewest {
			s.more = true
			continue
		}
		s.newest[topic] = messages[i]
	}
}

// queue holds the tickets of one Order, in the order of Put. Its mutex is held while done is called, which is what keeps
// the calls in order; done must not block.
type queue struct {
	mu      sync.Mutex
	tickets []*ticket
}

// ticket waits for the commits of one batch: one share for each lane that took part of it and one for Put itself.
type ticket struct {
	source *source
	order  string
	queue  *queue
	done   func(error)

	// guarded by queue.mu
	shares   int
	err      error
	canceled bool
}

func (s *source) enter(order string, done func(error)) *ticket {
	if done == nil {
		done = func(error) {}
	}
	s.orderMu.Lock()
	defer s.orderMu.Unlock()
	q := s.order[order]
	if q == nil {
		q = &queue{}
		s.order[order] = q
	}
	t := &ticket{source: s, order: order, queue: q, done: done, shares: 1}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.tickets = append(q.tickets, t)
	return t
}

// expect adds a share before it is handed to a lane.
func (t *ticket) expect() {
	t.queue.mu.Lock()
	defer t.queue.mu.Unlock()
	t.shares++
}

// withdraw takes back a share that the lane did not take.
func (t *ticket) withdraw() { t.committed(nil) }

// fail makes the batch as a whole a failure.
func (t *ticket) fail(err error) {
	t.queue.mu.Lock()
	defer t.queue.mu.Unlock()
	t.err = errors.Join(t.err, err)
}

// cancel takes the ticket out: nothing of the batch was taken.
func (t *ticket) cancel() {
	t.queue.mu.Lock()
	t.canceled = true
	t.queue.mu.Unlock()
	t.committed(nil)
}

// committed ends one share, and calls done for every ticket at the head of the queue that has none left.
func (t *ticket) committed(err error) {
	q := t.queue
	q.mu.Lock()
	t.shares--
	if err != nil {
		t.err = errors.Join(t.err, err)
	}
	for len(q.tickets) > 0 && q.tickets[0].shares == 0 {
		head := q.tickets[0]
		q.tickets = q.tickets[1:]
		if !head.canceled {
			head.done(head.err)
		}
	}
	empty := len(q.tickets) == 0
	q.mu.Unlock()
	if empty && t.order != "" {
		t.source.leave(t.order)
	}
}

// leave forgets a queue that has run empty, so that clients that come and go leave nothing behind.
func (s *source) leave(order string) {
	s.orderMu.Lock()
	defer s.orderMu.Unlock()
	q := s.order[order]
	if q == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.tickets) == 0 {
		delete(s.order, order)
	}
}
