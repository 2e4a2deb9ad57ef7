package nats

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"

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

// maxBatchBytes bounds a batch, so that on a line of 10 kB/s one is confirmed before the Runner takes the line for dead.
const maxBatchBytes = 128 << 10

// batchSession implements uplink.Session and uplink.Resumer. The data of a batch is sent while the one before commits; the
// message that commits it waits, because it names the cursor that it replaces.
type batchSession struct {
	*link
	maxRecords int
	maxMsgSize int           // of the stream; negative for none
	inbox      string        // where the answers go: INBOX.BATCH.first and INBOX.BATCH.commit
	number     uint64        // of the last batch; used by Send only
	busy       chan struct{} // holds a token while a commit is on its way

	// guarded by link.mu:
	at     uplink.FarCursor // the cursor
	last   uint64           // the number that the stream gave it
	commit *commit          // on its way; nil for none
}

// commit is a batch that was sent whole and is not answered yet.
type commit struct {
	id       string
	messages int
	seqs     []uint64
	at       uplink.FarCursor
	report   func(uint64, uplink.Outcome)
}

func (c *Config) openBatches(ctx context.Context, env uplink.Env, l *link) (*batchSession, error) {
	cfg, err := checkBatches(ctx, l)
	if err != nil {
		return nil, err
	}
	s := &batchSession{link: l, maxRecords: c.Batch, maxMsgSize: int(cfg.MaxMsgSize), inbox: l.nc.NewInbox(), busy: make(chan struct{}, 1)}
	if s.maxRecords <= 0 {
		s.maxRecords = 500
	}
	if err := s.fence(ctx, env.Claims); err != nil {
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
	for len(recs) > 0 {
		n, refused, err := s.sendBatch(ctx, recs, report)
		if err != nil {
			return err
		}
		if refused != nil {
			report(recs[n].ID.Seq, uplink.Outcome{Verdict: uplink.Drop, Err: refused})
			return nil
		}
		recs = recs[n:]
	}
	return nil
}

// sendBatch sends the first records as one batch and returns how many it has sent, and why the next one would be refused.
func (s *batchSession) sendBatch(ctx context.Context, recs []uplink.Record, report func(uint64, uplink.Outcome)) (n int, refused, err error) {
	s.number++
	c := &commit{id: s.inbox[strings.LastIndexByte(s.inbox, '.')+1:] + "-" + strconv.FormatUint(s.number, 10), report: report}
	for bytes := 0; n < len(recs) && len(c.seqs) < s.maxRecords && bytes < maxBatchBytes; n++ {
		rec := &recs[n]
		m := s.data(rec, c)
		size := headerSize(m.Header) + len(m.Data)
		if refused = s.tooLarge(m, size); refused != nil {
			if s.isDead() { // the limit is that of a connection which is no more
				return 0, nil, s.failure()
			}
			break
		}
		if err := s.publish(ctx, m); err != nil {
			return 0, nil, err
		}
		bytes += size
		c.seqs = append(c.seqs, rec.ID.Seq)
		c.at = uplink.FarCursor{Epoch: rec.ID.Epoch, Seq: rec.ID.Seq}
	}
	if n == 0 {
		return 0, refused, nil
	}
	return n, refused, s.sendCommit(ctx, c)
}

// data returns the next message of a batch. The first one asks for an answer, which says why the server does not begin it.
func (s *batchSession) data(rec *uplink.Record, c *commit) *nats.Msg {
	m := &nats.Msg{Subject: s.subject, Data: rec.JSON, Header: nats.Header{
		headerBatchID: {c.id}, headerBatchSeq: {strconv.Itoa(len(c.seqs) + 1)}, headerID: {rec.ID.String()}, "Gw-Topic": {rec.Message.Topic},
	}}
	if len(c.seqs) == 0 {
		m.Reply = s.inbox + "." + strconv.FormatUint(s.number, 10) + ".first"
		m.Header[jetstream.ExpectedStreamHeader] = []string{s.stream}
	}
	return m
}

// sendCommit waits for the answer to the batch before and commits this one.
func (s *batchSession) sendCommit(ctx context.Context, c *commit) error {
	select {
	case s.busy <- struct{}{}:
	case <-s.dead:
		return s.failure()
	case <-ctx.Done():
		return ctx.Err()
	}
	s.mu.Lock()
	m := s.cursorMessage(c.at, s.last)
	c.messages = len(c.seqs) + 1
	s.commit = c
	s.mu.Unlock()
	m.Reply = s.inbox + "." + strconv.FormatUint(s.number, 10) + ".commit"
	m.Header[headerBatchID] = []string{c.id}
	m.Header[headerBatchSeq] = []string{strconv.Itoa(c.messages)}
	m.Header[headerBatchCommit] = []string{"1"}
	return s.publish(ctx, m)
}

func (s *batchSession) publish(ctx context.Context, m *nats.Msg) error {
	select {
	case <-s.dead:
		return s.failure()
	case <-ctx.Done():
		return ctx.Err()
	default:
	}
	return s.explain(s.nc.PublishMsg(m))
}

// answer takes what the server says to the first and to the last message of a batch. The library calls it, one at a time.
func (s *batchSession) answer(m *nats.Msg) {
	first := strings.HasSuffix(m.Subject, ".first")
	if first && len(m.Data) == 0 && m.Header.Get("Status") == "" {
		return // begun
	}
	var a struct {
		Error    *jetstream.APIError `json:"error"`
		Sequence uint64              `json:"seq"`
		Batch    string              `json:"batch"`
		Count    int                 `json:"count"`
	}
	err := json.Unmarshal(m.Data, &a)
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.commit
	switch {
	case m.Header.Get("Status") == "503":
		s.failLocked(nats.ErrNoResponders)
	case err != nil:
		s.failLocked(fmt.Errorf("%s answers with something else than an acknowledgement: %w", s.address, err))
	case a.Error != nil:
		s.failLocked(a.Error)
	case first, c == nil, a.Batch != c.id, a.Count != c.messages:
		s.failLocked(uplink.Config(fmt.Errorf("%s does not store a batch in one step (want every server to be 2.12 or newer); "+
			"a record may be there twice", s.address)))
	default:
		s.committedLocked(a.Sequence)
	}
}

func (s *batchSession) committedLocked(sequence uint64) {
	select {
	case <-s.dead:
		return // the records were reported as in doubt; the next session finds them by the cursor
	default:
	}
	c := s.commit
	s.at, s.last, s.commit = c.at, sequence, nil
	for _, seq := range c.seqs {
		c.report(seq, uplink.Outcome{Verdict: uplink.Ack})
	}
	<-s.busy
}

// inDoubtLocked reports the first record of a commit that will not be answered; nothing is said of those behind it.
func (s *batchSession) inDoubtLocked(err error) {
	if s.commit != nil {
		s.commit.report(s.commit.seqs[0], uplink.Outcome{Verdict: uplink.Retry, Err: err})
	}
}

// Close implements uplink.Session.
func (s *batchSession) Close() { s.hangUp() }

// tooLarge says why the server would refuse a record for good. It would give up the batch without naming the record.
func (s *batchSession) tooLarge(m *nats.Msg, size int) error {
	switch {
	case s.maxMsgSize >= 0 && size > s.maxMsgSize:
		return fmt.Errorf("the record has %d bytes with its headers, more than the stream %s takes (its setting max_msg_size, %d)", size, s.stream, s.maxMsgSize)
	case int64(size) > s.nc.MaxPayload():
		return fmt.Errorf("the record has %d bytes with its headers, the server takes %d (its setting max_payload)", size, s.nc.MaxPayload())
	case headerSize(m.Header) > math.MaxUint16:
		return fmt.Errorf("the record's headers have %d bytes, the server takes %d (is its topic that long?)", headerSize(m.Header), math.MaxUint16)
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
