package kafka

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"edgegateway/uplink"
)

// Bounds of a chunk of the session of at_least_once. The next one is read and encoded while a chunk is on its way, so twice as much
// is in flight.
const (
	flightRecords = 8192
	flightBytes   = 4 << 20
)

// session implements uplink.Session for at_least_once.
//
// A chunk is as many batches as the line carries in a moment. All of them go out one behind the other, and their answers are
// awaited before the next chunk follows: franz-go forgets that a batch was refused once its answer is there, and what is
// produced after that would pass the records that were refused.
type session struct {
	link
	turn    chan struct{}  // held from when a chunk is made until it is answered; guards the fields below
	running sync.WaitGroup // what waits for answers; Close waits for it
	pace    uplink.Pace
	failed  error
}

// answer is what the broker says of one record.
type answer struct {
	seq  uint64
	size int
	err  error
}

// Send implements uplink.Session. It returns while its last chunk is on its way.
func (s *session) Send(ctx context.Context, recs []uplink.Record, report func(uint64, uplink.Outcome)) error {
	for len(recs) > 0 {
		select {
		case s.turn <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		case <-s.ctx.Done():
			return s.ctx.Err()
		}
		n, err := s.launch(ctx, recs, report)
		if err != nil {
			return err
		}
		recs = recs[n:]
	}
	return nil
}

// launch produces the next chunk and leaves the rest to settle, which passes the turn on. It returns how many records it has
// dealt with.
func (s *session) launch(ctx context.Context, recs []uplink.Record, report func(uint64, uplink.Outcome)) (int, error) {
	if s.failed != nil {
		<-s.turn
		return 0, s.failed
	}
	begun := time.Now()
	limit := s.pace.Bytes(flightBytes)
	answers := make(chan answer, min(len(recs), flightRecords)) // room for all: one that comes after the end goes unheard
	n, sent, bytes := 0, 0, 0
	for ; n < min(len(recs), flightRecords); n++ {
		rec := &recs[n]
		seq, size := rec.ID.Seq, size(rec)
		if err := fits(rec); err != nil {
			report(seq, uplink.Outcome{Verdict: uplink.Drop, Err: err})
			continue
		}
		topic, terms, err := s.topicOf(ctx, rec)
		if err != nil && n == 0 {
			s.failed = s.explainOf(topic, err)
			<-s.turn
			return 0, s.failed
		}
		if terms.bytes < s.batch { // then the chunk is to be one batch, and no larger than this
			limit = min(limit, terms.bytes-terms.bytes/10)
		}
		if err != nil || bytes > 0 && bytes+size > limit {
			break
		}
		bytes += size
		sent++
		s.client.Produce(s.ctx, s.heads.record(rec, topic, terms.keeps, begun), func(_ *kgo.Record, err error) {
			answers <- answer{seq, size, err}
		})
	}
	s.running.Go(func() {
		defer func() { <-s.turn }()
		if s.settle(answers, sent, report) {
			s.pace.Took(bytes, time.Since(begun))
		}
	})
	return n, nil
}

// settle has a chunk sent and reports what comes of it.
func (s *session) settle(answers <-chan answer, sent int, report func(uint64, uplink.Outcome)) (clean bool) {
	if err := s.client.Flush(s.ctx); err != nil { // only Close ends it early
		s.failed = fmt.Errorf("%s: the session ended before the answer", s.address)
		return false
	}
	refused := 0 // bytes of the records that stood in refused batches
	for range sent {
		var a answer
		select {
		case a = <-answers:
		case <-s.ctx.Done():
			s.failed = s.ctx.Err()
			return false
		}
		if a.err == nil {
			report(a.seq, uplink.Outcome{Verdict: uplink.Ack})
			continue
		}
		o := s.outcome(a.err)
		if s.failed == nil {
			s.failed = fmt.Errorf("%s did not take a batch: %w", s.address, o.Err)
		}
		if o.Verdict == uplink.Suspect {
			// franz-go gives all that waits behind a refused batch the same error, and a batch is no larger than this.
			if refused > s.batch {
				o.Verdict = uplink.Retry
			}
			refused += a.size
		}
		report(a.seq, o)
	}
	return s.failed == nil
}

// Close implements uplink.Session.
func (s *session) Close() {
	s.hangUp()
	s.running.Wait()
}
