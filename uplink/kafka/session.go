package kafka

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"edgegateway/uplink"
)

// Bounds of what is in flight in a session of at_least_once: flightRecords and flightBytes are on their way, in chunks, and as much
// again is read and encoded meanwhile.
const (
	flightRecords = 8192
	flightBytes   = 8 << 20
	flightChunks  = 4
)

// session implements uplink.Session for at_least_once.
//
// franz-go fails all that waits behind a refused batch, but forgets it then: what is produced after that would pass the records
// that were refused. Two things keep it from that.
//
// Where the order is strict and all records have one topic, chunks follow each other without a pause. After a refusal the client
// asks for a new epoch of its producer before it sends another batch; a guard sees the question go out and cancels all that is
// not sent yet. (Where a topic cannot be written at all the client fails records without that question. It then takes nothing for it
// before it has asked for the topic again, a second later, and the first failure has cancelled the rest long before.)
//
// Otherwise the session lives on after a refusal: a chunk is produced whole before any of it is sent, and its answers are awaited
// before the next one follows.
type session struct {
	link
	loose   bool            // others may go on past a record that its topic does not take for now
	each    bool            // one chunk at a time
	sending context.Context //nolint:containedctx // what is not sent when it ends never is
	refuse  context.CancelFunc
	broken  atomic.Bool    // a record was not taken, and the session is to end
	guarded atomic.Bool    // the producer has its epoch, and needs no other
	running sync.WaitGroup // what waits for answers; Close waits for it
	room    chan struct{}  // holds one: a chunk has been dealt with

	mu     sync.Mutex // guards the fields below
	chunks int        // in flight
	up     int        // records in them
	bytes  int
	pace   uplink.Pace
	faulty []*flight // those with failures, to be reported when no chunk is in flight
	failed error
}

// flight is a chunk on its way.
type flight struct {
	load   *load
	slabs  []*slab
	out    []outgoing
	bytes  int
	ahead  int // bytes that were in flight before it
	begun  time.Time
	report func(uint64, uplink.Outcome)
	open   atomic.Int32          // records without an answer
	over   chan struct{}         // closed when there are none
	faults map[*kgo.Record]error // written by the client's promises, which it calls one at a time; to be read when it is over
}

// OnBrokerWrite implements kgo.HookBrokerWrite. The client reads no answer to what it has written before this returns.
func (s *session) OnBrokerWrite(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, _ error) {
	if kmsg.Key(key) == kmsg.InitProducerID && s.guarded.Load() && !s.each {
		s.refuse()
	}
}

// open makes the client of a session.
func (s *session) open(ctx context.Context, c *Config, env uplink.Env) error {
	options, err := c.dial(env)
	if err != nil {
		return err
	}
	options = append(options, kgo.MaxBufferedRecords(2*flightRecords), kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)), kgo.WithHooks(s.quota, s))
	if s.each {
		options = append(options, kgo.ManualFlushing())
	} else {
		options = append(options, kgo.ProducerLinger(linger))
	}
	_, _, err = s.meet(ctx, func(batch int) (*kgo.Client, error) {
		return kgo.NewClient(append(slices.Clip(options), c.produce(batch)...)...)
	})
	if err != nil {
		return err
	}
	_, _, err = s.client.ProducerID(ctx) // now, and not when records wait for it: on a slow line it takes a while
	s.guarded.Store(true)
	return err
}

// Copies implements uplink.Copier.
func (l *link) Copies() {}

// Send implements uplink.Session. It returns while its last chunks are on their way.
func (s *session) Send(ctx context.Context, recs []uplink.Record, report func(uint64, uplink.Outcome)) error {
	load := s.prepare(ctx, recs)
	for out := load.out; len(out) > 0; {
		limit, err := s.wait(ctx, out)
		if err != nil {
			return err
		}
		n, err := s.launch(load, out, limit, report)
		if err != nil {
			return err
		}
		out = out[n:]
	}
	return nil
}

// prepare makes what the client takes of records, up to the first whose topic is not known, while earlier chunks are on their way.
func (s *session) prepare(ctx context.Context, recs []uplink.Record) *load {
	load := s.loads.take(recs)
	now := time.Now()
	for i := range recs {
		o := outgoing{seq: recs[i].ID.Seq, size: int32(size(&recs[i]))}
		if o.err = fits(int(o.size)); o.err != nil {
			o.drop = true
			load.out = append(load.out, o)
			continue
		}
		topic, terms, err := s.topicOf(ctx, &recs[i])
		if err != nil {
			o.err = s.explainOf(topic, err)
			if load.out = append(load.out, o); s.loose && ctx.Err() == nil {
				continue
			}
			break
		}
		o.to = terms
		s.loads.add(load, o, &recs[i], now)
	}
	load.left.Store(int32(len(load.out)))
	return load
}

// wait waits until another chunk may go, and returns how large it may be. There may be less to send than that, and then as much as
// there is must fit: a window that is never used does not grow.
func (s *session) wait(ctx context.Context, out []outgoing) (limit int, err error) {
	left := 0
	for i := range out {
		left += int(out[i].size)
	}
	for {
		s.mu.Lock()
		window := s.pace.Bytes(flightBytes)
		limit, err = window, s.failed
		if !s.each {
			limit = max(window/flightChunks, min(window, batchBytes))
		}
		free := s.chunks == 0 || !s.each && !s.broken.Load() && s.bytes+min(limit, left) <= window && s.up < flightRecords
		s.mu.Unlock()
		if free {
			return limit, err
		}
		select {
		case <-s.room:
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-s.ctx.Done():
			return 0, s.ctx.Err()
		}
	}
}

// launch produces the next chunk and leaves the rest to settle. It returns how many records it has dealt with.
func (s *session) launch(load *load, out []outgoing, limit int, report func(uint64, uplink.Outcome)) (int, error) {
	if err := out[0].err; err != nil && !out[0].drop && !s.loose {
		return 0, s.give(err)
	}
	f := &flight{load: load, report: report, over: make(chan struct{})}
	sent := 0
	for n := range min(len(out), flightRecords) {
		o := &out[n]
		if o.err != nil && !o.drop && !s.loose {
			break
		}
		if o.err == nil {
			if batch := o.to.bytes; batch < s.batch { // then the chunk is to be one batch, and no larger than this
				limit = min(limit, batch-batch/10)
			}
			if sent > 0 && f.bytes+int(o.size) > limit {
				break
			}
			f.bytes += int(o.size)
			sent++
		}
		f.out = out[:n+1]
	}
	s.mu.Lock()
	f.begun, f.ahead = time.Now(), s.bytes
	s.chunks, s.up, s.bytes = s.chunks+1, s.up+len(f.out), s.bytes+f.bytes
	s.mu.Unlock()
	f.open.Store(int32(sent) + 1)
	answer := func(rec *kgo.Record, err error) {
		if err != nil {
			if f.faults == nil {
				f.faults = map[*kgo.Record]error{}
			}
			f.faults[rec] = err
			s.stumble(err)
		}
		f.answered()
	}
	n := slabRecords
	for i := range f.out {
		if f.out[i].err != nil {
			continue
		}
		if n == slabRecords {
			n = 0
			f.slabs = append(f.slabs, s.loads.slab(1)) // all of it at once
		}
		s.client.Produce(s.sending, s.loads.record(load, &f.out[i], f.slabs[len(f.slabs)-1], n), answer)
		n++
	}
	f.answered()
	s.running.Go(func() { s.settle(f) })
	return len(f.out), nil
}

func (f *flight) answered() {
	if f.open.Add(-1) == 0 {
		close(f.over)
	}
}

// stumble has nothing more go out after a failure that ends the session.
func (s *session) stumble(err error) {
	if !s.loose || !s.outcome(err).Answered {
		s.broken.Store(true)
		s.refuse()
	}
}

// give ends the session for an error of its own, once nothing is in flight.
func (s *session) give(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed == nil {
		s.failed = err
	}
	return s.failed
}

// settle awaits the answers to a chunk and reports what comes of it. What failed is reported when all that was in flight is
// answered: the Runner ends the session then.
func (s *session) settle(f *flight) {
	if s.each {
		_ = s.client.Flush(s.ctx) // it fails when the session ends
	}
	select {
	case <-f.over:
	case <-s.ctx.Done():
		return // in doubt
	}
	clean := len(f.faults) == 0
	if clean {
		for i := range f.out {
			f.report(f.out[i].seq, f.out[i].verdict())
		}
	}
	s.mu.Lock()
	s.chunks, s.up, s.bytes = s.chunks-1, s.up-len(f.out), s.bytes-f.bytes
	if clean {
		s.pace.Took(f.ahead+f.bytes, time.Since(f.begun))
		s.pace.Held(f.ahead+f.bytes, s.quota.take())
		for _, room := range f.slabs {
			s.loads.produced(room)
		}
		s.loads.stored(f.load, len(f.out))
	} else {
		s.faulty = append(s.faulty, f)
	}
	if s.chunks == 0 {
		s.confess()
	}
	s.mu.Unlock()
	select {
	case s.room <- struct{}{}:
	default:
	}
}

// verdict is the outcome of a record that the broker has stored, or that was never sent.
func (o *outgoing) verdict() uplink.Outcome {
	switch {
	case o.drop:
		return uplink.Outcome{Verdict: uplink.Drop, Err: o.err}
	case o.err != nil: // its topic is not there for now
		return uplink.Outcome{Err: o.err, Answered: true}
	}
	return uplink.Outcome{Verdict: uplink.Ack}
}

// confess reports the chunks with failures. The caller holds mu.
func (s *session) confess() {
	refused := map[place]int{} // bytes of the records that stood in refused batches
	slices.SortFunc(s.faulty, func(a, b *flight) int { return a.begun.Compare(b.begun) })
	for _, f := range s.faulty {
		for i := range f.out {
			o := &f.out[i]
			err := f.faults[o.rec]
			if o.rec == nil || err == nil {
				f.report(o.seq, o.verdict())
				continue
			}
			out := s.outcome(err)
			if s.failed == nil && (!s.loose || !out.Answered) {
				s.failed = fmt.Errorf("%s did not take a batch: %w", s.address, out.Err)
			}
			if out.Verdict == uplink.Suspect {
				// franz-go gives all that waits behind a refused batch the same error, and a batch is no larger than this.
				at := place{o.rec.Topic, o.rec.Partition}
				if refused[at] > s.batch {
					out.Verdict = uplink.Retry
				}
				refused[at] += int(o.size)
			}
			f.report(o.seq, out)
		}
	}
	s.faulty = nil
}

// Close implements uplink.Session.
func (s *session) Close() {
	s.hangUp()
	s.running.Wait()
}
