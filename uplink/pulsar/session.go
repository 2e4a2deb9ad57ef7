package pulsar

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

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

// session implements uplink.Session. Where the broker drops repeats by their sequence (ordered), one message at most is in flight at any
// time, in every session: a broker that refuses one goes on with what follows it, and the refused one, sent again, would be below what
// it has, and count as a repeat. So all below the highest sequence that the broker has is stored, or a dead letter.
type session struct {
	*link
	env      uplink.Env
	producer pulsar.Producer
	pack     int
	exact    bool
	ordered  bool   // the broker drops what it has by its sequence
	batching bool   // the library puts messages together
	next     uint64 // with ordered: what is below is with the broker, or on its way to the disks
	// generation is part of the producer's name.
	generation uint64
	claims     *claims
	flushing   sync.WaitGroup // calls of the producer that may not run beside its Close

	sending sync.Mutex    // held by Send and Reset, Close waits for it; guards the fields below
	sure    bool          // what is below next is stored
	begun   bool          // something was sent, and what follows cannot be a repeat
	uncut   int           // messages of the batch that the library has not closed yet
	flushed chan struct{} // closed when all up to it is confirmed

	flying  sync.Mutex            // guards the fields below
	aloft   map[*message]struct{} // messages without a receipt
	room    room
	dropped bool // a record was refused for good, and nothing goes on before its dead letter is on stable storage
	idle    chan struct{}
	closed  bool
	top     uint64           // last sequence that was confirmed
	newest  pulsar.MessageID // where it is
	before  pulsar.MessageID // the last message that is not in one entry with it
}

// message is what the broker stores at once: a batch of records or packs, or one alone.
type message struct {
	recs   []uplink.Record
	bytes  int
	parts  int // what the library knows as messages
	left   int // those without a receipt
	sent   time.Time
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
		n, err := s.sendNext(ctx, recs, report)
		switch {
		case err != nil && s.ctx.Err() != nil:
			return s.failure()
		case err != nil:
			return err
		case n == 0:
			return nil // the Runner hands the rest over again, behind the dead letter
		}
		recs = recs[n:]
	}
	return nil
}

// sendNext sends the next message and returns how many records are in it; none where a dead letter has to be stored first.
func (s *session) sendNext(ctx context.Context, recs []uplink.Record, report func(uint64, uplink.Outcome)) (int, error) {
	if s.ordered {
		if err := s.drain(ctx); err != nil {
			return 0, err
		}
		if s.hasDropped() {
			return 0, nil
		}
		if n := s.known(recs); n > 0 {
			return n, s.repeat(ctx, recs[:n], report)
		}
	}
	n, bytes := s.chunk(recs)
	s.begun = true
	return n, s.publish(ctx, &message{recs: recs[:n], bytes: bytes, report: report})
}

// known returns how many of the records the broker has. With exactly_once none of those that are sent is stored, as the last message says.
func (s *session) known(recs []uplink.Record) (n int) {
	for !s.exact && n < len(recs) && recs[n].ID.Seq < s.next {
		n++
	}
	return n
}

// repeat reports records that the broker has. They are not sent: the topic may take less than it did when they were stored.
func (s *session) repeat(ctx context.Context, recs []uplink.Record, report func(uint64, uplink.Outcome)) error {
	if !s.sure {
		if err := s.ask(ctx, recs[0].ID); err != nil {
			return err
		}
		s.sure = true
	}
	for i := range recs {
		report(recs[i].ID.Seq, uplink.Outcome{Verdict: uplink.Ack, Repeat: true})
	}
	return nil
}

// ask finds out whether what is below next is on the broker's disks: it may have been on its way there when the producer was made. An
// empty message with the highest number is dropped as a repeat then, so nobody reads it. While it is on its way the broker does not
// know, and ends the session; should it fail to store it, it ends all producers, this one too.
func (s *session) ask(ctx context.Context, id pipeline.RecordID) error {
	id.Seq = s.next - 1
	question := uplink.Record{ID: id}
	m := s.message(&question, &question)
	answer := make(chan error, 1)
	s.producer.SendAsync(ctx, &m, func(id pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
		if err == nil && id.LedgerID() >= 0 {
			err = s.storesRepeats(s.topic)
		}
		answer <- err
	})
	if s.batching {
		s.cut(1)
		if err := s.waitCut(ctx); err != nil {
			return err
		}
	}
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// chunk returns how many records go in the next message, and their bytes.
func (s *session) chunk(recs []uplink.Record) (n, bytes int) {
	most, limit := s.pack, batchBytes
	switch {
	case s.ordered && !s.exact && !s.begun:
		most = 1 // the broker would not see that it has the beginning of a batch
	case s.ordered:
		s.flying.Lock()
		most, limit = len(recs), s.room.limit(int(s.most.Load()))
		s.flying.Unlock()
	case s.batching:
		most = batchRecords
	}
	for n < len(recs) && n < most {
		size := len(recs[n].JSON)
		if s.batching {
			size += envelope(&recs[n])
		}
		if n > 0 && bytes+size > limit {
			break
		}
		bytes += size
		n++
	}
	return n, bytes
}

// envelope returns how much a record in a batch has beside its payload, at the most.
func envelope(r *uplink.Record) int {
	return 128 + len(r.ID.Gateway) + len(r.ID.Stream) + len(r.Message.Topic) + len(r.Message.PartitionKey())
}

// publish sends one message.
func (s *session) publish(ctx context.Context, m *message) error {
	if err := s.waitCut(ctx); err != nil {
		return err
	}
	out := s.messages(m.recs)
	m.parts, m.left, m.sent = len(out), len(out), time.Now()
	s.flying.Lock()
	s.aloft[m] = struct{}{}
	s.flying.Unlock()
	if s.ctx.Err() != nil { // giveUp may have come before it
		return s.failure()
	}
	done := func(id pulsar.MessageID, _ *pulsar.ProducerMessage, err error) { s.landed(m, id, err) }
	whole := context.WithoutCancel(ctx) // a batch with the number of its last record must not end before that
	for i := range out {
		s.producer.SendAsync(whole, &out[i], done)
	}
	if s.batching {
		s.cut(len(out))
	}
	return nil
}

// cut has the library close its batch: behind what it was given, and at once, instead of some milliseconds later.
func (s *session) cut(messages int) {
	flushed := make(chan struct{})
	s.uncut, s.flushed = messages, flushed
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
	case err != nil && isRefused(err) && !s.hasLocked(m):
		s.refusedLocked(m, true, err)
		s.landLocked(m)
		return
	case err != nil:
		if !errors.Is(err, context.Canceled) {
			s.fail(err)
		}
		return // in doubt
	case s.ordered && id.LedgerID() < 0:
		s.fail(errRepeat)
		return // so is this
	case s.ordered && s.batching && int(id.BatchSize()) != m.parts:
		s.fail(errCut)
		return
	}
	if m.left--; m.left > 0 {
		return
	}
	s.room.took(m.bytes, time.Since(m.sent))
	s.storedLocked(id, m.recs[len(m.recs)-1].ID.Seq)
	for i := range m.recs {
		m.report(m.recs[i].ID.Seq, uplink.Outcome{Verdict: uplink.Ack})
	}
	s.landLocked(m)
}

// hasLocked reports whether the broker may have a message, whatever it said of its size: an earlier session has sent it, under the same number,
// and it was on its way to the disks when this one read where the stream stands. The next one knows.
func (s *session) hasLocked(m *message) bool { return s.ordered && m.recs[0].ID.Seq < s.next }

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

// storedLocked notes where a message is.
func (s *session) storedLocked(id pulsar.MessageID, seq uint64) {
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
// sends it again in halves.
func (s *session) refusedLocked(m *message, sure bool, err error) {
	o := uplink.Outcome{Verdict: uplink.Suspect, Err: s.tooLarge(m, err)}
	if sure && len(m.recs) == 1 {
		o.Verdict = uplink.Drop
		s.dropped = s.ordered
	} else if s.ordered {
		s.room.topic.refused(m.bytes)
	}
	for i := range m.recs {
		m.report(m.recs[i].ID.Seq, o)
	}
	if o.Verdict == uplink.Suspect {
		s.fail(o.Err)
	}
}

func (s *session) hasDropped() bool {
	s.flying.Lock()
	defer s.flying.Unlock()
	return s.dropped
}

// buried lets go on what stands behind a dead letter.
func (s *session) buried() {
	s.flying.Lock()
	defer s.flying.Unlock()
	s.dropped = false
}

// refused is told what the broker said of a message, not of which: all in flight are suspects.
func (s *session) refused(said refusal) {
	if said.isSize() {
		s.flying.Lock()
		sure := len(s.aloft) == 1
		for m := range s.aloft {
			if s.closed || s.hasLocked(m) {
				continue // in doubt
			}
			s.refusedLocked(m, sure, said)
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

// messages makes what Pulsar's consumers get: a message for each record, or packs with a line for each. With effectively_once all
// that is stored together has the sequence id of its last record, so that the broker knows how far it goes; with exactly_once each has that
// of its first one, and the library sends the lowest: the broker refuses a message of which it has anything.
func (s *session) messages(recs []uplink.Record) []pulsar.ProducerMessage {
	end := &recs[len(recs)-1]
	out := make([]pulsar.ProducerMessage, 0, (len(recs)+s.pack-1)/s.pack)
	for len(recs) > 0 {
		n := min(s.pack, len(recs))
		numbered := end
		if s.exact {
			numbered = &recs[0]
		}
		m := s.message(&recs[n-1], numbered)
		if s.pack > 1 {
			s.fill(&m, recs[:n])
		}
		out = append(out, m)
		recs = recs[n:]
	}
	return out
}

// fill makes a pack of the message of its last record.
func (s *session) fill(m *pulsar.ProducerMessage, recs []uplink.Record) {
	m.Key = ""
	delete(m.Properties, propertyTopic)
	m.Properties[propertyFirst] = strconv.FormatUint(recs[0].ID.Seq, 10)
	var lines bytes.Buffer
	for i := range recs {
		lines.Write(recs[i].JSON)
		lines.WriteByte('\n')
	}
	m.Payload = lines.Bytes()
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

// lettersFirst is a session of effectively_once. It implements uplink.Resetter: what stands behind a dead letter has a higher number, so
// the letter has to be on stable storage before.
type lettersFirst struct{ *session }

// Reset implements uplink.Resetter.
func (s lettersFirst) Reset(context.Context, uplink.FarCursor) error {
	s.buried()
	return nil
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
