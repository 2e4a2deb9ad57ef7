package nats

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"edgegateway/uplink"
)

// The headers of an atomic batch. The server keeps its messages aside until the one that commits, and gives a batch up when
// nothing of it has come for 10 s.
const (
	headerBatchID     = "Nats-Batch-Id"
	headerBatchSeq    = "Nats-Batch-Sequence"
	headerBatchCommit = "Nats-Batch-Commit"
	// headerID holds the record id. It is not Nats-Msg-Id: the server refuses a whole batch for one id that it knows, and
	// servers of version 2.12.0 do not take it in batches.
	headerID = "Gw-Id"
)

const (
	// batchBytes bounds a batch at first, so that on a line of 10 kB/s one is confirmed before the Runner takes the line for dead.
	batchBytes = 128 << 10
	// maxBatchBytes bounds it where the line is fast. Each batch costs the server a file and a flush, so they are large.
	maxBatchBytes = 2 << 20
	// mostRecords is what the server takes in a batch by default, without the message that commits it.
	mostRecords = 999
)

// batchSession implements uplink.Session and uplink.Resumer. The data of a batch is sent while the one before commits, and it takes
// what comes until that is answered. The message that commits it waits, because it names the cursor that it replaces.
type batchSession struct {
	*link

	life       context.Context //nolint:containedctx // of the session, for what it asks by itself
	endLife    func()
	far        jetstream.Stream
	maxRecords int
	maxMsgSize int           // of the stream; negative for none
	maxPayload int           // of the server
	inbox      string        // where the answers go: INBOX.BATCH.first and INBOX.BATCH.commit
	name       string        // begins the ids of batches; no other session's ids begin with it
	msg        dataMsg       // used by Send only, as what follows
	number     uint64        // of the last batch
	free       chan struct{} // signalled when a commit was answered

	// guarded by link.mu:
	at      uplink.FarCursor // the cursor
	last    uint64           // the number that the stream gave it
	open    *commit          // sent in part, and not committed yet; Send's as long as it is at work
	sending bool             // Send is at work and commits what is open
	commit  *commit          // on its way; nil for none
	pace    uplink.Pace
	quiet   time.Time   // when the last commit was answered
	overdue *time.Timer // asks for the answer to the commit; without one it ends the session
}

// commit is a batch: first as it grows, then sent whole and not answered yet.
type commit struct {
	id       string
	number   uint64
	messages int // once it is whole
	records  []batched
	bytes    int
	begun    time.Time
	at       uplink.FarCursor
}

type batched struct {
	seq    uint64
	report func(uint64, uplink.Outcome)
}

// dataMsg is the message of the record that is being sent. Its headers are the same each time, and only what they hold changes.
type dataMsg struct {
	nats.Msg

	batch, seq, id, topic []string
	first, rest           nats.Header
	bytes                 [2]int // of the first one's headers and of the others', without what changes
}

func (m *dataMsg) init(subject, stream string) {
	m.Subject = subject
	m.batch, m.seq, m.id, m.topic = []string{""}, []string{""}, []string{""}, []string{""}
	m.rest = nats.Header{headerBatchID: m.batch, headerBatchSeq: m.seq, headerID: m.id, headerTopic: m.topic}
	m.first = nats.Header{headerBatchID: m.batch, headerBatchSeq: m.seq, headerID: m.id, headerTopic: m.topic, jetstream.ExpectedStreamHeader: {stream}}
	m.bytes = [2]int{headerSize(m.first), headerSize(m.rest)}
}

// set makes it the n-th message of a batch and returns the bytes of its headers.
func (m *dataMsg) set(rec *uplink.Record, batch string, n int) int {
	m.batch[0], m.seq[0], m.id[0], m.topic[0] = batch, strconv.Itoa(n), rec.ID.String(), rec.Message.Topic
	m.Data, m.Reply, m.Header = rec.JSON, "", m.rest
	size := m.bytes[1]
	if n == 1 {
		m.Header, size = m.first, m.bytes[0]
	}
	return size + len(m.batch[0]) + len(m.seq[0]) + len(m.id[0]) + len(m.topic[0])
}

// batch returns how many records a batch has at most.
func (c *Config) batch() int {
	if c.Batch <= 0 {
		return mostRecords
	}
	return c.Batch
}

func (c *Config) openBatches(ctx context.Context, env uplink.Env, l *link, stream jetstream.Stream) (*batchSession, error) {
	cfg := &stream.CachedInfo().Config
	if err := checkBatches(ctx, l, cfg); err != nil {
		return nil, err
	}
	s := &batchSession{
		link: l, far: stream, maxRecords: c.batch(), maxMsgSize: int(cfg.MaxMsgSize), maxPayload: int(l.nc.MaxPayload()),
		inbox: l.nc.NewInbox(), name: rand.Text()[:12], free: make(chan struct{}, 1),
	}
	s.life, s.endLife = context.WithCancel(context.WithoutCancel(ctx))
	s.msg.init(l.subject, l.stream)
	if err := s.fence(ctx, env); err != nil {
		return nil, err
	}
	l.mu.Lock()
	l.doubt = s.inDoubtLocked
	l.mu.Unlock()
	if _, err := l.nc.Subscribe(s.inbox+".*.*", s.answer); err != nil {
		return nil, err
	}
	return s, nil
}

// Send implements uplink.Session. What stands behind a record that the server would refuse is not sent: the cursor would pass it.
func (s *batchSession) Send(ctx context.Context, recs []uplink.Record, report func(uint64, uplink.Outcome)) error {
	s.setSending()
	refused, err := s.fill(ctx, recs, report)
	if err = s.sent(err); err == nil && refused != nil {
		refused()
	}
	return err
}

func (s *batchSession) setSending() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sending = true
}

// sent commits what Send has put into the open batch, or returns why the session has ended meanwhile: that was left to Send to say.
func (s *batchSession) sent(err error) error {
	s.mu.Lock()
	s.sending = false
	dead := s.isDead()
	var c *commit
	if err == nil && !dead {
		c = s.takeLocked()
	}
	s.mu.Unlock()
	switch {
	case c != nil:
		return s.sendCommit(c)
	case err == nil && dead:
		return s.failure()
	}
	return err
}

// fill puts records into the open batch, and commits it and begins another each time that it is full. refused reports a record that
// the server would refuse; the batch ends before it.
func (s *batchSession) fill(ctx context.Context, recs []uplink.Record, report func(uint64, uplink.Outcome)) (refused func(), err error) {
	c := s.openBatch()
	for i := range recs {
		rec := &recs[i]
		if err := s.usable(ctx); err != nil {
			return nil, err
		}
		size := s.msg.set(rec, c.id, len(c.records)+1)
		if why := s.tooLarge(size, size+len(rec.JSON)); why != nil {
			return func() { report(rec.ID.Seq, uplink.Outcome{Verdict: uplink.Drop, Err: why}) }, nil
		}
		if len(c.records) == 0 { // the first one asks for an answer, which says why the server does not begin the batch
			s.msg.Reply = s.replyTo(c, "first")
			c.begun = time.Now()
		}
		if err := s.explain(s.nc.PublishMsg(&s.msg.Msg)); err != nil {
			return nil, err
		}
		c.records = append(c.records, batched{rec.ID.Seq, report})
		c.bytes += size + len(rec.JSON)
		c.at = uplink.FarCursor{Epoch: rec.ID.Epoch, Seq: rec.ID.Seq}
		if s.isFull(c) {
			if err := s.commitFull(ctx); err != nil {
				return nil, err
			}
			c = s.openBatch()
		}
	}
	return nil, nil
}

// openBatch returns the open batch, a new one where there is none.
func (s *batchSession) openBatch() *commit {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open == nil {
		s.number++
		s.open = &commit{id: s.name + strconv.FormatUint(s.number, 36), number: s.number, records: make([]batched, 0, s.maxRecords)}
	}
	return s.open
}

func (s *batchSession) isFull(c *commit) bool {
	if len(c.records) >= s.maxRecords {
		return true
	}
	if c.bytes < batchBytes {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return c.bytes >= s.pace.Bytes(maxBatchBytes)
}

// commitFull waits for the answer to the batch before and commits the open one.
func (s *batchSession) commitFull(ctx context.Context) error {
	for {
		s.mu.Lock()
		c := s.takeLocked()
		s.mu.Unlock()
		if c != nil {
			return s.sendCommit(c)
		}
		select {
		case <-s.free:
		case <-s.dead:
			return s.failure()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// takeLocked makes the open batch the one that commits, where there is something in it and none commits now.
func (s *batchSession) takeLocked() *commit {
	if s.commit != nil || s.open == nil || len(s.open.records) == 0 {
		return nil
	}
	c := s.open
	c.messages = len(c.records) + 1
	s.commit, s.open = c, nil
	return c
}

// sendCommit commits a batch that was taken. Nobody else moves the cursor meanwhile.
func (s *batchSession) sendCommit(c *commit) error {
	s.mu.Lock()
	m := s.cursorMessage(c.at, s.last)
	s.overdue = time.AfterFunc(s.patience, func() { s.ask(c) })
	s.mu.Unlock()
	m.Reply = s.replyTo(c, "commit")
	m.Header[headerBatchID] = []string{c.id}
	m.Header[headerBatchSeq] = []string{strconv.Itoa(c.messages)}
	m.Header[headerBatchCommit] = []string{"1"}
	return s.explain(s.nc.PublishMsg(m))
}

// replyTo is where the answer to a message of a batch goes.
func (s *batchSession) replyTo(c *commit, which string) string {
	return s.inbox + "." + strconv.FormatUint(c.number, 10) + "." + which
}

func (s *batchSession) usable(ctx context.Context) error {
	select {
	case <-s.dead:
		return s.failure()
	case <-ctx.Done():
		return ctx.Err()
	default:
		return nil
	}
}

// batchAnswer is what the server says to the first and to the last message of a batch.
type batchAnswer struct {
	Error    *jetstream.APIError `json:"error"`
	Sequence uint64              `json:"seq"`
	Batch    string              `json:"batch"`
	Count    int                 `json:"count"`
}

// answer takes an answer of the server, and commits what has come in the meantime. The library calls it, one at a time.
func (s *batchSession) answer(m *nats.Msg) {
	first := strings.HasSuffix(m.Subject, ".first")
	if first && len(m.Data) == 0 && m.Header.Get("Status") == "" {
		return // begun
	}
	next, err := s.take(m, first)
	if err == nil && next != nil {
		err = s.sendCommit(next)
	}
	switch {
	case isFenced(err):
		go s.prove(err)
	case err != nil:
		s.fail(err)
	}
}

// prove ends the session, whose cursor is refused, once it is known whether another instance has moved it.
func (s *batchSession) prove(refused error) {
	if m, err := lastOn(s.life, s.far, s.cursor); err == nil && s.isOthers(m) {
		refused = s.fenced()
	}
	s.fail(refused)
}

// ask is called when a commit was not answered for long. Once the server has answered a question that was sent behind it, it has the
// commit, and if it says nothing for as long again, it never will: one that has just lost the lead of the stream to another drops what
// it has in its hands, and one without room for a batch that it has checked gives it up.
func (s *batchSession) ask(c *commit) {
	ctx, cancel := context.WithTimeout(s.life, time.Minute)
	defer cancel()
	if _, err := s.far.GetLastMsgForSubject(ctx, s.cursor); err != nil {
		s.fail(err)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.commit == c {
		s.overdue = time.AfterFunc(s.patience, func() {
			s.fail(fmt.Errorf("%s has not answered for a batch in %v (has the stream another leader, or the account no more room?)", s.address, 2*s.patience))
		})
	}
}

// take reads an answer and returns the batch that is to be committed next, if nobody else does.
func (s *batchSession) take(m *nats.Msg, first bool) (next *commit, err error) {
	var a batchAnswer
	wrong := json.Unmarshal(m.Data, &a)
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.commit
	switch {
	case m.Header.Get("Status") == "503":
		return nil, nats.ErrNoResponders
	case wrong != nil:
		return nil, fmt.Errorf("%s answers with something else than an acknowledgement: %w", s.address, wrong)
	case a.Error != nil:
		return nil, a.Error
	case first, c == nil, a.Batch != c.id, a.Count != c.messages:
		return nil, uplink.Config(fmt.Errorf("%s does not store a batch in one step (want every server to be 2.12 or newer); "+
			"a record may be there twice", s.address))
	}
	select {
	case <-s.dead:
		return nil, nil // the records were reported as in doubt; the next session finds them by the cursor
	default:
	}
	s.committedLocked(c, a.Sequence)
	if s.sending {
		return nil, nil
	}
	return s.takeLocked(), nil
}

func (s *batchSession) committedLocked(c *commit, sequence uint64) {
	now := time.Now()
	begun := c.begun
	if s.quiet.After(begun) { // the line was the batch before's
		begun = s.quiet
	}
	s.pace.Took(c.bytes, now.Sub(begun))
	s.overdue.Stop()
	s.at, s.last, s.commit, s.quiet = c.at, sequence, nil, now
	for _, r := range c.records {
		r.report(r.seq, uplink.Outcome{Verdict: uplink.Ack})
	}
	select {
	case s.free <- struct{}{}:
	default:
	}
}

// inDoubtLocked reports the first record that will not be answered; nothing is said of those behind it. Send says it itself.
func (s *batchSession) inDoubtLocked(err error) {
	c := s.commit
	if c == nil && !s.sending {
		c = s.open
	}
	if c != nil && len(c.records) > 0 {
		c.records[0].report(c.records[0].seq, uplink.Outcome{Verdict: uplink.Retry, Err: err})
	}
}

// Close implements uplink.Session.
func (s *batchSession) Close() {
	s.endLife()
	s.hangUp()
}

// tooLarge says why the server would refuse a record for good. It would give up the batch without naming the record.
func (s *batchSession) tooLarge(headers, size int) error {
	switch {
	case s.maxMsgSize >= 0 && size > s.maxMsgSize:
		return fmt.Errorf("the record has %d bytes with its headers, more than the stream %s takes (its setting max_msg_size, %d)", size, s.stream, s.maxMsgSize)
	case size > s.maxPayload:
		return fmt.Errorf("the record has %d bytes with its headers, the server takes %d (its setting max_payload)", size, s.maxPayload)
	case headers > math.MaxUint16:
		return fmt.Errorf("the record's headers have %d bytes, the server takes %d (is its topic that long?)", headers, math.MaxUint16)
	}
	return nil
}

// headerSize returns the bytes of headers as they are sent.
func headerSize(h nats.Header) int {
	size := len("NATS/1.0\r\n") + len("\r\n")
	for key, values := range h {
		for _, v := range values {
			size += len(key) + len(": ") + len(v) + len("\r\n")
		}
	}
	return size
}
