package kafka_test

import (
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"edgegateway/test/rig"
	"edgegateway/uplink"
)

// A crash of a broker can leave a transaction open in a partition that its coordinator holds for ended. Here it is made: the broker
// does not ask the coordinator, and a batch is written with the producer's id behind its back.
func TestATransactionThatHangsIsEndedBeforeAnythingIsCommitted(t *testing.T) {
	server := rig.Kafka(t, "transaction.partition.verification.enable=false",
		"authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer", "allow.everyone.if.no.acl.found=true")
	t.Run("rights", func(t *testing.T) { rights(t, server.Addr) }) // here, because a broker takes long to start
	prepare(t, server.Addr, "hangs")
	s := open(t, server.Addr, "hangs")
	wantAcks(t, send(t, s, records(1, 50)))
	s.Close()
	hang(t, server.Addr, "gw/gw1/line/far", "hangs-gw1", data(51))
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
	hang(t, server.Addr, "gw/gw1/line/far", "hangs-gw1", data(100)) // the cursor counts it as stored
	open(t, server.Addr, "hangs").Close()
	if seen := seenNow(t, server.Addr, "hangs-gw1"); seen != 101 {
		t.Errorf("%d records are seen, want 101: one hung that the cursor counts", seen)
	}
	t.Run("decided", func(t *testing.T) { hangsAsDecided(t, server.Addr) })
}

// hangsAsDecided has the cursor hang as well.
func hangsAsDecided(t *testing.T, addr string) {
	for _, test := range []struct {
		name    string
		acked   uint64
		visible bool // the data was committed, and the cursor hangs alone
		far     uint64
		seen    int
	}{
		{"of which nobody has heard", 50, false, 50, 50},
		{"that the broker has confirmed", 60, false, 60, 51},
		{"of which the data is visible", 50, true, 60, 60},
	} {
		t.Run(test.name, func(t *testing.T) {
			place := strings.ReplaceAll(test.name, " ", "-")
			prepare(t, addr, place)
			compact := "compact"
			admin := kadm.NewClient(connect(t, addr))
			if _, err := admin.CreateTopic(t.Context(), 1, 1, map[string]*string{"cleanup.policy": &compact}, place+"-gw1-cursors"); err != nil {
				t.Fatal(err)
			}
			env := exactEnv()
			env.Uplink, env.Acked = place, test.acked
			s := openWith(t, exactly(addr, place+"-gw1"), env)
			wantAcks(t, send(t, s, records(1, 50)))
			s.Close()
			id := "gw/gw1/line/" + place
			if test.visible {
				withoutCursor(t, addr, place, env, records(51, 60))
			} else {
				hang(t, addr, id, place+"-gw1", data(60))
			}
			hang(t, addr, id, place+"-gw1-cursors", kmsg.Record{Key: []byte("gw1/line/" + place), Value: []byte(`{"epoch":7,"seq":60}`)})
			s = openWith(t, exactly(addr, place+"-gw1"), env)
			if at := s.(uplink.Resumer).Far(); at.Seq != test.far {
				t.Errorf("the far cursor is %v, want %d", at, test.far)
			}
			if seen := seenNow(t, addr, place+"-gw1"); seen != test.seen {
				t.Errorf("%d records are seen, want %d", seen, test.seen)
			}
			wantAcks(t, send(t, s, records(test.far+1, 100)))
			s.Close()
			if seen := seenNow(t, addr, place+"-gw1"); seen != test.seen+100-int(test.far) {
				t.Errorf("%d records are seen at the end, want %d", seen, test.seen+100-int(test.far))
			}
		})
	}
}

// withoutCursor commits records and ends before the cursor is written.
func withoutCursor(t *testing.T, addr, place string, env uplink.Env, recs []uplink.Record) {
	t.Helper()
	committed, goOn := make(chan struct{}), make(chan struct{})
	driver := exactly(addr, place+"-gw1")
	driver.Outside, driver.Committed = true, func() { close(committed); <-goOn }
	s := openWith(t, driver, env)
	if err := s.Send(t.Context(), recs, func(uint64, uplink.Outcome) {}); err != nil {
		t.Fatal(err)
	}
	<-committed
	time.AfterFunc(200*time.Millisecond, func() { close(goOn) }) // once Close has ended the client
	s.Close()
}

const hanging = "hanging"

// data is a record of the stream.
func data(seq int) kmsg.Record {
	return kmsg.Record{Key: []byte("k"), Value: []byte(hanging), Headers: []kmsg.Header{
		{Key: "gw-epoch", Value: []byte("7")}, {Key: "gw-seq", Value: strconv.AppendInt(nil, int64(seq), 10)},
	}}
}

// hang writes a transactional record to partition 0 while its coordinator knows of no transaction.
func hang(t *testing.T, addr, id, topic string, record kmsg.Record) {
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

// rights wants what a user may not do said in plain words.
func rights(t *testing.T, addr string) {
	prepare(t, addr, "rights")
	admin := kadm.NewClient(connect(t, addr))
	deny := func(b *kadm.ACLBuilder, op kadm.ACLOperation) {
		b.ResourcePatternType(kadm.ACLPatternLiteral).Operations(op).Deny("User:ANONYMOUS").DenyHosts("*")
		made, err := admin.CreateACLs(t.Context(), b)
		if err == nil && len(made) != 1 {
			t.Fatalf("%d rights denied, want 1", len(made))
		}
		if err != nil || made[0].Err != nil {
			t.Fatalf("deny: %v %+v", err, made)
		}
	}
	deny(kadm.NewACLs().TransactionalIDs("gw/gw1/line/denied"), kadm.OpWrite)
	deny(kadm.NewACLs().Topics("forbidden"), kadm.OpDescribe)
	deny(kadm.NewACLs().Topics("read-only"), kadm.OpWrite)
	if _, err := admin.CreateTopic(t.Context(), 1, 1, nil, "read-only"); err != nil {
		t.Fatal(err)
	}
	compact := "compact"
	if _, err := admin.CreateTopic(t.Context(), 1, 1, map[string]*string{"cleanup.policy": &compact}, "read-only-cursors"); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ name, uplink, topic, cursors, want string }{
		{"the transactional id", "denied", "rights-gw1", "rights-cursors", "may not use the transactional id gw/gw1/line/denied"},
		{"the cursor topic", "far", "rights-gw1", "forbidden", "may not write to topic forbidden"},
		{"the topic", "far", "read-only", "read-only-cursors", "may not write to topic read-only"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := exactly(addr, test.topic).Config
			c.CursorTopic = test.cursors
			env := exactEnv()
			env.Uplink = test.uplink
			log := logOf(10)
			s := run(t, c, env, log, func(s uplink.Status) bool { return s.Config })
			t.Logf("in plain words: %s", s.Error)
			if !strings.Contains(s.Error, test.want) || log.Settled() > 0 {
				t.Errorf("%d settled, the status says %q, want %q", log.Settled(), s.Error, test.want)
			}
		})
	}
}
