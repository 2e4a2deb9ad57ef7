package kafka_test

import (
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"edgegateway/test/rig"
)

// A crash of a broker can leave a transaction open in a partition that its coordinator holds for ended. Here it is made: the broker
// does not ask the coordinator, and a batch is written with the producer's id behind its back.
func TestATransactionThatHangsIsEndedBeforeAnythingIsCommitted(t *testing.T) {
	server := rig.Kafka(t, "transaction.partition.verification.enable=false")
	prepare(t, server.Addr, "hangs")
	s := open(t, server.Addr, "hangs")
	wantAcks(t, send(t, s, records(1, 50)))
	s.Close()
	hang(t, server.Addr, "gw/gw1/line/far", "hangs-gw1")
	if seen := seenNow(t, server.Addr, "hangs-gw1"); seen != 50 {
		t.Fatalf("%d records are seen, want 50: nothing hangs", seen)
	}
	s = open(t, server.Addr, "hangs")
	wantAcks(t, send(t, s, records(51, 100)))
	s.Close()
	stored := readCommitted(t, server.Addr, "hangs")
	for _, r := range stored {
		if r.Payload == hanging {
			t.Error("the record that hung has become visible")
		}
	}
	if len(stored) != 100 {
		t.Errorf("%d records are seen, want 100", len(stored))
	}
}

const hanging = "hanging"

// hang writes a transactional record to partition 0 while its coordinator knows of no transaction.
func hang(t *testing.T, addr, id, topic string) {
	t.Helper()
	c := connect(t, addr, kgo.MaxVersions(kversion.V3_6_0())) // newer requests begin a transaction by themselves
	begin := kmsg.NewPtrInitProducerIDRequest()
	begin.TransactionalID, begin.TransactionTimeoutMillis = &id, 45_000
	producer, err := begin.RequestWith(t.Context(), c)
	for err == nil && errors.Is(kerr.ErrorForCode(producer.ErrorCode), kerr.ConcurrentTransactions) { // the last is still being ended
		time.Sleep(20 * time.Millisecond)
		producer, err = begin.RequestWith(t.Context(), c)
	}
	if err != nil || producer.ErrorCode != 0 {
		t.Fatalf("producer id: %v %+v", err, producer)
	}
	now := time.Now().UnixMilli()
	record := kmsg.Record{Key: []byte("k"), Value: []byte(hanging)}
	record.Length = int32(len(record.AppendTo(nil)) - 1) // without its own first byte
	batch := kmsg.RecordBatch{
		PartitionLeaderEpoch: -1, Magic: 2, Attributes: 1 << 4, FirstTimestamp: now, MaxTimestamp: now,
		ProducerID: producer.ProducerID, ProducerEpoch: producer.ProducerEpoch, NumRecords: 1, Records: record.AppendTo(nil),
	}
	batch.Length = int32(len(batch.AppendTo(nil)) - 12)
	raw := batch.AppendTo(nil)
	binary.BigEndian.PutUint32(raw[17:], crc32.Checksum(raw[21:], crc32.MakeTable(crc32.Castagnoli)))
	partition := kmsg.NewProduceRequestTopicPartition()
	partition.Records = raw
	of := kmsg.NewProduceRequestTopic()
	of.Topic, of.Partitions = topic, []kmsg.ProduceRequestTopicPartition{partition}
	write := kmsg.NewPtrProduceRequest()
	write.TransactionID, write.Acks, write.TimeoutMillis, write.Topics = &id, -1, 5000, []kmsg.ProduceRequestTopic{of}
	answer, err := c.Broker(1).Request(t.Context(), write)
	if err != nil {
		t.Fatalf("write: %v", err)
	}
	if p := answer.(*kmsg.ProduceResponse).Topics[0].Partitions[0]; p.ErrorCode != 0 {
		t.Fatalf("write: error %d", p.ErrorCode)
	}
}

// seenNow returns how many records a read-committed consumer sees within a moment.
func seenNow(t *testing.T, addr, topic string) int {
	t.Helper()
	c := connect(t, addr, kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}))
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	seen := 0
	for ctx.Err() == nil {
		c.PollFetches(ctx).EachRecord(func(*kgo.Record) { seen++ })
	}
	return seen
}
