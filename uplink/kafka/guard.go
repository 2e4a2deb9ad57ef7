package kafka

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"edgegateway/uplink"
)

// nothingHangs makes sure that no transaction of an earlier session is open in a partition that we write. After a crash of a broker
// its coordinator may hold one for ended while the partition does not, and our next commit would make its records visible:
// they would be doubled (measured: after three of eight crashes). What mends it is a transaction of ours in that partition that is aborted.
func (s *exact) nothingHangs(ctx context.Context, producer int64, v *survey) error {
	for _, repair := range []bool{true, false} {
		open, err := s.hanging(ctx, producer, v)
		if err != nil || len(open) == 0 {
			return err
		}
		if repair {
			if err := s.mayAbort(ctx, producer, open, v); err != nil {
				return err
			}
			if err := s.abortIn(ctx, open); err != nil {
				return fmt.Errorf("end the open transaction in %v: %w", open, s.explain(err))
			}
			s.log.Warn("a transaction that hung was ended", "partitions", fmt.Sprint(open))
			if err := s.lookAgain(ctx, v); err != nil {
				return err
			}
			continue
		}
		return fmt.Errorf("a transaction that a crash of a broker left open hangs in %v, and records in it would be doubled "+
			"(want it ended there: kafka-transactions.sh abort; the gateway tries again by itself)", open)
	}
	return nil
}

// place is a partition that is written.
type place struct {
	topic     string
	partition int32
}

func (p place) String() string { return fmt.Sprintf("topic %s, partition %d", p.topic, p.partition) }

// survey is how far the partitions of both topics go, up to where all is decided, and where they begin. What there is of earlier
// sessions lies below ends.
type survey struct{ ends, decided, begins map[place]int64 }

// look asks for all three at once. decided may be from before ends, and is asked for again where it falls short.
func (s *exact) look(ctx context.Context) (*survey, error) {
	v := &survey{}
	var asking sync.WaitGroup
	var errs [3]error
	asking.Go(func() { v.ends, errs[0] = s.offsets(s.admin.ListEndOffsets(ctx, s.topic, s.cursorTopic)) })
	asking.Go(func() { v.decided, errs[1] = s.offsets(s.admin.ListCommittedOffsets(ctx, s.topic, s.cursorTopic)) })
	asking.Go(func() { v.begins, errs[2] = s.offsets(s.admin.ListStartOffsets(ctx, s.cursorTopic)) })
	asking.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return v, nil
}

// offsets returns what the broker has listed.
func (s *exact) offsets(listed kadm.ListedOffsets, err error) (map[place]int64, error) {
	out := map[place]int64{}
	listed.Each(func(o kadm.ListedOffset) {
		out[place{o.Topic, o.Partition}] = o.Offset
		if err == nil && o.Err != nil {
			err = s.explainOf(o.Topic, o.Err)
		}
	})
	return out, err
}

// writes reports whether sessions of ours write to a partition.
func (s *exact) writes(p place) bool { return p.topic == s.topic || p == s.cursorAt }

// hanging returns where a transaction of this producer is open below ends, after a moment in which that may pass.
func (s *exact) hanging(ctx context.Context, producer int64, v *survey) ([]place, error) {
	for patience := time.Now().Add(time.Second); ; {
		undecided := s.undecided(v)
		if len(undecided) == 0 {
			return nil, nil
		}
		open, known := s.openOf(ctx, producer, undecided)
		if len(open) == 0 && known {
			return nil, nil // other producers', which are theirs to end
		}
		if time.Now().After(patience) {
			if !known {
				return undecided, nil // perhaps ours: aborting one of our own there does no harm
			}
			return open, nil
		}
		if err := wait(ctx); err != nil {
			return nil, err
		}
		if err := s.lookAgain(ctx, v); err != nil {
			return nil, err
		}
	}
}

// lookAgain asks again up to where all is decided.
func (s *exact) lookAgain(ctx context.Context, v *survey) (err error) {
	v.decided, err = s.offsets(s.admin.ListCommittedOffsets(ctx, s.topic, s.cursorTopic))
	return err
}

// undecided returns the partitions of ours in which somebody's transaction is open below ends.
func (s *exact) undecided(v *survey) (out []place) {
	for p, end := range v.ends {
		if s.writes(p) && v.decided[p] < end {
			out = append(out, p)
		}
	}
	return out
}

// openOf returns in which places the transaction is this producer's. known is false where the broker does not tell.
func (s *exact) openOf(ctx context.Context, producer int64, places []place) (open []place, known bool) {
	var set kadm.TopicsSet
	for _, p := range places {
		set.Add(p.topic, p.partition)
	}
	described, err := s.admin.DescribeProducers(ctx, set)
	if err != nil {
		return nil, false
	}
	known = true
	answered := 0
	described.EachPartition(func(p kadm.DescribedProducersPartition) {
		answered++
		known = known && p.Err == nil
		for _, d := range p.ActiveProducers {
			if d.ProducerID == producer && d.CurrentTxnStartOffset >= 0 {
				open = append(open, place{p.Topic, p.Partition})
			}
		}
	})
	return open, known && answered == len(places)
}

// mayAbort says why what hangs must not be aborted: the far cursor is beyond it, so its transaction was committed and only the
// marker in this partition is missing. To abort it would lose its records.
func (s *exact) mayAbort(ctx context.Context, producer int64, open []place, v *survey) error {
	if slices.Contains(open, s.cursorAt) {
		return nil // the cursor hangs with the records, and goes with them
	}
	far, err := s.readCursor(ctx, v)
	if err != nil {
		return err
	}
	for _, p := range open {
		err := s.read(ctx, p, v.decided[p], v.ends[p], kgo.ReadUncommitted(), func(r *kgo.Record) error {
			at := recordCursor(r)
			if r.ProducerID != producer || at.Epoch != far.Epoch || at.Seq == 0 || at.Seq > far.Seq {
				return nil
			}
			return uplink.Config(fmt.Errorf("a crash of a broker left records in %v undecided, from offset %d, that the far cursor %v counts as stored "+
				"(want their transaction committed there by hand: to abort it would lose them)", p, r.Offset, far))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// recordCursor returns the cursor behind a record of ours, by its headers.
func recordCursor(r *kgo.Record) (at uplink.FarCursor) {
	for _, h := range r.Headers {
		n, err := strconv.ParseUint(string(h.Value), 10, 64)
		switch {
		case err != nil:
		case h.Key == "gw-epoch":
			at.Epoch = n
		case h.Key == "gw-seq":
			at.Seq = n
		}
	}
	return at
}

// abortIn begins a transaction in each place and aborts it: the marker ends the one that hangs as well.
func (s *exact) abortIn(ctx context.Context, places []place) error {
	if err := s.client.BeginTransaction(); err != nil {
		return err
	}
	tx := &transaction{}
	for _, p := range places {
		s.put(tx, &kgo.Record{Topic: p.topic, Partition: p.partition, Key: []byte(s.key)})
	}
	flushed := s.client.Flush(ctx)
	ended := s.client.EndTransaction(ctx, kgo.TryAbort)
	_, err := tx.faults()
	for _, e := range []error{err, flushed, ended} {
		if e != nil {
			return e
		}
	}
	return nil
}
