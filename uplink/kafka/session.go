package kafka

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"edgegateway/uplink"
)

// session implements uplink.Session. It sends synchronously, one chunk at a time.
type session struct {
	client  *kgo.Client
	address string
	topic   string
	gateway string // id of the gateway, and the transactional id: for transactions only
	id      string
	ctx     context.Context //nolint:containedctx // ends with Close, and every Send with it
	cancel  context.CancelFunc
	loose   bool       // others may go on past a record that its topic does not take for now
	limit   int        // bytes of a chunk
	takes   int        // bytes of a batch that the topic takes
	sending sync.Mutex // held by Send, Close waits for it; guards the fields below
	warm    bool       // the client knows the topic
	pace    uplink.Pace
}

// answer is what the broker says of one record.
type answer struct {
	seq uint64
	err error
}

// Send implements uplink.Session.
func (s *session) Send(ctx context.Context, recs []uplink.Record, report func(uint64, uplink.Outcome)) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	for len(recs) > 0 {
		if err := fits(&recs[0]); err != nil {
			report(recs[0].ID.Seq, uplink.Outcome{Verdict: uplink.Drop, Err: err})
			recs = recs[1:]
			continue
		}
		n, bytes := 1, size(&recs[0]) // the first record goes alone: the client learns of the topic with it
		if s.warm {
			n, bytes = chunk(recs, s.pace.Bytes(s.limit))
		}
		begun := time.Now()
		clean, err := s.produce(ctx, recs[:n], report)
		if err != nil {
			return err
		}
		if !clean { // later records must not follow
			return fmt.Errorf("%s did not take a batch", s.address)
		}
		s.warm = true
		s.pace.Took(bytes, time.Since(begun))
		recs = recs[n:]
	}
	return nil
}

// produce sends one chunk and waits for all of its answers. It is clean when nothing in it was refused in company or left in doubt.
func (s *session) produce(ctx context.Context, recs []uplink.Record, report func(uint64, uplink.Outcome)) (clean bool, err error) {
	answers := make(chan answer, len(recs)) // room for all: an answer that comes after the end of ctx goes unheard
	for i := range recs {
		seq := recs[i].ID.Seq
		s.client.Produce(ctx, s.record(&recs[i]), func(_ *kgo.Record, err error) { answers <- answer{seq, err} })
	}
	// The flush makes the batches; what comes of them, the answers say.
	if err := s.client.Flush(ctx); err != nil && ctx.Err() == nil {
		return false, s.explain(err)
	}
	clean = true
	for range recs {
		select {
		case a := <-answers:
			if a.err == nil {
				report(a.seq, uplink.Outcome{Verdict: uplink.Ack})
				continue
			}
			o := s.outcome(a.err)
			if o.Verdict == uplink.Suspect && len(recs) == 1 {
				o.Verdict = uplink.Drop // it was alone
			}
			report(a.seq, o)
			clean = clean && (o.Verdict == uplink.Drop || s.loose && o.Answered)
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
	return clean, nil
}

// record makes what Kafka's consumers get. The headers repeat the record id for those who do not read the payload.
func (s *session) record(rec *uplink.Record) *kgo.Record {
	id := rec.ID
	header := func(key, value string) kgo.RecordHeader { return kgo.RecordHeader{Key: key, Value: []byte(value)} }
	return &kgo.Record{
		Topic: s.topic, Key: []byte(rec.Message.PartitionKey()), Value: rec.JSON, Timestamp: rec.Message.Time,
		Headers: []kgo.RecordHeader{
			header("gw-id", id.Gateway), header("gw-stream", id.Stream),
			header("gw-epoch", strconv.FormatUint(id.Epoch, 10)), header("gw-seq", strconv.FormatUint(id.Seq, 10)),
			header("record-id", id.String()), header("content-type", "application/json"),
			header("quality", rec.Message.Quality.String()),
		},
	}
}

// chunk returns how many records fit a chunk of so many bytes, one at the least, and how many bytes they take.
func chunk(recs []uplink.Record, limit int) (n, bytes int) {
	for i := range recs {
		more := size(&recs[i])
		if i > 0 && bytes+more > limit {
			return i, bytes
		}
		bytes += more
	}
	return len(recs), bytes
}

// fits says why a record is too large for any batch of ours; nil if it is not.
func fits(rec *uplink.Record) error {
	if n := size(rec); n > chunkBytes {
		return fmt.Errorf("the record has %d bytes with its headers, a batch takes %d", n, chunkBytes)
	}
	return nil
}

// size returns no less than what a record takes of a batch.
func size(rec *uplink.Record) int {
	const names = 200 // of the headers, their fixed values and the framing
	return len(rec.JSON) + len(rec.Message.PartitionKey()) + 2*len(rec.ID.Gateway) + 2*len(rec.ID.Stream) + names
}

// Close implements uplink.Session.
func (s *session) Close() {
	s.cancel()
	s.client.Close() // does not flush: what is in flight is in doubt
	s.sending.Lock() // Send has returned
	defer s.sending.Unlock()
}
