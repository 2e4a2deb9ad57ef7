package pulsar

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"

	"github.com/apache/pulsar-client-go/pulsar"

	"edgegateway/pipeline"
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

// fullBatch is the size with which a batch is as large as any that follows.
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
	claims     *claims
	flushing   sync.WaitGroup // calls of the producer that may not run beside its Close

	sending sync.Mutex        // held by Send and Reset, Close waits for it; guards the fields below
	begun   bool              // something new was confirmed, so the broker has nothing of what follows
	doubt   int               // with effectively_once, until then: how many records are tried next
	known   pipeline.RecordID // of the first one that was confirmed when it had begun
	heavy   int               // bytes that went alone since then
	sized   bool              // the topic need not be measured
	whole   bool              // the topic takes a batch, whatever is in it; until then what was confirmed proves nothing
	proven  int               // bytes of the largest record, or pack, that was confirmed
	full    bool              // a batch was confirmed that is as large as any
	uncut   int               // records of the batch that the library has not closed yet
	flushed chan struct{}     // closed when all up to it is confirmed

	flying    sync.Mutex            // guards the fields below
	aloft     map[*message]struct{} // messages without a receipt
	fresh     bool                  // the broker has stored something, and not taken it for a repeat
	dropped   bool                  // the last message was refused for good
	measuring bool                  // noise is on its way, and nothing else
	idle      chan struct{}
	closed    bool
	top       uint64           // last sequence that was confirmed
	newest    pulsar.MessageID // where it is
	before    pulsar.MessageID // the last message that is not in one entry with it
}

// message is what the broker stores at once: one record, a pack, or a batch.
type message struct {
	recs   []uplink.Record
	bytes  int
	alone  bool // nothing else is in flight
	last   bool // nothing follows it in this call of Send
	begun  bool // it cannot be a repeat
	left   int  // what the library has no receipt of
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

// inDoubt reports whether the broker may have what comes next. With exactly_once the last message says that it has not.
func (s *session) inDoubt() bool { return s.ordered && !s.exact && !s.begun }

// chunk returns how many records go next, and their bytes: one message of the broker, or some that are each tried by itself.
func (s *session) chunk(recs []uplink.Record) (n, bytes int) {
	most := s.pack
	switch {
	case s.inDoubt():
		most = max(s.doubt, 1)
	case s.batching && s.ordered && !s.begun:
		most = 1
	case s.batching:
		most = batchRecords
	}
	total := 0
	for n < len(recs) && n < most {
		size := len(recs[n].JSON)
		if total += size; s.batching {
			total += envelope(&recs[n])
		}
		if n > 0 && (total > batchBytes || s.unproven(size)) {
			break
		}
		bytes = total
		n++
		if s.unproven(size) {
			break
		}
	}
	return n, bytes
}

// envelope returns how much a record in a batch has beside its payload, at the most.
func envelope(r *uplink.Record) int {
	return 128 + len(r.ID.Gateway) + len(r.ID.Stream) + len(r.Message.Topic) + len(r.Message.PartitionKey())
}

// unproven reports whether the broker might refuse a record or a pack for its size, as far as the session knows.
func (s *session) unproven(size int) bool { return s.ordered && size > max(smallest, s.proven) }

// prove notes what the broker has taken. A limit of the topic counts what is left after compression, and of two records of one size
// that may be ten times as much for the second: so what is larger than a batch stays unproven.
func (s *session) prove(size int) {
	if s.whole {
		s.proven = max(s.proven, min(size, batchBytes))
	}
}

// mustWait reports whether nothing else may be in flight with what goes next.
func (s *session) mustWait(recs []uplink.Record, bytes int) bool {
	switch {
	case !s.ordered:
		return false
	case !s.begun, s.batching && !s.full:
		return true
	case s.batching:
		return len(recs) == 1 && s.unproven(len(recs[0].JSON))
	}
	return s.unproven(bytes)
}

// sendChunk sends records, and waits before and after where they must be alone.
func (s *session) sendChunk(ctx context.Context, recs []uplink.Record, bytes int, last bool, report func(uint64, uplink.Outcome)) error {
	alone := s.mustWait(recs, bytes)
	if alone {
		if err := s.drain(ctx); err != nil {
			return err
		}
		if s.begun && !s.sized && s.heavy >= fullBatch {
			if err := s.measure(ctx, s.known); err != nil {
				return err
			}
			alone = s.mustWait(recs, bytes)
		}
	}
	if together := s.pack > 1 || s.batching; together && !s.inDoubt() {
		if err := s.publish(ctx, &message{recs: recs, bytes: bytes, alone: alone, last: last, begun: s.begun, report: report}); err != nil {
			return err
		}
	} else {
		for i := range recs {
			m := &message{recs: recs[i : i+1], bytes: len(recs[i].JSON), alone: alone && len(recs) == 1, last: last, begun: s.begun, report: report}
			if err := s.publish(ctx, m); err != nil {
				return err
			}
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
	if !s.begun && (s.exact || s.storedNew()) {
		s.begun, s.known = true, recs[0].ID
	}
	s.heavy += bytes
	s.doubt = min(2*max(s.doubt, 1), batchRecords)
	s.full = s.full || s.whole && bytes >= fullBatch
	for i := range recs {
		s.prove(len(recs[i].JSON))
	}
	if s.pack > 1 {
		s.prove(bytes)
	}
	return nil
}

// publish sends one message.
func (s *session) publish(ctx context.Context, m *message) error {
	if err := s.waitCut(ctx); err != nil {
		return err
	}
	out := s.messages(m.recs)
	m.left = len(out)
	s.flying.Lock()
	s.dropped = false
	s.aloft[m] = struct{}{}
	s.flying.Unlock()
	if s.ctx.Err() != nil { // giveUp may have come before it
		return s.failure()
	}
	done := func(id pulsar.MessageID, _ *pulsar.ProducerMessage, err error) { s.landed(m, id, err) }
	for i := range out {
		s.producer.SendAsync(ctx, &out[i], done)
	}
	if s.batching {
		s.cut(len(out))
	}
	return nil
}

// cut has the library close its batch: behind what it was given, and at once, instead of some milliseconds later.
func (s *session) cut(records int) {
	flushed := make(chan struct{})
	s.uncut, s.flushed = records, flushed
	producer := s.producer
	s.flushing.Go(func() {
		defer close(flushed)
		if err := producer.FlushWithCtx(s.ctx); err != nil {
			s.fail(err) // nothing new where the session has ended
		}
	})
}

// waitCut waits until the library has closed the batch, or what comes next would come into it. It says so in its log only; should it
// not do that any more, the receipts say it as well, later.
func (s *session) waitCut(ctx context.Context) error {
	for s.uncut > 0 {
		select {
		case n := <-s.cuts:
			s.uncut -= n
		case <-s.flushed:
			for len(s.cuts) > 0 {
				<-s.cuts
			}
			s.uncut = 0
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// landed takes what the library says of one part of a message. The parts of a batch are stored together.
func (s *session) landed(m *message, id pulsar.MessageID, err error) {
	s.flying.Lock()
	defer s.flying.Unlock()
	if _, ok := s.aloft[m]; !ok || s.closed {
		return
	}
	switch {
	case err != nil && isRefused(err):
		s.refusedLocked(m, true, err)
		s.landLocked(m)
		return
	case err != nil:
		if !errors.Is(err, context.Canceled) {
			s.fail(err)
		}
		return // in doubt
	case id.LedgerID() < 0 && (s.exact || m.begun):
		s.fail(errRepeat)
		return // so is this
	case s.ordered && !s.exact && s.batching && int(id.BatchSize()) != len(m.recs):
		s.fail(errCut)
		return
	}
	if m.left--; m.left > 0 {
		return
	}
	repeat := id.LedgerID() < 0
	s.storedLocked(id, m.recs[len(m.recs)-1].ID.Seq)
	s.fresh = s.fresh || !repeat
	for i := range m.recs {
		m.report(m.recs[i].ID.Seq, uplink.Outcome{Verdict: uplink.Ack, Repeat: repeat})
	}
	s.landLocked(m)
}

// giveUp says of what is in flight where the link ends that nobody knows what became of it: the Runner has nothing more to send,
// perhaps, and would wait for an answer. An answer that comes after that counts for nothing.
func (s *session) giveUp() {
	s.flying.Lock()
	defer s.flying.Unlock()
	if s.closed {
		return
	}
	o := uplink.Outcome{Err: s.failure()}
	for m := range s.aloft {
		for i := range m.recs {
			m.report(m.recs[i].ID.Seq, o)
		}
		s.landLocked(m)
	}
}

func (s *session) storedNew() bool {
	s.flying.Lock()
	defer s.flying.Unlock()
	return s.fresh
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
	delete(s.aloft, m)
	if len(s.aloft) == 0 && s.idle != nil {
		close(s.idle)
		s.idle = nil
	}
}

// refusedLocked reports a message that the broker never takes, or that may be the one. What has company is a suspect: the Runner
// sends it again alone.
func (s *session) refusedLocked(m *message, sure bool, err error) {
	o := uplink.Outcome{Verdict: uplink.Suspect, Err: s.tooLarge(m, err)}
	if sure && len(m.recs) == 1 && (!s.ordered || m.alone && m.last) {
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
		if s.ordered && s.isLessThanABatch() {
			s.flying.Unlock()
			s.tooNarrow()
			return
		}
		sure := len(s.aloft) == 1
		for m := range s.aloft {
			if !s.closed {
				s.refusedLocked(m, sure, said)
			}
			s.landLocked(m)
		}
		s.flying.Unlock()
	}
	s.fail(said)
}

// drain waits until nothing is in flight.
func (s *session) drain(ctx context.Context) error {
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

// messages makes what Pulsar's consumers get: a message for each record, or a pack with a line for each. With effectively_once all
// that is stored together has the sequence id of its last record, so that the broker knows how far it goes.
func (s *session) messages(recs []uplink.Record) []pulsar.ProducerMessage {
	last := &recs[len(recs)-1]
	if s.pack > 1 {
		m := s.message(last, last)
		if s.exact { // the first message of a session is to be refused if anything of it is stored
			m = s.message(last, &recs[0])
		}
		m.Key = ""
		delete(m.Properties, propertyTopic)
		m.Properties[propertyFirst] = strconv.FormatUint(recs[0].ID.Seq, 10)
		var lines bytes.Buffer
		for i := range recs {
			lines.Write(recs[i].JSON)
			lines.WriteByte('\n')
		}
		m.Payload = lines.Bytes()
		return []pulsar.ProducerMessage{m}
	}
	out := make([]pulsar.ProducerMessage, len(recs))
	for i := range recs {
		numbered := last
		if s.exact {
			numbered = &recs[i]
		}
		out[i] = s.message(&recs[i], numbered)
	}
	return out
}

// message makes that of one record, with the sequence id of another.
func (s *session) message(r, numbered *uplink.Record) pulsar.ProducerMessage {
	m := pulsar.ProducerMessage{
		Payload: r.JSON, Key: r.Message.PartitionKey(), EventTime: r.Message.Time,
		Properties: map[string]string{propertyID: r.ID.String(), propertyTopic: r.Message.Topic},
	}
	if s.ordered {
		seq := int64(numbered.ID.Seq)
		m.SequenceID = &seq
	}
	if s.generation > 0 {
		m.Properties[propertyGeneration] = strconv.FormatUint(s.generation, 10)
	}
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
	s.flushing.Wait() // as with Send
	s.hangUp()
}
