package kafka

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"edgegateway/uplink"
)

// Bounds of a transaction. It is committed when one is reached, or when no more records have come for a moment.
const (
	transactionRecords = 60_000
	transactionBytes   = 16 << 20
	transactionAge     = 500 * time.Millisecond
	transactionIdle    = 20 * time.Millisecond
	// transactionTimeout is when the broker aborts it. It is longer than the Runner waits for an outcome.
	transactionTimeout = 45 * time.Second
)

// clientRecords is how many records of a transaction the client has at a time, about, aheadRecords how many are made ready beside it, and
// partRecords of how many the room is given back together.
const (
	clientRecords = 6144
	partRecords   = 512
	aheadRecords  = 12_288
)

// transaction is records that become visible together, with the far cursor behind them.
type transaction struct {
	begun time.Time
	bytes int // of keys and payloads
	count int // of records
	sent  []sent
	open  atomic.Int32  // records without an answer
	asked time.Time     // when its commit was
	ended time.Duration // how long the answer to that took

	mu      sync.Mutex       // guards the fields below, which the client's promises fill
	refused map[uint64]error // records that stood in a refused batch
	err     error            // the first other failure
}

// part is some of what came with one Send and was not produced yet, partRecords at most: the room of each is given back as a whole.
type part struct {
	load   *load
	out    []outgoing
	report func(uint64, uplink.Outcome)
}

// sent is what is left of a part: records without a report, whose sequences follow each other. What a record takes is given back as
// soon as the broker has it, long before the commit.
type sent struct {
	begin, end uint64 // their sequences, without the end
	report     func(uint64, uplink.Outcome)
}

// answer takes what the broker says of a record, and returns how many have no answer.
func (tx *transaction) answer(rec *kgo.Record, err error) (open int32) {
	switch {
	case err == nil:
	case isRefused(err):
		tx.mu.Lock()
		if tx.refused == nil {
			tx.refused = map[uint64]error{}
		}
		tx.refused[seqOf(rec)] = err
		tx.mu.Unlock()
	default:
		tx.fault(err)
	}
	return tx.open.Add(-1)
}

// answerOwn is the promise of a record that is none of the stream's.
func (tx *transaction) answerOwn(_ *kgo.Record, err error) {
	if err != nil {
		tx.fault(err)
	}
	tx.open.Add(-1)
}

func (tx *transaction) fault(err error) {
	tx.mu.Lock()
	defer tx.mu.Unlock()
	if tx.err == nil {
		tx.err = err
	}
}

func (tx *transaction) faults() (refused map[uint64]error, err error) {
	tx.mu.Lock()
	defer tx.mu.Unlock()
	if open := tx.open.Load(); tx.err == nil && open > 0 {
		return tx.refused, fmt.Errorf("%d records of a transaction were not answered", open)
	}
	return tx.refused, tx.err
}

// Send implements uplink.Session. It does not wait for a commit: the next records are made ready while that goes on, as many as
// aheadRecords.
func (s *exact) Send(ctx context.Context, recs []uplink.Record, report func(uint64, uplink.Outcome)) error {
	var parts []part
	var large *outgoing
	for len(recs) > 0 && large == nil {
		n := min(len(recs), partRecords)
		var load *load
		var err error
		if load, large, err = s.prepare(ctx, recs[:n]); err != nil {
			return s.explain(err)
		}
		if recs = recs[n:]; len(load.out) > 0 {
			parts = append(parts, part{load, load.out, report})
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ctx.Err() != nil: // Close has been here
		return s.ctx.Err()
	case s.failed != nil:
		return s.failed
	}
	s.round++
	s.stopTimer()
	idle := s.tx == nil && !s.committing && len(s.waiting) == 0
	s.waiting = append(s.waiting, parts...)
	for _, p := range parts {
		s.ahead += len(p.out)
	}
	switch { // the Runner waits: it looks for a refused record, or for a dead letter's turn
	case large != nil: // the far cursor must not pass it yet
		report(large.seq, uplink.Outcome{Verdict: uplink.Drop, Err: large.err})
		s.hurry = true
	case s.single && idle && s.ahead == 1 && time.Since(s.committed) < transactionIdle/10:
		s.hurry = true
	}
	s.pump()
	for s.ahead > aheadRecords && s.failed == nil {
		var err error
		s.mu.Unlock()
		select {
		case <-s.room:
		case <-ctx.Done():
			err = ctx.Err()
		case <-s.ctx.Done():
			err = s.ctx.Err()
		}
		s.mu.Lock()
		if err != nil {
			return err
		}
	}
	return s.failed
}

// prepare makes what the client takes of records, up to the first that no batch takes.
func (s *exact) prepare(ctx context.Context, recs []uplink.Record) (load *load, large *outgoing, err error) {
	load = s.loads.take(recs)
	now := time.Now()
	for i := range recs {
		o := outgoing{seq: recs[i].ID.Seq, size: int32(size(&recs[i]))}
		if o.err = fits(int(o.size)); o.err != nil {
			large = new(outgoing)
			*large = o
			break
		}
		_, terms, err := s.topicOf(ctx, &recs[i])
		if err != nil {
			return load, nil, err
		}
		o.to = terms
		s.loads.add(load, o, &recs[i], now)
	}
	load.left.Store(int32(len(load.out)))
	return load, large, nil
}

// pump puts what waits into transactions, as far as that goes now. The caller holds mu.
func (s *exact) pump() {
	if s.committing || s.ending || s.failed != nil || s.ctx.Err() != nil {
		return
	}
	for len(s.waiting) > 0 {
		if s.tx == nil && s.mayHang() {
			s.fail(fmt.Errorf("a connection to %s broke as it ended a transaction, and the next session looks for what that left", s.address))
			return
		}
		if s.tx == nil && s.unsettled && time.Since(s.committed) < settleTime {
			s.ending = true
			s.running.Go(s.settle)
			return
		}
		if s.tx != nil && s.full() {
			s.launch()
			return
		}
		if s.tx != nil && s.tx.open.Load() >= clientRecords {
			return // follow goes on
		}
		if err := s.begin(); err != nil {
			s.fail(err)
			return
		}
		next := &s.waiting[0]
		now := min(len(next.out), clientRecords)
		n := s.fit(next.out[:now])
		s.ahead -= n
		signal(s.room)
		s.add(part{next.load, next.out[:n], next.report})
		if next.out = next.out[n:]; len(next.out) == 0 {
			s.waiting = s.waiting[1:]
		}
		if n < now {
			s.launch()
			return
		}
	}
	hurry := s.hurry
	s.hurry = false
	switch {
	case s.tx == nil:
	case hurry || s.full():
		s.launch()
	default:
		round := s.round
		idle := min(max(transactionIdle, s.took), transactionAge/2) // no shorter than a commit takes, or there are too many
		s.timer = time.AfterFunc(min(idle, transactionAge-time.Since(s.tx.begun)), func() { s.due(round) })
	}
}

// follow goes on where pump has stopped because the client has enough.
func (s *exact) follow() {
	for {
		select {
		case <-s.answered:
			s.mu.Lock()
			s.pump()
			s.mu.Unlock()
		case <-s.ctx.Done():
			return
		}
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// due commits when no Send came since.
func (s *exact) due(round uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tx != nil && !s.committing && s.round == round && s.failed == nil && s.ctx.Err() == nil {
		s.launch()
	}
}

// launch leaves the transaction to commit, which has it to itself until it is done. The caller holds mu.
func (s *exact) launch() {
	s.committing = true
	tx, last := s.tx, s.last
	s.running.Go(func() { s.commit(tx, last) })
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

// fit returns how many records the transaction still takes; an empty one takes one at the least.
func (s *exact) fit(out []outgoing) int {
	left := s.most() - s.tx.count
	n, _ := chunk(out[:min(left, len(out))], s.pace.Bytes(transactionBytes)-s.tx.bytes)
	return n
}

func (s *exact) most() int {
	if s.hooks.records > 0 {
		return s.hooks.records
	}
	return transactionRecords
}

func (s *exact) full() bool {
	return s.tx.count >= s.most() || s.tx.bytes >= s.pace.Bytes(transactionBytes) || time.Since(s.tx.begun) >= transactionAge
}

// add produces records in the transaction.
func (s *exact) add(p part) {
	tx := s.tx
	for i := range p.out {
		tx.bytes += p.out[i].payload()
		if seq, n := p.out[i].seq, len(tx.sent); i > 0 && tx.sent[n-1].end == seq {
			tx.sent[n-1].end++
		} else {
			tx.sent = append(tx.sent, sent{seq, seq + 1, p.report})
		}
	}
	tx.count += len(p.out)
	tx.open.Add(int32(len(p.out)))
	s.last = uplink.FarCursor{Epoch: s.epoch, Seq: p.out[len(p.out)-1].seq}
	for out := p.out; len(out) > 0; { // all of it is there until the last one is answered
		n := min(len(out), slabRecords)
		room := s.loads.slab(n)
		answer := func(rec *kgo.Record, err error) {
			open := tx.answer(rec, err)
			if err == nil {
				s.loads.produced(room)
				s.loads.stored(p.load, 1)
			}
			if open == clientRecords/2 {
				signal(s.answered)
			}
		}
		now := out[:n]
		out = out[n:]
		for i := range now {
			s.client.Produce(s.ctx, s.loads.record(p.load, &now[i], room, i), answer)
		}
	}
}

// put produces a record of our own into the partition that it names, or that of its key.
func (s *exact) put(tx *transaction, rec *kgo.Record) {
	tx.open.Add(1)
	s.client.Produce(s.ctx, rec, tx.answerOwn)
}

// commit ends a transaction, has the next one begin and reports what came of this one.
func (s *exact) commit(tx *transaction, last uplink.FarCursor) {
	begun := time.Now()
	refused, err := s.end(tx, last)
	s.mu.Lock()
	s.committing, s.took = false, time.Since(begun)
	switch {
	case err != nil: // whether it was committed, the far cursor tells the next session
		s.fail(err)
	case len(refused) > 0: // the session is over, and the Runner looks for the record
		s.tx, s.failed = nil, errors.New("the transaction was aborted, for a batch in it was refused")
		s.giveBack()
	default:
		s.tx, s.asked, s.committed, s.single, s.unsettled = nil, tx.asked, time.Now(), tx.count == 1, tx.ended < settleTime
		s.pace.Took(tx.bytes, time.Since(tx.begun))
		s.pace.Held(tx.bytes, s.quota.take())
		s.pump()
	}
	s.mu.Unlock()
	if err != nil {
		return
	}
	tx.report(func(seq uint64) uplink.Outcome {
		if len(refused) == 0 {
			return uplink.Outcome{Verdict: uplink.Ack}
		}
		if why, ok := refused[seq]; ok {
			return uplink.Outcome{Verdict: uplink.Suspect, Err: s.explain(why)}
		}
		return uplink.Outcome{Err: s.failed}
	})
}

// settleTime is how long the broker lets a transaction's first batch wait while it still ends the last one (its setting
// add.partitions.to.txn.retry.backoff.ms).
const settleTime = 20 * time.Millisecond

// endTime is how long after its answer to a commit a broker may still be at it, with room to spare.
const endTime = time.Second

// mayHang reports whether a connection broke while the broker ended the last transaction. Perhaps it has crashed, and that one hangs: our
// next one would be written on top of it, and have it aborted with itself. The next session ends it first. The caller holds mu.
func (s *exact) mayHang() bool {
	broken := time.Unix(0, s.broken.Load())
	return !s.asked.IsZero() && broken.After(s.asked) && broken.Before(s.committed.Add(endTime))
}

// settle waits until the broker has ended the last transaction: it answers before, and a batch that comes too early has to wait for
// longer than it takes. Then it goes on. Where the answers to a commit take as long as that wait, nothing is gained and nothing asked.
func (s *exact) settle() {
	begun := time.Now()
	for n := 0; s.ctx.Err() == nil && time.Since(begun) < settleTime; n++ {
		answer, err := s.admin.DescribeTransactions(s.ctx, s.id)
		if err != nil || !strings.HasPrefix(answer[s.id].State, "Prepare") {
			break
		}
		time.Sleep(settleTime / 40)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ending, s.unsettled = false, false
	s.pump()
}

// end sends the cursor and commits; or it aborts, where batches were refused.
func (s *exact) end(tx *transaction, last uplink.FarCursor) (refused map[uint64]error, err error) {
	if !s.hooks.outside {
		s.put(tx, s.cursorRecord(last))
	}
	flushed := s.client.Flush(s.ctx)
	refused, err = tx.faults()
	switch {
	case len(refused) > 0:
		return refused, s.client.EndTransaction(s.ctx, kgo.TryAbort)
	case err != nil:
		return nil, err
	case flushed != nil:
		return nil, flushed
	}
	if s.hooks.committing != nil {
		s.hooks.committing()
	}
	tx.asked = time.Now()
	if err := s.client.EndTransaction(s.ctx, kgo.TryCommit); err != nil {
		return nil, err
	}
	tx.ended = time.Since(tx.asked)
	if s.hooks.committed != nil {
		s.hooks.committed()
	}
	if s.hooks.outside {
		return nil, s.write(s.ctx, last)
	}
	return nil, nil
}

// fail ends the session: the next one reads the far cursor and knows what was stored. The caller holds mu.
func (s *exact) fail(err error) {
	tx := s.tx
	s.tx = nil
	switch {
	case s.ctx.Err() != nil || errors.Is(err, kgo.ErrClientClosed):
		s.failed = fmt.Errorf("%s: the session ended before the answer", s.address)
	case tx != nil && isEnded(err) && time.Since(tx.begun) > s.timeout-time.Second:
		s.failed = fmt.Errorf("%s has aborted a transaction that took longer than %v", s.address, s.timeout)
	case errors.Is(err, kerr.UnknownTopicOrPartition):
		s.failed = s.explainOf(s.topic+" or "+s.cursorTopic, err)
	default:
		s.failed = s.explain(err)
	}
	if tx != nil {
		tx.report(func(uint64) uplink.Outcome { return uplink.Outcome{Err: s.failed} })
	}
	s.giveBack()
}

// giveBack reports what will not be sent. The caller holds mu.
func (s *exact) giveBack() {
	for _, p := range s.waiting {
		for i := range p.out {
			p.report(p.out[i].seq, uplink.Outcome{Err: s.failed})
		}
	}
	s.waiting, s.ahead = nil, 0
	signal(s.room)
}

// report says of each record what came of it.
func (tx *transaction) report(outcome func(seq uint64) uplink.Outcome) {
	for _, s := range tx.sent {
		for seq := s.begin; seq < s.end; seq++ {
			s.report(seq, outcome(seq))
		}
	}
}

// Close implements uplink.Session. An open transaction is aborted by the next session, or by its timeout.
func (s *exact) Close() {
	s.hangUp()
	s.mu.Lock()   // no commit begins after this
	s.stopTimer() // one that has fired finds the session ended
	s.mu.Unlock()
	s.running.Wait()
}

func (s *exact) stopTimer() {
	if s.timer != nil {
		s.timer.Stop()
	}
}
