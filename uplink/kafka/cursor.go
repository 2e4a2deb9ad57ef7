package kafka

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"edgegateway/uplink"
)

// cursorValue is the value of a cursor record. Its key is GATEWAY/STREAM/UPLINK, the newest one with a key counts.
type cursorValue struct {
	Epoch uint64 `json:"epoch"`
	Seq   uint64 `json:"seq"`
}

func (s *exact) cursorRecord(at uplink.FarCursor) *kgo.Record {
	value := fmt.Appendf(nil, `{"epoch":%d,"seq":%d}`, at.Epoch, at.Seq)
	return &kgo.Record{Topic: s.cursorTopic, Partition: byKey, Key: []byte(s.key), Value: value}
}

// makeCursorTopic makes the topic where it is missing, and checks that no cursor in it expires. Small segments are compacted
// soon, so that it stays small.
func (s *exact) makeCursorTopic(ctx context.Context, topic kadm.TopicDetail, settings []kadm.Config) error {
	if errors.Is(topic.Err, kerr.UnknownTopicOrPartition) {
		return s.createCursorTopic(ctx, s.admin)
	}
	if topic.Err != nil {
		return s.explainOf(s.cursorTopic, topic.Err)
	}
	return cursorsStay(s.cursorTopic, settings)
}

// cursorsStay says why cursors in a topic would expire; nil if they stay.
func cursorsStay(topic string, settings []kadm.Config) error {
	for _, c := range settings {
		if policy := c.MaybeValue(); c.Key == "cleanup.policy" && strings.Contains(policy, "delete") {
			return uplink.Config(fmt.Errorf("the cursor topic %s has cleanup.policy=%s, so cursors in it expire (want compact)", topic, policy))
		}
	}
	return nil
}

func (s *exact) createCursorTopic(ctx context.Context, admin *kadm.Client) error {
	settings := map[string]*string{}
	for key, value := range map[string]string{
		"cleanup.policy": "compact", "segment.bytes": "16777216", "segment.ms": "3600000", "min.cleanable.dirty.ratio": "0.1",
	} {
		settings[key] = &value
	}
	_, err := admin.CreateTopic(ctx, 8, -1, settings, s.cursorTopic)
	switch {
	case errors.Is(err, kerr.TopicAlreadyExists): // another gateway was faster
	case errors.Is(err, kerr.TopicAuthorizationFailed), errors.Is(err, kerr.ClusterAuthorizationFailed):
		return uplink.Config(fmt.Errorf("the cursor topic %s is missing and the user may not make it (want it created with cleanup.policy=compact, "+
			"or the right CREATE on it)", s.cursorTopic))
	case err != nil:
		return s.explainOf(s.cursorTopic, err)
	}
	for { // until the brokers know, and those that lead its partitions
		topics, err := admin.ListTopics(ctx, s.cursorTopic)
		if err == nil && topics[s.cursorTopic].Err == nil {
			ends, err := admin.ListEndOffsets(ctx, s.cursorTopic)
			if err == nil {
				err = ends.Error()
			}
			if !kerr.IsRetriable(err) { // what else is wrong shows where they are read
				return nil
			}
		}
		if err := wait(ctx); err != nil {
			return err
		}
	}
}

// findCursor returns the partition to which the key of our cursor belongs.
func (s *exact) findCursor(ends map[place]int64) place {
	partitions := 0
	for p := range ends {
		if p.topic == s.cursorTopic {
			partitions++
		}
	}
	record := s.cursorRecord(uplink.FarCursor{})
	return place{s.cursorTopic, int32(partitioner().ForTopic(s.cursorTopic).Partition(record, max(partitions, 1)))}
}

// readCursor returns the newest committed cursor. One that is not where its key belongs is from before the topic got more
// partitions.
func (s *exact) readCursor(ctx context.Context, v *survey) (uplink.FarCursor, error) {
	newest, err := s.newest(ctx, s.cursorAt, v)
	if err != nil {
		return uplink.FarCursor{}, err
	}
	if newest == nil {
		for p := range v.begins {
			if p == s.cursorAt {
				continue
			}
			r, err := s.newest(ctx, p, v)
			if err != nil {
				return uplink.FarCursor{}, err
			}
			if r != nil && (newest == nil || r.Timestamp.After(newest.Timestamp)) {
				newest = r
			}
		}
	}
	if newest == nil || newest.Value == nil {
		return uplink.FarCursor{}, nil
	}
	var value cursorValue
	if err := json.Unmarshal(newest.Value, &value); err != nil {
		return uplink.FarCursor{}, uplink.Config(fmt.Errorf("the cursor of %s in topic %s, partition %d, offset %d, cannot be read: %w (want what only this gateway writes there)",
			s.key, s.cursorTopic, newest.Partition, newest.Offset, err))
	}
	return uplink.FarCursor(value), nil
}

// newest returns the newest committed cursor record of ours in a partition, nil if there is none. It looks at the end first:
// a topic that many gateways share is not read whole.
func (s *exact) newest(ctx context.Context, p place, v *survey) (*kgo.Record, error) {
	begin, end := v.begins[p], v.ends[p]
	if begin >= end {
		return nil, nil
	}
	if err := s.waitDecided(ctx, p, v); err != nil {
		return nil, err
	}
	for window := int64(2000); ; window *= 10 {
		from := max(begin, end-window)
		r, err := s.scan(ctx, p, from, end)
		if err != nil || r != nil || from == begin {
			return r, err
		}
	}
}

// waitDecided waits until all that a partition of the cursor topic holds is decided: behind another gateway's open transaction may
// stand a cursor of ours, and a reader of what is committed does not see it.
func (s *exact) waitDecided(ctx context.Context, p place, v *survey) error {
	for v.decided[p] < v.ends[p] {
		if wait(ctx) != nil {
			return fmt.Errorf("a transaction of another gateway is open in %v, since offset %d: cursors behind it cannot be read yet "+
				"(it ends by itself within %v)", p, v.decided[p], transactionTimeout)
		}
		if err := s.lookAgain(ctx, v); err != nil {
			return err
		}
	}
	return nil
}

// scan reads from one offset up to another, and returns the last record of ours in there.
func (s *exact) scan(ctx context.Context, p place, from, end int64) (last *kgo.Record, err error) {
	err = s.read(ctx, p, from, end, kgo.ReadCommitted(), func(r *kgo.Record) error {
		if string(r.Key) == s.key {
			last = r
		}
		return nil
	})
	return last, err
}

// read gives a function the records from one offset up to another, until it returns an error.
func (s *exact) read(ctx context.Context, p place, from, end int64, level kgo.IsolationLevel, each func(*kgo.Record) error) error {
	client, err := kgo.NewClient(append(slices.Clip(s.options),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{p.topic: {p.partition: kgo.NewOffset().At(from)}}),
		kgo.FetchIsolationLevel(level),
		kgo.KeepControlRecords(), // the last offset is often one
		kgo.FetchMaxBytes(1<<20), kgo.FetchMaxPartitionBytes(1<<20), kgo.MaxConcurrentFetches(1), kgo.FetchMaxWait(time.Second),
	)...)
	if err != nil {
		return err
	}
	defer client.Close()
	for at := from; at < end; {
		fetches := client.PollFetches(ctx)
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("read %v, at offset %d of %d: %w", p, at, end, err)
		}
		if err := fetches.Err(); err != nil {
			if errors.Is(err, kerr.TopicAuthorizationFailed) {
				return uplink.Config(fmt.Errorf("the user may not read topic %s (want the right READ on it)", p.topic))
			}
			return s.explainOf(p.topic, err)
		}
		for _, r := range fetches.Records() {
			at = r.Offset + 1
			if r.Attrs.IsControl() || r.Offset >= end {
				continue
			}
			if err := each(r); err != nil {
				return err
			}
		}
	}
	return nil
}

// wait waits a moment before the broker is asked again.
func wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(50 * time.Millisecond):
		return nil
	}
}
