package pulsar

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"

	"edgegateway/pipeline"
	"edgegateway/uplink"
)

// A topic may have a limit of its own, which the client does not hear of. It counts what is left after compression, so what it took of
// one batch says nothing of the next one, and what is in flight behind a refused one is stored before it. Where order is promised,
// nothing large has company until the topic is known to take as much of what no compression makes smaller.
//
// The broker looks at the size of a message before it looks for a repeat. So noise with a number that the broker has shows what the
// topic takes, and nobody ever reads it. It is sent when as much went one by one: a small one first, and where the line is slow no
// large one, for one batch after the other costs little there.
const (
	littleNoise   = 16 << 10
	muchNoise     = roomOfBatch - 2<<10 // leaves room for what is around it, and is as large as a batch with that
	slow          = 2 * time.Second     // for a little noise, there and back
	measuredAgain = time.Hour           // where the line was slow
)

// measured is what a topic took. The zero value says that nobody knows.
type measured struct {
	bytes   int
	refused bool // it takes less than a batch
	at      time.Time
}

// size notes what is known of what the topic takes.
func (s *session) size(m measured) {
	s.proven = max(s.proven, min(m.bytes, batchBytes))
	s.whole = m.bytes >= min(muchNoise, s.noise())
	s.full = s.full || s.whole
	s.sized = s.whole || time.Since(m.at) < measuredAgain
}

// noise returns how much noise the broker takes, or a little more than any batch.
func (s *session) noise() int {
	if most := int(s.most.Load()); most > 0 {
		return max(1, min(muchNoise, most-1<<10))
	}
	return muchNoise
}

// measureFirst takes what an earlier session found out of the topic. Where it was refused, it is measured again before anything is sent.
func (s *session) measureFirst(ctx context.Context) error {
	m := s.claims.measured(s.topic)
	next, ok := nextSequence(s.producer)
	if m.refused && ok && next > 0 {
		return s.measure(ctx, pipeline.RecordID{Gateway: s.env.Gateway, Stream: s.env.Stream, Epoch: s.env.Epoch, Seq: next - 1})
	}
	if m.bytes > 0 {
		s.size(m)
	}
	return nil
}

// measure finds out what the topic takes. The broker has stored something with the number of id, or a higher one, and nothing is in
// flight.
func (s *session) measure(ctx context.Context, id pipeline.RecordID) error {
	m := measured{at: time.Now()}
	for _, bytes := range []int{littleNoise, s.noise()} {
		begun := time.Now()
		err := s.sendNoise(ctx, id, bytes)
		if err != nil && isRefused(err) {
			break // by the library: the broker takes less
		}
		if err != nil {
			return err
		}
		m.bytes = bytes
		if time.Since(begun) > slow {
			break
		}
	}
	s.claims.note(s.topic, m)
	s.size(m)
	return nil
}

// sendNoise sends a message that the broker takes for a repeat, unless it is too large.
func (s *session) sendNoise(ctx context.Context, id pipeline.RecordID, bytes int) error {
	if err := s.waitCut(ctx); err != nil {
		return err
	}
	known := uplink.Record{ID: id}
	last := known
	last.ID.Seq = max(s.confirmed(), id.Seq)
	m := s.message(&last, &known) // should it be stored after all, it says where the stream stands
	m.Payload = make([]byte, bytes)
	_, _ = rand.Read(m.Payload) // it never fails
	s.flying.Lock()
	s.measuring = true
	s.flying.Unlock()
	answer := make(chan error, 1)
	s.producer.SendAsync(ctx, &m, func(id pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
		if err == nil && id.LedgerID() >= 0 {
			err = s.storesRepeats(s.topic)
		}
		answer <- err
	})
	if s.batching {
		s.cut(1)
	}
	select {
	case err := <-answer:
		s.flying.Lock()
		s.measuring = false
		s.flying.Unlock()
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-s.ctx.Done():
		return s.failure()
	}
}

// isLessThanABatch reports whether what is in flight, and was refused for its size, has no more bytes than a batch may have.
func (s *session) isLessThanABatch() bool {
	if s.measuring {
		return true
	}
	for m := range s.aloft {
		if m.bytes <= batchBytes {
			return true
		}
	}
	return false
}

// tooNarrow ends the link of a session whose topic takes less than a batch.
func (s *session) tooNarrow() {
	s.claims.note(s.topic, measured{refused: true})
	s.fail(uplink.Config(fmt.Errorf("topic %s takes less than a batch, by its own policy maxMessageSize: what goes behind a message that is refused "+
		"might be stored before it (want a limit of at least %d bytes for the topic, or delivery: at_least_once)", s.topic, roomOfBatch)))
}
