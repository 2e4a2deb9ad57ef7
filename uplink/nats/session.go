package nats

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"edgegateway/uplink"
)

// session implements uplink.Session for what is confirmed record by record. collect is its only goroutine.
type session struct {
	*link

	pubs       chan publication // in the order of sending
	collecting sync.WaitGroup
}

// publication is one record that was sent and is not answered yet.
type publication struct {
	seq    uint64
	size   int
	answer jetstream.PubAckFuture
	report func(uint64, uplink.Outcome)
}

// Send implements uplink.Session.
func (s *session) Send(ctx context.Context, recs []uplink.Record, report func(uint64, uplink.Outcome)) error {
	for i := range recs {
		rec := &recs[i]
		select {
		case <-s.dead:
			return s.failure()
		case <-ctx.Done():
			return ctx.Err()
		default:
		}
		// No retries: the library's own would send a record again after its successors.
		answer, err := s.js.PublishMsgAsync(s.message(rec), jetstream.WithMsgID(rec.ID.String()),
			jetstream.WithExpectStream(s.stream), jetstream.WithRetryAttempts(0), jetstream.WithStallWait(dialTimeout))
		if errors.Is(err, nats.ErrMaxPayload) {
			report(rec.ID.Seq, uplink.Outcome{Verdict: uplink.Drop, Err: fmt.Errorf(
				"the record has %d bytes with its headers, the server takes %d (its setting max_payload)",
				s.message(rec).Size(), s.nc.MaxPayload())})
			continue
		}
		if err != nil {
			return s.explain(err)
		}
		select {
		case s.pubs <- publication{rec.ID.Seq, len(rec.JSON), answer, report}:
		case <-s.dead:
			return s.failure()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (s *session) message(rec *uplink.Record) *nats.Msg {
	return &nats.Msg{Subject: s.subject, Data: rec.JSON, Header: nats.Header{"Gw-Topic": {rec.Message.Topic}}}
}

// collect reports the answers in the order of sending. When the session dies it reports what is known by then, and of the
// first record in doubt that it is; nothing is said of those behind it.
func (s *session) collect() {
	for {
		select {
		case <-s.dead:
			s.leftovers()
			return
		case p := <-s.pubs:
			select {
			case ack := <-p.answer.Ok():
				p.report(p.seq, uplink.Outcome{Verdict: uplink.Ack, Repeat: ack.Duplicate})
			case err := <-p.answer.Err():
				p.report(p.seq, s.outcome(p, err))
			case <-s.dead:
				if s.leftover(p) {
					s.leftovers()
				}
				return
			}
		}
	}
}

func (s *session) leftovers() {
	for {
		select {
		case p := <-s.pubs:
			if !s.leftover(p) {
				return
			}
		default:
			return
		}
	}
}

func (s *session) leftover(p publication) (answered bool) {
	select {
	case ack := <-p.answer.Ok():
		p.report(p.seq, uplink.Outcome{Verdict: uplink.Ack, Repeat: ack.Duplicate})
		return true
	default:
		p.report(p.seq, uplink.Outcome{Verdict: uplink.Retry, Err: s.failure()})
		return false
	}
}

// Close implements uplink.Session.
func (s *session) Close() {
	s.hangUp()
	s.collecting.Wait()
}
