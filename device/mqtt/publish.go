package mqtt

import (
	"context"
	"errors"
	"time"

	"edgegateway/pipeline"

	"github.com/mochi-mqtt/server/v2/packets"
)

// publication is a message on its way through the log to the local subscribers.
type publication struct {
	topic   string
	payload []byte
	qos     byte
	retain  bool
	version byte
	origin  string              // client id
	props   *packets.Properties // of MQTT 5; nil for none
}

func newPublication(c *client, p *packets.Packet) publication {
	pub := publication{
		topic: p.TopicName, payload: p.Payload, qos: p.FixedHeader.Qos, retain: p.FixedHeader.Retain,
		version: c.mq.Properties.ProtocolVersion, origin: c.session.id,
	}
	if c.v5 {
		props := p.Properties
		props.TopicAlias, props.TopicAliasFlag = 0, false
		pub.props = &props
	}
	return pub
}

// size estimates the memory that pub holds.
func (p *publication) size() int { return len(p.topic) + len(p.payload) + 256 }

func (p *publication) message(source string) pipeline.Message {
	m := pipeline.Message{Time: time.Now(), Source: source, Topic: p.topic, Value: pipeline.Bytes(p.payload)}
	if p.props == nil {
		return m
	}
	if p.props.ContentType != "" {
		m.Headers = append(m.Headers, pipeline.Header{Name: "content-type", Value: p.props.ContentType})
	}
	for _, u := range p.props.User {
		m.Headers = append(m.Headers, pipeline.Header{Name: u.Key, Value: u.Val})
	}
	return m
}

// holdFor bounds the wait for room in a full lane. A client whose publish is held does not get its pings answered either,
// so there is no point in holding it for much longer than its keepalive.
const holdFor = 10 * time.Second

// Reasons that mochi has no text for.
var (
	errNotStored    = packets.Code{Code: 0x83, Reason: "the message could not be stored"}
	errHeldTooLong  = packets.Code{Code: 0x97, Reason: "the log is full"}
	errAliasUnknown = packets.Code{Code: 0x82, Reason: "protocol violation: topic alias was never set"}
	errTaken        = packets.Code{Code: 0x8E, Reason: "session taken over"}
	errTwice        = packets.Code{Code: 0x82, Reason: "protocol violation: packet id is in use"}
	errUnreceived   = packets.Code{Code: 0x82, Reason: "protocol violation: PUBREL before PUBREC"}
)

// publish takes over a PUBLISH. The error, if any, ends the connection.
func (b *Broker) publish(c *client, p *packets.Packet) error {
	if code := p.PublishValidate(topicAliasMaximum); code != packets.CodeSuccess {
		return code
	}
	if alias := p.Properties.TopicAlias; alias > 0 {
		if p.TopicName == "" {
			p.TopicName = c.aliases[alias]
		}
		if p.TopicName == "" {
			return errAliasUnknown
		}
		if len(p.TopicName) <= maxTopic {
			if c.aliases == nil {
				c.aliases = map[uint16]string{}
			}
			c.aliases[alias] = p.TopicName
		}
	}
	if !validTopic(p.TopicName) {
		return packets.ErrTopicNameInvalid
	}
	if !c.access.mayPublish(p.TopicName) {
		return b.deny(c, p)
	}
	if err := b.fanout.waitRoom(c.ctx); err != nil {
		return errTaken
	}
	b.counts.publishes.Add(1)
	pub := newPublication(c, p)
	switch pub.qos {
	case 0:
		b.publish0(c, pub)
		return nil
	case 1:
		return b.publish1(c, pub, p.PacketID)
	default:
		return b.publish2(c, pub, p.PacketID, p.FixedHeader.Dup)
	}
}

// deny answers a publish without rights: MQTT 5 has a reason for it; MQTT 3.1.1 only PUBACK, which would say that the
// message is stored, so there the connection ends.
func (b *Broker) deny(c *client, p *packets.Packet) error {
	b.counts.denied.Add(1)
	if b.seldom.allow("denied") {
		b.log.Warn("publish denied", "client", c.session.id, "user", c.access.user, "topic", p.TopicName)
	}
	switch {
	case p.FixedHeader.Qos == 0:
		return nil
	case !c.v5:
		return packets.ErrNotAuthorized
	case p.FixedHeader.Qos == 1:
		c.ack(packets.Puback, p.PacketID, packets.ErrNotAuthorized.Code)
	default:
		c.ack(packets.Pubrec, p.PacketID, packets.ErrNotAuthorized.Code)
	}
	return nil
}

// put hands batch to the sink and sees to it that done is called once in any case.
func (b *Broker) put(ctx context.Context, batch pipeline.Batch, done func(error)) {
	ctx, cancel := context.WithTimeout(ctx, holdFor)
	defer cancel()
	if batch.Urgent {
		told := done
		b.awaited.Add(1)
		done = func(err error) {
			told(err)
			b.awaited.Add(-1)
		}
	}
	if err := b.sink.Put(ctx, batch, done); err != nil {
		done(err)
	}
}

func (b *Broker) publish0(c *client, pub publication) {
	batch := pipeline.Batch{Messages: []pipeline.Message{pub.message(b.name)}, Order: c.session.id}
	b.put(c.ctx, batch, func(err error) {
		b.outcome(err)
		if err == nil {
			b.fanout.add(pub)
		}
	})
}

func (b *Broker) publish1(c *client, pub publication, id uint16) error {
	if err := c.enter(); err != nil {
		return err
	}
	batch := pipeline.Batch{Messages: []pipeline.Message{pub.message(b.name)}, Order: c.session.id, Urgent: true}
	b.put(c.ctx, batch, func(err error) {
		<-c.window
		b.outcome(err)
		if err != nil {
			b.refuse(c, packets.Puback, id, err)
			return
		}
		b.counts.acked.Add(1)
		c.ack(packets.Puback, id, 0)
		b.fanout.add(pub)
	})
	return nil
}

// enter takes a place in the window of c.
func (c *client) enter() error {
	select {
	case c.window <- struct{}{}:
		return nil
	default:
	}
	select {
	case c.window <- struct{}{}:
		return nil
	case <-c.ctx.Done():
		return errTaken
	}
}

func (b *Broker) publish2(c *client, pub publication, id uint16, dup bool) error {
	s := c.session
	s.mu.Lock()
	if s.current != c {
		s.mu.Unlock()
		return errTaken
	}
	if old := s.ledger[id]; old != nil {
		if !old.orphan || dup {
			old.orphan = false
			stage := old.stage
			s.mu.Unlock()
			return repeat(c, id, stage)
		}
		// The client was told that its session is gone, and uses the id anew. The lanes must have let go of the name
		// before it is used again, or they would take the new message for the old one.
		s.mu.Unlock()
		if err := b.forget(c.ctx, []string{old.name}); err != nil {
			b.outcome(err)
			return errNotStored
		}
		s.mu.Lock()
	}
	if len(s.ledger) >= b.ledgerMax(c) {
		s.mu.Unlock()
		return packets.ErrReceiveMaximum
	}
	e := &entry{name: onceName(b.name, s.id, id)}
	s.ledger[id] = e
	s.mu.Unlock()

	if err := c.enter(); err != nil {
		s.settle(id, e, err)
		return err
	}
	batch := pipeline.Batch{Messages: []pipeline.Message{pub.message(b.name)}, Once: e.name, Order: s.id, Urgent: true}
	s.putting.Lock()
	defer s.putting.Unlock()
	b.put(c.ctx, batch, func(err error) {
		<-c.window
		b.outcome(err)
		to := s.settle(id, e, err)
		if err == nil {
			b.counts.acked.Add(1)
			b.fanout.add(pub)
		}
		switch {
		case to == nil: // a clean start has ended the session the packet belonged to
		case err == nil:
			to.ack(packets.Pubrec, id, 0)
		default:
			b.refuse(to, packets.Pubrec, id, err)
		}
	})
	return nil
}

// ledgerMax bounds the QoS 2 packet ids of a client that are not released. MQTT 3.1.1 knows no Receive Maximum, and its
// clients count messages they have not sent PUBREL for differently, so they get more room.
func (b *Broker) ledgerMax(c *client) int {
	if c.v5 {
		return b.config.ReceiveMaximum
	}
	return 4 * b.config.ReceiveMaximum
}

// repeat answers a PUBLISH that is known: PUBREC if it is stored; if it is still being stored the PUBREC to come answers
// both.
func repeat(c *client, id uint16, stage stage) error {
	switch stage {
	case storing:
		return nil
	case stored:
		c.ack(packets.Pubrec, id, 0)
		return nil
	default:
		return errTwice
	}
}

// settle notes what became of e and returns the connection to tell it to, if the entry still stands.
func (s *session) settle(id uint16, e *entry, err error) *client {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ledger[id] != e {
		return nil
	}
	if err == nil {
		e.stage = stored
	} else {
		delete(s.ledger, id)
	}
	return s.answereeLocked(e)
}

// answereeLocked returns the connection that an acknowledgement for e goes to. Where the client was told that there is no
// session it would take one for the answer to something new. Where it waits for CONNACK nothing may come before; it sends
// again what it has no answer to, and is answered then.
func (s *session) answereeLocked(e *entry) *client {
	if e.orphan || s.current == nil {
		return nil
	}
	select {
	case <-s.current.established:
		return s.current
	default:
		return nil
	}
}

// release takes over a PUBREL: the packet id is forgotten, and PUBCOMP goes out once that is on stable storage. Were it
// sent before, a crash could bring the name back after the client has used the id for the next message, and that message
// would be taken for a repeat.
func (b *Broker) release(c *client, id uint16) error {
	s := c.session
	s.mu.Lock()
	e := s.ledger[id]
	switch {
	case s.current != c:
		s.mu.Unlock()
		return errTaken
	case e == nil:
		s.mu.Unlock()
		c.ack(packets.Pubcomp, id, packets.ErrPacketIdentifierNotFound.Code)
		return nil
	case e.stage == storing:
		s.mu.Unlock()
		return errUnreceived
	}
	e.orphan = false
	if e.stage == releasing { // the PUBCOMP to come answers both
		s.mu.Unlock()
		return nil
	}
	e.stage = releasing
	s.mu.Unlock()

	s.putting.Lock()
	defer s.putting.Unlock()
	b.put(c.ctx, pipeline.Batch{Forget: []string{e.name}, Order: s.id, Urgent: true}, func(err error) {
		if to := s.released(id, e, err); to == nil {
			return
		} else if err != nil {
			b.outcome(err)
			b.refuse(to, packets.Pubcomp, id, err)
		} else {
			to.ack(packets.Pubcomp, id, 0)
		}
	})
	return nil
}

func (s *session) released(id uint16, e *entry, err error) *client {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ledger[id] != e {
		return nil
	}
	if err == nil {
		delete(s.ledger, id)
	} else {
		e.stage = stored
	}
	return s.answereeLocked(e)
}

// forget makes the lanes forget names and waits until that is on stable storage.
func (b *Broker) forget(ctx context.Context, names []string) error {
	ctx, cancel := context.WithTimeout(ctx, holdFor)
	defer cancel()
	done := make(chan error, 1)
	b.put(ctx, pipeline.Batch{Forget: names, Urgent: true}, func(err error) { done <- err })
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// refuse tells c that a packet was not stored: by a negative acknowledgement where the protocol has one for a full log,
// otherwise by ending the connection, after which the client sends the packet again.
func (b *Broker) refuse(c *client, kind byte, id uint16, err error) {
	switch {
	case errors.Is(err, pipeline.ErrFull) && c.v5 && kind != packets.Pubcomp:
		c.ack(kind, id, packets.ErrQuotaExceeded.Code)
	case errors.Is(err, pipeline.ErrFull), errors.Is(err, context.DeadlineExceeded):
		c.cut(errHeldTooLong)
	case errors.Is(err, context.Canceled):
		c.cut(packets.ErrServerShuttingDown)
	default:
		c.cut(errNotStored)
	}
}
