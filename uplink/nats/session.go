package nats

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"edgegateway/uplink"
)

const (
	// maxPending is the most that is on its way, and minPending what a session begins with.
	maxPending = 4096
	minPending = 256
	// burst is how many records get their numbers at once.
	burst = 64
	// overdue is when a record whose successors are answered is given up. A server that has just lost the lead of the stream to another
	// one drops what it has still in its hands and does not say so.
	overdue = 5 * time.Second
)

// session implements uplink.Session for what is confirmed record by record. The answer to each goes to a subject of the session's
// own that ends in a number, which finds the record: a future of the library for each would cost more than all the rest.
type session struct {
	*link

	inbox  string   // answers go to INBOX.NUMBER
	msg    nats.Msg // of the record that is being sent; used by Send only, as the values of its headers and again are
	id     []string
	topic  []string
	first  nats.Header // of the first record of a Send: it says which stream is meant
	rest   nats.Header
	again  *repeats // what may be stored a second time; nil when nothing may any more
	room   chan struct{}
	before []byte // what an answer says before the number of a message that is stored; used by answer only

	mu        sync.Mutex // guards the fields below; link.mu is taken before it, never behind
	pubs      [maxPending]publication
	oldest    uint64 // number of the first record without an answer
	next      uint64 // number of the next record
	flow      flow
	overtaken time.Time // when a record behind the oldest was answered; zero when none was
	closed    bool      // nothing is reported any more
}

// publication is one record that was sent and is not answered yet; there is none without a report.
type publication struct {
	seq    uint64
	size   int
	sent   time.Time // of the first record of a burst; zero for the others
	report func(uint64, uplink.Outcome)
}

func (l *link) openSession(again *repeats) (*session, error) {
	id, topic := []string{""}, []string{""}
	s := &session{
		link: l, inbox: l.nc.NewInbox() + ".", id: id, topic: topic, again: again, room: make(chan struct{}, 1),
		first: nats.Header{jetstream.MsgIDHeader: id, headerTopic: topic, jetstream.ExpectedStreamHeader: {l.stream}},
		rest:  nats.Header{jetstream.MsgIDHeader: id, headerTopic: topic},
	}
	s.msg.Subject = l.subject
	l.mu.Lock()
	l.doubt = s.inDoubt
	l.mu.Unlock()
	if _, err := l.nc.Subscribe(s.inbox+"*", s.answer); err != nil {
		return nil, err
	}
	return s, nil
}

// Send implements uplink.Session.
func (s *session) Send(ctx context.Context, recs []uplink.Record, report func(uint64, uplink.Outcome)) error {
	if s.again != nil && len(recs) > 0 {
		s.again.warn(recs[0].ID)
		s.again = nil
	}
	for s.msg.Header = s.first; len(recs) > 0; {
		number, n, err := s.enlist(ctx, recs, report)
		if err != nil {
			return err
		}
		for i := range recs[:n] {
			if err := s.publish(&recs[i], number+uint64(i)); err != nil {
				return err
			}
			s.msg.Header = s.rest
		}
		recs = recs[n:]
	}
	return nil
}

// enlist waits for room and gives numbers to the first records.
func (s *session) enlist(ctx context.Context, recs []uplink.Record, report func(uint64, uplink.Outcome)) (number uint64, n int, err error) {
	for {
		select {
		case <-s.dead:
			return 0, 0, s.failure()
		case <-ctx.Done():
			return 0, 0, ctx.Err()
		default:
		}
		s.mu.Lock()
		number = s.next
		for now := time.Now(); n < min(burst, len(recs)) && s.next-s.oldest < s.flow.size(); n++ {
			s.pubs[s.next%maxPending] = publication{recs[n].ID.Seq, len(recs[n].JSON), now, report}
			now = time.Time{}
			s.next++
		}
		s.mu.Unlock()
		switch {
		case n > 0 && s.isDead(): // perhaps before they were there, and nobody has reported them
			return 0, 0, s.failure()
		case n > 0:
			return number, n, nil
		}
		select {
		case <-s.room:
		case <-s.dead:
		case <-ctx.Done():
		}
	}
}

func (s *session) publish(rec *uplink.Record, number uint64) error {
	s.id[0], s.topic[0] = rec.ID.String(), rec.Message.Topic
	s.msg.Data = rec.JSON
	reply := append(make([]byte, 0, 64), s.inbox...)
	s.msg.Reply = string(strconv.AppendUint(reply, number, 10))
	err := s.nc.PublishMsg(&s.msg)
	if errors.Is(err, nats.ErrMaxPayload) {
		s.settle(number, func(publication) uplink.Outcome {
			return uplink.Outcome{Verdict: uplink.Drop, Err: fmt.Errorf("the record has %d bytes with its headers, the server takes %d (its setting max_payload)",
				headerSize(s.msg.Header)+len(rec.JSON), s.nc.MaxPayload())}
		})
		return nil
	}
	return s.explain(err)
}

// answer takes what the server says of a record. The library calls it, one at a time.
func (s *session) answer(m *nats.Msg) {
	number, err := strconv.ParseUint(m.Subject[len(s.inbox):], 10, 64)
	if err != nil {
		return // no number of ours
	}
	s.settle(number, func(p publication) uplink.Outcome {
		if s.isStored(m.Data) {
			return uplink.Outcome{Verdict: uplink.Ack}
		}
		ack, err := s.parse(m)
		if err != nil {
			return s.outcome(p, err)
		}
		return uplink.Outcome{Verdict: uplink.Ack, Repeat: ack.Duplicate}
	})
}

// isStored tells whether an answer is as the last one was that said so, but for the number.
func (s *session) isStored(text []byte) bool {
	rest, ok := bytes.CutPrefix(text, s.before)
	if !ok || len(s.before) == 0 || len(rest) < 2 || rest[len(rest)-1] != '}' {
		return false
	}
	for _, c := range rest[:len(rest)-1] {
		if c < '0' || c > '9' {
			return false
		}
	}
	return true
}

// parse reads an answer.
func (s *session) parse(m *nats.Msg) (jetstream.PubAck, error) {
	var a struct {
		jetstream.PubAck
		Error *jetstream.APIError `json:"error"`
	}
	switch err := json.Unmarshal(m.Data, &a); {
	case m.Header.Get("Status") == "503":
		return a.PubAck, nats.ErrNoResponders
	case err != nil, a.Error == nil && a.Stream == "":
		return a.PubAck, fmt.Errorf("%s answers with something else than an acknowledgement: %.60q", s.address, m.Data)
	case a.Error != nil:
		return a.PubAck, a.Error
	case a.Stream != s.stream:
		return a.PubAck, s.goesElsewhere()
	}
	const number = `"seq":`
	if at := bytes.Index(m.Data, []byte(number)); at > 0 && !a.Duplicate {
		s.before = bytes.Clone(m.Data[:at+len(number)])
	}
	return a.PubAck, nil
}

// settle reports the outcome of a record once. Where its turn has not come for too long, the session is of no more use.
func (s *session) settle(number uint64, outcome func(publication) uplink.Outcome) {
	s.mu.Lock()
	p := s.pubs[number%maxPending]
	if s.closed || p.report == nil || number < s.oldest || number >= s.next {
		s.mu.Unlock()
		return // it was reported
	}
	s.pubs[number%maxPending] = publication{}
	lost := s.overtake(number)
	if !p.sent.IsZero() {
		s.flow.took(time.Since(p.sent), number, s.next)
	}
	p.report(p.seq, outcome(p))
	s.mu.Unlock()
	select {
	case s.room <- struct{}{}:
	default:
	}
	if lost {
		s.fail(fmt.Errorf("%s has answered for later records and not for record %d in %v (has the stream another leader?)", s.address, s.firstLeft().seq, s.patience))
	}
}

// overtake notes which record is the oldest and whether one behind it is answered. It tells whether the oldest is overdue.
func (s *session) overtake(number uint64) (lost bool) {
	if number != s.oldest {
		if s.overtaken.IsZero() {
			s.overtaken = time.Now()
		}
		return time.Since(s.overtaken) > s.patience
	}
	for s.oldest++; s.oldest < s.next && s.pubs[s.oldest%maxPending].report == nil; {
		s.oldest++
	}
	s.overtaken = time.Time{}
	return false
}

// firstLeft returns the oldest record without an answer.
func (s *session) firstLeft() publication {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pubs[s.oldest%maxPending]
}

// inDoubt reports the first record that will not be answered; nothing is said of those behind it.
func (s *session) inDoubt(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := &s.pubs[s.oldest%maxPending]
	if s.closed || s.oldest == s.next || p.report == nil {
		return
	}
	p.report(p.seq, uplink.Outcome{Verdict: uplink.Retry, Err: err})
	p.report = nil // its number stays: what is behind it is in doubt too
}

// Close implements uplink.Session.
func (s *session) Close() {
	s.hangUp()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
}
