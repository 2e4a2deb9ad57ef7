package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"edgegateway/uplink"
)

// Bounds of a transaction. It is committed when one is reached, or when no more records have come for a moment.
const (
	transactionRecords = 10_000
	transactionBytes   = 16 << 20
	transactionAge     = 500 * time.Millisecond
	transactionIdle    = 20 * time.Millisecond
	// transactionTimeout is when the broker aborts it. It is longer than the Runner waits for an outcome.
	transactionTimeout = 45 * time.Second
)

// transaction is records that become visible together, with the far cursor behind them.
type transaction struct {
	begun time.Time
	bytes int
	sent  []sent

	mu      sync.Mutex       // guards the fields below, which the client's promises fill
	open    int              // records without an answer
	refused map[uint64]error // records that stood in a refused batch
	err     error            // the first other failure
}

// sent is a record without a report.
type sent struct {
	seq    uint64
	report func(uint64, uplink.Outcome)
}

// promise returns what notes the answer to a record. Each is used once.
func (tx *transaction) promise(seq uint64) func(*kgo.Record, error) {
	tx.mu.Lock()
	defer tx.mu.Unlock()
	tx.open++
	return func(_ *kgo.Record, err error) {
		tx.mu.Lock()
		defer tx.mu.Unlock()
		tx.open--
		switch {
		case err == nil:
		case isRefused(err) && seq > 0:
			if tx.refused == nil {
				tx.refused = map[uint64]error{}
			}
			tx.refused[seq] = err
		case tx.err == nil:
			tx.err = err
		}
	}
}

func (tx *transaction) faults() (refused map[uint64]error, err error) {
	tx.mu.Lock()
	defer tx.mu.Unlock()
	if tx.err == nil && tx.open > 0 {
		return tx.refused, fmt.Errorf("%d records of a transaction were not answered", tx.open)
	}
	return tx.refused, tx.err
}

// Send implements uplink.Session. It returns before the transaction is committed, so that the next records join it.
func (s *exact) Send(ctx context.Context, recs []uplink.Record, report func(uint64, uplink.Outcome)) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	if err := s.ctx.Err(); err != nil { // Close has been here
		return err
	}
	s.round++
	s.stopTimer()
	single := s.single && len(recs) == 1 && s.tx == nil && time.Since(s.committed) < transactionIdle/10
	for len(recs) > 0 && s.failed == nil {
		if err := ctx.Err(); err != nil {
			return err
		}
		if refused := fits(&recs[0]); refused != nil { // nothing behind it may go: the cursor would pass it
			if s.tx != nil {
				s.commit()
			}
			if s.failed == nil {
				report(recs[0].ID.Seq, uplink.Outcome{Verdict: uplink.Drop, Err: refused})
			}
			return s.failed
		}
		if err := s.begin(); err != nil {
			return s.fail(err)
		}
		n := s.fit(recs)
		s.add(recs[:n], report)
		recs = recs[n:]
		if len(recs) > 0 || s.full() {
			s.commit()
		}
	}
	switch {
	case s.failed != nil:
		return s.failed
	case s.tx == nil:
	case single: // one record at the heels of another: the Runner singles out a refused one and waits for each
		s.commit()
	default:
		round := s.round
		s.timer = time.AfterFunc(min(transactionIdle, transactionAge-time.Since(s.tx.begun)), func() { s.due(round) })
	}
	return s.failed
}

// due commits when no Send came since.
func (s *exact) due(round uint64) {
	s.sending.Lock()
	defer s.sending.Unlock()
	if s.tx != nil && s.round == round && s.failed == nil && s.ctx.Err() == nil {
		s.commit()
	}
}

func (s *exact) begin() error {
	if s.tx != nil {
		return nil
	}
	if err := s.client.BeginTransaction(); err != nil {
		return err
	}
	s.tx = &transaction{begun: time.Now()}
	return nil
}

// fit returns how many records the transaction still takes, up to one that no batch takes; an empty one takes one at the least.
func (s *exact) fit(recs []uplink.Record) int {
	left := transactionRecords - len(s.tx.sent)
	n, _ := chunk(recs[:min(left, len(recs))], s.pace.Bytes(transactionBytes)-s.tx.bytes)
	if i := slices.IndexFunc(recs[:n], func(r uplink.Record) bool { return fits(&r) != nil }); i > 0 {
		return i
	}
	return n
}

func (s *exact) full() bool {
	return len(s.tx.sent) >= transactionRecords || s.tx.bytes >= s.pace.Bytes(transactionBytes) || time.Since(s.tx.begun) >= transactionAge
}

// add produces records in the transaction.
func (s *exact) add(recs []uplink.Record, report func(uint64, uplink.Outcome)) {
	for i := range recs {
		seq := recs[i].ID.Seq
		s.tx.sent = append(s.tx.sent, sent{seq, report})
		s.last = uplink.FarCursor{Epoch: recs[i].ID.Epoch, Seq: seq}
		s.tx.bytes += size(&recs[i])
		s.put(s.record(&recs[i]), s.tx.promise(seq))
	}
}

// put produces a record into the partition of its key. It blocks while the client's buffers are full, until Close.
func (s *exact) put(rec *kgo.Record, promise func(*kgo.Record, error)) {
	rec.Partition = byKey
	s.client.Produce(s.ctx, rec, promise)
}

// commit ends the transaction and reports its records. What fails it is in s.failed afterwards.
func (s *exact) commit() {
	tx := s.tx
	if !s.hooks.outside {
		s.put(s.cursorRecord(s.last), tx.promise(0))
	}
	flushed := s.client.Flush(s.ctx)
	refused, err := tx.faults()
	switch {
	case len(refused) > 0:
		s.refuse(tx, refused)
		return
	case err != nil:
		_ = s.fail(err)
		return
	case flushed != nil:
		_ = s.fail(flushed)
		return
	}
	if err := s.client.EndTransaction(s.ctx, kgo.TryCommit); err != nil {
		_ = s.fail(err) // whether it was committed, the far cursor tells the next session
		return
	}
	if s.hooks.committed != nil {
		s.hooks.committed()
	}
	if s.hooks.outside {
		if err := s.write(s.ctx, s.last); err != nil {
			_ = s.fail(err)
			return
		}
	}
	s.tx, s.committed, s.single = nil, time.Now(), len(tx.sent) == 1
	s.pace.Took(tx.bytes, time.Since(tx.begun))
	for _, r := range tx.sent {
		r.report(r.seq, uplink.Outcome{Verdict: uplink.Ack})
	}
}

// refuse aborts a transaction that has a refused batch. A record that was alone in it is dropped, and the Runner moves the far
// cursor past it; otherwise the session is over, and the Runner looks for the one.
func (s *exact) refuse(tx *transaction, refused map[uint64]error) {
	if err := s.client.EndTransaction(s.ctx, kgo.TryAbort); err != nil {
		_ = s.fail(err)
		return
	}
	if only := tx.sent[0]; len(tx.sent) == 1 {
		s.tx = nil
		only.report(only.seq, uplink.Outcome{Verdict: uplink.Drop, Err: s.explain(refused[only.seq])})
		return
	}
	s.tx, s.failed = nil, errors.New("the transaction was aborted, for a batch in it was refused")
	for _, r := range tx.sent {
		o := uplink.Outcome{Err: s.failed}
		if err, ok := refused[r.seq]; ok {
			o = uplink.Outcome{Verdict: uplink.Suspect, Err: s.explain(err)}
		}
		r.report(r.seq, o)
	}
}

// fail ends the session: the next one reads the far cursor and knows what was stored.
func (s *exact) fail(err error) error {
	tx := s.tx
	s.tx = nil
	switch {
	case s.ctx.Err() != nil || errors.Is(err, kgo.ErrClientClosed):
		s.failed = fmt.Errorf("%s: the session ended before the answer", s.address)
	case tx != nil && isFenced(err) && time.Since(tx.begun) > transactionTimeout-time.Second:
		s.failed = fmt.Errorf("%s has aborted a transaction that took longer than %v", s.address, transactionTimeout)
	case errors.Is(err, kerr.UnknownTopicOrPartition):
		s.failed = s.explainOf(s.topic+" or "+s.cursorTopic, err)
	default:
		s.failed = s.explain(err)
	}
	if tx != nil {
		for _, r := range tx.sent {
			r.report(r.seq, uplink.Outcome{Err: s.failed})
		}
	}
	return s.failed
}

// Close implements uplink.Session. An open transaction is aborted by the next session, or by its timeout.
func (s *exact) Close() {
	s.session.Close() // no Send and no commit after this
	s.stopTimer()     // one that has fired finds the session ended
}

func (s *exact) stopTimer() {
	if s.timer != nil {
		s.timer.Stop()
	}
}
