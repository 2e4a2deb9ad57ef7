package nats

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"edgegateway/uplink"
)

// Loose is the uplink as it would be if the cursor were not stored in one step with the data: the negative control.
type Loose struct{ *Config }

// Open implements uplink.Driver.
func (l Loose) Open(ctx context.Context, env uplink.Env) (uplink.Session, error) {
	env.Promise.Delivery = uplink.ExactlyOnce
	s, err := l.Config.Open(ctx, env)
	if err != nil {
		return nil, err
	}
	return &looseSession{s.(*batchSession)}, nil
}

type looseSession struct{ *batchSession }

// Send stores the data message by message and then the cursor.
func (s *looseSession) Send(ctx context.Context, recs []uplink.Record, report func(uint64, uplink.Outcome)) error {
	for i := range recs {
		// With an id in its own header the next session would see how far the data goes, and double nothing.
		m := &nats.Msg{Subject: s.subject, Data: recs[i].JSON, Header: nats.Header{"Loose-Id": {recs[i].ID.String()}}}
		if i == len(recs)-1 { // its answer says that all are there
			if _, err := s.js.PublishMsg(ctx, m); err != nil {
				return err
			}
			break
		}
		if err := s.nc.PublishMsg(m); err != nil {
			return err
		}
	}
	time.Sleep(10 * time.Millisecond) // the gap that the kills are to hit, made wider
	last := recs[len(recs)-1].ID
	if err := s.Reset(ctx, uplink.FarCursor{Epoch: last.Epoch, Seq: last.Seq}); err != nil {
		return err
	}
	for i := range recs {
		report(recs[i].ID.Seq, uplink.Outcome{Verdict: uplink.Ack})
	}
	return nil
}

// Answer gives a session of exactly_once an answer as if it came from the server.
func Answer(s uplink.Session, subject, data string) {
	s.(*batchSession).answer(&nats.Msg{Subject: subject, Data: []byte(data)})
}

// SendAsItEnds sends with a session of exactly_once that ends after the last record was written and before Send returns.
func SendAsItEnds(ctx context.Context, s uplink.Session, recs []uplink.Record, report func(uint64, uplink.Outcome), why error) error {
	b := s.(*batchSession)
	b.setSending()
	_, err := b.fill(ctx, recs, report)
	b.fail(why)
	return b.sent(err)
}

// WithoutIDs is the uplink as it would be if the stream could not tell a repeat: the negative control of effectively_once.
type WithoutIDs struct{ *Config }

// Open implements uplink.Driver.
func (w WithoutIDs) Open(ctx context.Context, env uplink.Env) (uplink.Session, error) {
	s, err := w.Config.Open(ctx, env)
	if err != nil {
		return nil, err
	}
	return idless{s.(*session)}, nil
}

type idless struct{ *session }

// Send stores the records as messages without an id that the server looks at.
func (s idless) Send(ctx context.Context, recs []uplink.Record, report func(uint64, uplink.Outcome)) error {
	var answers []jetstream.PubAckFuture
	for i := range recs {
		m := &nats.Msg{Subject: s.subject, Data: recs[i].JSON, Header: nats.Header{headerID: {recs[i].ID.String()}}}
		answer, err := s.js.PublishMsgAsync(m)
		if err != nil {
			return err
		}
		answers = append(answers, answer)
	}
	for i := range recs {
		select {
		case <-answers[i].Ok():
			report(recs[i].ID.Seq, uplink.Outcome{Verdict: uplink.Ack})
		case err := <-answers[i].Err():
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// OpenOn opens a session that sends to a subject of which it is told which stream has it. A record without an answer is given up
// after patience once one behind it has its own.
func OpenOn(ctx context.Context, c *Config, stream string, patience time.Duration) (uplink.Session, error) {
	l, err := c.connect(ctx, uplink.Env{Gateway: "gw1", Stream: "line"})
	if err != nil {
		return nil, err
	}
	l.stream, l.patience = stream, patience
	return l.openSession(nil)
}

// Impatient makes a session of exactly_once give up a commit without an answer soon.
func Impatient(s uplink.Session) { s.(*batchSession).patience = 200 * time.Millisecond }

// SetShortestWindow sets what a stream must remember for effectively_once, and returns how to set it back.
func SetShortestWindow(d time.Duration) (restore func()) {
	before := shortestWindow
	shortestWindow = d
	return func() { shortestWindow = before }
}

// Flow is how many records may be on their way.
type Flow struct{ f flow }

// Size returns it.
func (f *Flow) Size() uint64 { return f.f.size() }

// Took says how long an answer took.
func (f *Flow) Took(d time.Duration, number, next uint64) { f.f.took(d, number, next) }
