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
	flightRecords = 16_384
	flightBytes   = 8 << 20
)

// session implements uplink.Session for at_least_once.
//
// A chunk is as many batches as the line carries in a moment. All of them go out one behind the other, and their answers are
// awaited before the next chunk follows: franz-go forgets that a batch was refused once its answer is there, and what is
// produced after that would pass the records that were refused.
type session struct {
	link
	loose   bool           // others may go on past a record that its topic does not take for now
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

// outgoing is a record on its way. One that no batch takes, or whose topic is not known, only has err.
type outgoing struct {
	seq   uint64
	size  int
	batch int // bytes that its topic takes in one batch
	rec   *kgo.Record
	err   error
	drop  bool // for good
}

// Send implements uplink.Session. It returns while its last chunk is on its way.
func (s *session) Send(ctx context.Context, recs []uplink.Record, report func(uint64, uplink.Outcome)) error {
	for out := s.prepare(ctx, recs); len(out) > 0; {
		select {
		case s.turn <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		case <-s.ctx.Done():
			return s.ctx.Err()
		}
		n, err := s.launch(out, report)
		if err != nil {
			return err
		}
		out = out[n:]
	}
	return nil
}

// prepare makes what the client takes of records, up to the first whose topic is not known, while an earlier chunk is on its way.
func (s *session) prepare(ctx context.Context, recs []uplink.Record) []outgoing {
	out := make([]outgoing, 0, len(recs))
	now := time.Now()
	for i := range recs {
		o := outgoing{seq: recs[i].ID.Seq, size: size(&recs[i])}
		if o.err = fits(&recs[i]); o.err != nil {
			o.drop = true
			out = append(out, o)
			continue
		}
		topic, terms, err := s.topicOf(ctx, &recs[i])
		if err != nil {
			o.err = s.explainOf(topic, err)
			if out = append(out, o); s.loose && ctx.Err() == nil {
				continue
			}
			return out
		}
		o.batch, o.rec = terms.bytes, s.heads.record(&recs[i], topic, terms.keeps, now)
		out = append(out, o)
	}
	return out
}

// launch produces the next chunk and leaves the rest to settle, which passes the turn on. It returns how many records it has
// dealt with.
func (s *session) launch(out []outgoing, report func(uint64, uplink.Outcome)) (int, error) {
	if s.failed == nil && !out[0].drop && !s.loose {
		s.failed = out[0].err
	}
	if s.failed != nil {
		<-s.turn
		return 0, s.failed
	}
	begun := time.Now()
	limit := s.pace.Bytes(flightBytes)
	answers := make(chan answer, min(len(out), flightRecords)) // room for all: one that comes after the end goes unheard
	n, sent, bytes := 0, 0, 0
	for ; n < min(len(out), flightRecords); n++ {
		o := &out[n]
		if o.drop {
			report(o.seq, uplink.Outcome{Verdict: uplink.Drop, Err: o.err})
			continue
		}
		if o.err != nil && s.loose { // its topic is not there for now
			report(o.seq, uplink.Outcome{Err: o.err, Answered: true})
			continue
		}
		if o.err != nil {
			break
		}
		if o.batch < s.batch { // then the chunk is to be one batch, and no larger than this
			limit = min(limit, o.batch-o.batch/10)
		}
		if bytes > 0 && bytes+o.size > limit {
			break
		}
		bytes += o.size
		sent++
		s.client.Produce(s.ctx, o.rec, func(_ *kgo.Record, err error) { answers <- answer{o.seq, o.size, err} })
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
		if s.failed == nil && (!s.loose || !o.Answered) {
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
