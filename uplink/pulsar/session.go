package pulsar

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"

	"github.com/apache/pulsar-client-go/pulsar"

	"edgegateway/uplink"
)

// The properties of a message. A pack has those of its last record, and that of its first.
const (
	propertyID         = "gw-id" // the record id
	propertyTopic      = "gw-topic"
	propertyFirst      = "gw-first"      // sequence of a pack's first record
	propertyGeneration = "gw-generation" // how often an operator has set the cursor back, where that is not 0
)

// smallest is what every broker takes. Larger records are sent alone until one as large was taken, so that nothing is stored
// behind one that is refused.
const smallest = 4 << 10

// fullBatch is the payload with which a batch is as large as any that follows.
const fullBatch = batchBytes - 8<<10

// session implements uplink.Session.
type session struct {
	*link
	env      uplink.Env
	producer pulsar.Producer
	pack     int
	exact    bool
	ordered  bool // the broker drops what it has by its sequence, so nothing may pass a record that is refused
	batching bool // the library puts records together
	// generation is part of the producer's name.
	generation uint64

	sending sync.Mutex // held by Send and Reset, Close waits for it; guards the fields below
	begun   bool       // something was confirmed, so nothing of an earlier session is on its way any more
	proven  int        // bytes of the largest record, or pack, that was confirmed
	full    bool       // a batch was confirmed that is as large as any

	flying  sync.Mutex          // guards the fields below
	aloft   map[uint64]*message // messages without a receipt, by the sequence of their first record
	dropped bool                // the last message was refused for good
	idle    chan struct{}
	closed  bool
	top     uint64           // last sequence that was confirmed
	newest  pulsar.MessageID // where it is
	before  pulsar.MessageID // the last message that is not in one entry with it
}

// message is what is sent at once: one record, or a pack.
type message struct {
	recs   []uplink.Record
	bytes  int
	alone  bool // nothing else is in flight
	last   bool // nothing follows it in this call of Send
	report func(uint64, uplink.Outcome)
}

// Send implements uplink.Session.
func (s *session) Send(ctx context.Context, recs []uplink.Record, report func(uint64, uplink.Outcome)) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	for len(recs) > 0 {
		n, bytes := s.chunk(recs)
		if err := s.sendChunk(ctx, recs[:n], bytes, n == len(recs), report); err != nil {
			if s.ctx.Err() != nil {
				return s.failure()
			}
			return err
		}
		recs = recs[n:]
	}
	return nil
}

// chunk returns how many records go next, and their bytes: a batch of the library at the most, or one message.
func (s *session) chunk(recs []uplink.Record) (n, bytes int) {
	most := s.pack
	if s.batching {
		most = batchRecords
		if s.ordered && !s.begun {
			most = 1
		}
	}
	for n < len(recs) && n < most {
		size := len(recs[n].JSON)
		if n > 0 && (bytes+size > batchBytes || s.unproven(size)) {
			break
		}
		bytes += size
		n++
		if s.unproven(size) {
			break
		}
	}
	return n, bytes
}

// unproven reports whether the broker might refuse a record for its size, as far as the session knows.
func (s *session) unproven(size int) bool { return s.ordered && size > max(smallest, s.proven) }

// sendChunk sends records, and waits before and after where they must be alone.
func (s *session) sendChunk(ctx context.Context, recs []uplink.Record, bytes int, last bool, report func(uint64, uplink.Outcome)) error {
	alone := s.ordered && (!s.begun || s.batching && !s.full || s.unproven(bytes))
	if alone {
		if err := s.drain(ctx); err != nil {
			return err
		}
	}
	if s.pack > 1 {
		s.publish(ctx, &message{recs, bytes, alone, last, report})
	} else {
		for i := range recs {
			s.publish(ctx, &message{recs[i : i+1], len(recs[i].JSON), alone && len(recs) == 1, last, report})
		}
	}
	if !alone {
		return ctx.Err()
	}
	if err := s.drain(ctx); err != nil {
		return err
	}
	if s.wasDropped() {
		return nil // it is the last record of recs, and says nothing of what the broker takes
	}
	s.begun = true
	s.full = s.full || bytes >= fullBatch
	for i := range recs {
		s.proven = max(s.proven, len(recs[i].JSON))
	}
	if s.pack > 1 {
		s.proven = max(s.proven, bytes)
	}
	return nil
}

// publish sends one message.
func (s *session) publish(ctx context.Context, m *message) {
	s.flying.Lock()
	s.dropped = false
	s.aloft[m.recs[0].ID.Seq] = m
	s.flying.Unlock()
	s.producer.SendAsync(ctx, s.message(m.recs), func(id pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
		s.flying.Lock()
		defer s.flying.Unlock()
		switch {
		case s.aloft[m.recs[0].ID.Seq] != m || s.closed:
		case err != nil && isRefused(err):
			s.refusedLocked(m, err)
		case err != nil:
			if !errors.Is(err, context.Canceled) {
				s.fail(err)
			}
			return // in doubt
		case id.LedgerID() < 0 && s.exact:
			s.fail(errRepeat)
			return // so is this
		default:
			s.storedLocked(id, m.recs[len(m.recs)-1].ID.Seq)
			for i := range m.recs {
				m.report(m.recs[i].ID.Seq, uplink.Outcome{Verdict: uplink.Ack, Repeat: id.LedgerID() < 0})
			}
		}
		s.landLocked(m)
	})
}

// storedLocked notes where a message is. The broker names none for a repeat.
func (s *session) storedLocked(id pulsar.MessageID, seq uint64) {
	if id.LedgerID() < 0 {
		return
	}
	if s.newest != nil && (s.newest.LedgerID() != id.LedgerID() || s.newest.EntryID() != id.EntryID()) {
		s.before = s.newest
	}
	s.top, s.newest = seq, id
}

func (s *session) confirmed() uint64 {
	s.flying.Lock()
	defer s.flying.Unlock()
	return s.top
}

// landLocked takes a message out of the air.
func (s *session) landLocked(m *message) {
	delete(s.aloft, m.recs[0].ID.Seq)
	if len(s.aloft) == 0 && s.idle != nil {
		close(s.idle)
		s.idle = nil
	}
}

// refusedLocked reports a message that the broker never takes. What has company is a suspect: the Runner sends it again alone.
func (s *session) refusedLocked(m *message, err error) {
	o := uplink.Outcome{Verdict: uplink.Suspect, Err: s.tooLarge(m, err)}
	if len(m.recs) == 1 && (!s.ordered || m.alone && m.last) {
		o.Verdict = uplink.Drop
	}
	s.dropped = true
	for i := range m.recs {
		m.report(m.recs[i].ID.Seq, o)
	}
	if o.Verdict == uplink.Suspect {
		s.fail(o.Err)
	}
}

func (s *session) wasDropped() bool {
	s.flying.Lock()
	defer s.flying.Unlock()
	return s.dropped
}

// refused is told what the broker said of a message, not of which: all in flight are suspects.
func (s *session) refused(said refusal) {
	if said.isSize() {
		s.flying.Lock()
		for _, m := range s.aloft {
			if !s.closed {
				s.refusedLocked(m, said)
			}
			s.landLocked(m)
		}
		s.flying.Unlock()
	}
	s.fail(said)
}

// drain waits until nothing is in flight.
func (s *session) drain(ctx context.Context) error {
	if s.batching {
		if err := s.producer.FlushWithCtx(ctx); err != nil && ctx.Err() == nil {
			s.fail(err)
		}
	}
	s.flying.Lock()
	idle := s.idle
	aloft := len(s.aloft)
	if aloft > 0 && idle == nil {
		idle = make(chan struct{})
		s.idle = idle
	}
	s.flying.Unlock()
	if aloft > 0 {
		select {
		case <-idle:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return s.ctx.Err()
}

// message makes what Pulsar's consumers get: a record, or a pack with a line for each.
func (s *session) message(recs []uplink.Record) *pulsar.ProducerMessage {
	first, last := &recs[0], &recs[len(recs)-1]
	m := &pulsar.ProducerMessage{
		Payload: last.JSON, Key: last.Message.PartitionKey(), EventTime: last.Message.Time,
		Properties: map[string]string{propertyID: last.ID.String(), propertyTopic: last.Message.Topic},
	}
	if s.ordered {
		seq := int64(first.ID.Seq)
		m.SequenceID = &seq
	}
	if s.generation > 0 {
		m.Properties[propertyGeneration] = strconv.FormatUint(s.generation, 10)
	}
	if s.pack == 1 {
		return m
	}
	m.Key = ""
	delete(m.Properties, propertyTopic)
	m.Properties[propertyFirst] = strconv.FormatUint(first.ID.Seq, 10)
	var lines bytes.Buffer
	for i := range recs {
		lines.Write(recs[i].JSON)
		lines.WriteByte('\n')
	}
	m.Payload = lines.Bytes()
	return m
}

func (s *session) tooLarge(m *message, err error) error {
	if len(m.recs) > 1 {
		return fmt.Errorf("%s refuses a message of %d records and %d bytes: %w", s.address, len(m.recs), m.bytes, err)
	}
	return fmt.Errorf("the record has %d bytes, more than %s takes (its setting maxMessageSize)", m.bytes, s.address)
}

// Close implements uplink.Session.
func (s *session) Close() {
	s.flying.Lock()
	s.closed = true
	s.flying.Unlock()
	s.fail(errClosed)
	s.sending.Lock() // Send has returned: the library panics where one sends while another closes
	defer s.sending.Unlock()
	s.hangUp()
}
