package kafka_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"edgegateway/pipeline"
	"edgegateway/test/rig"
	"edgegateway/uplink"
	"edgegateway/uplink/kafka"
)

// A crash of a broker can leave a transaction open in a partition that its coordinator holds for ended. Here it is made: the broker
// does not ask the coordinator, and a batch is written with the producer's id behind its back.
func TestATransactionThatHangsIsEndedBeforeAnythingIsCommitted(t *testing.T) {
	const plain = `listener.name.sasl.sasl.enabled.mechanisms=PLAIN
listener.name.sasl.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required user_gw="open" user_alter="open" user_action="open";`
	server := rig.KafkaWith(t, rig.KafkaOptions{
		Listeners: map[string]string{"SASL": "SASL_PLAINTEXT"},
		Settings: []string{
			"transaction.partition.verification.enable=false", plain,
			"authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer", "allow.everyone.if.no.acl.found=true",
		},
	})
	t.Run("rights", func(t *testing.T) { rights(t, server.Addr) }) // here, because a broker takes long to start
	prepare(t, server.Addr, "hangs")
	s := open(t, server.Addr, "hangs")
	wantAcks(t, send(t, s, records(1, 50)))
	s.Close()
	hang(t, server.Addr, "gw/gw1/line/far", place{"hangs-gw1", 0}, data(51))
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
	t.Run("decided", func(t *testing.T) {
		for _, state := range hangingStates {
			t.Run(state.name, func(t *testing.T) {
				t.Parallel()
				h := newHanging(t, server.Addr, "decided", state)
				h.mended(t, h.driver, byMarkers)
			})
		}
	})
	t.Run("killed in the middle", func(t *testing.T) { killedWhileMending(t, server.Addr) })
	t.Run("the broker killed in the middle", func(t *testing.T) { brokerKilledWhileMending(t, server) })
	t.Run("a marker that comes late", func(t *testing.T) { lateMarker(t, server.Addr) })
	t.Run("who may", func(t *testing.T) { whoMayMend(t, server) })
}

// hangingState is what a crash of the broker has left of a transaction with the records 51 to 60, and what is right then.
type hangingState struct {
	name   string
	acked  uint64  // of the gateway's log
	data   []int32 // the partitions in which records hang
	cursor uint64  // the cursor that hangs; 0 for none
	before func(t *testing.T, h *hangingPlace)
	far    uint64 // as it is to be in the end
	seen   int    // records
}

var hangingStates = []hangingState{
	{name: "of which nobody has heard", acked: 50, data: []int32{0, 1}, cursor: 60, far: 50, seen: 50},
	{name: "that the broker has confirmed", acked: 60, data: []int32{0, 1}, cursor: 60, far: 60, seen: 52},
	{name: "of which the data is visible", acked: 50, cursor: 60, far: 60, seen: 60, before: func(t *testing.T, h *hangingPlace) {
		withoutCursor(t, h.driver, h.env, records(51, 60))
	}},
	{name: "of which some data is visible", acked: 50, data: []int32{0}, cursor: 60, far: 60, seen: 61, before: func(t *testing.T, h *hangingPlace) {
		withoutCursor(t, h.driver, h.env, records(51, 60)) // they have one key, and go to partition 1
	}},
	{name: "of which the cursor is visible", acked: 50, data: []int32{0, 1}, far: 60, seen: 62, before: func(t *testing.T, h *hangingPlace) {
		h.send(t, 51, 60)
	}},
	// This is what a crash leaves of a transaction of ours that ended what hung.
	{
		name: "of which the cursor is visible, and another hangs", acked: 50, data: []int32{0, 1}, cursor: 60, far: 60, seen: 62,
		before: func(t *testing.T, h *hangingPlace) { h.send(t, 51, 60) },
	},
}

// hangingPlace has such a state in topics of its own.
type hangingPlace struct {
	hangingState
	addr   string
	topic  string
	env    uplink.Env
	driver kafka.Exactly
	log    bytes.Buffer
}

func newHanging(t *testing.T, addr, prefix string, state hangingState) *hangingPlace {
	t.Helper()
	name := strings.NewReplacer(" ", "-", ",", "").Replace(prefix + " " + state.name)
	h := &hangingPlace{hangingState: state, addr: addr, topic: name + "-gw1", env: exactEnv()}
	admin := kadm.NewClient(connect(t, addr))
	if _, err := admin.CreateTopic(t.Context(), 2, -1, nil, h.topic); err != nil {
		t.Fatal(err)
	}
	compact := "compact"
	if _, err := admin.CreateTopic(t.Context(), 1, -1, map[string]*string{"cleanup.policy": &compact}, h.topic+"-cursors"); err != nil {
		t.Fatal(err)
	}
	brokers, err := admin.ListBrokers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range brokers { // each knows of the topics some time after they are made
		one := kadm.NewClient(connect(t, fmt.Sprintf("%s:%d", b.Host, b.Port)))
		for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			topics, err := one.ListTopics(t.Context(), h.topic, h.topic+"-cursors")
			if err = errors.Join(err, topics.Error()); err == nil && len(topics) == 2 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("the topics do not come: %v", err)
			}
		}
	}
	h.env.Uplink, h.env.Acked, h.env.Log = name, state.acked, slog.New(slog.NewTextHandler(&h.log, nil))
	h.driver = exactly(addr, h.topic)
	h.send(t, 1, 50)
	if state.before != nil {
		state.before(t, h)
	}
	id := "gw/gw1/line/" + name
	for _, partition := range state.data {
		hang(t, addr, id, place{h.topic, partition}, data(51+int(partition)))
	}
	if state.cursor > 0 {
		hang(t, addr, id, place{h.topic + "-cursors", 0}, kmsg.Record{
			Key: []byte("gw1/line/" + name), Value: fmt.Appendf(nil, `{"epoch":7,"seq":%d}`, state.cursor),
		})
	}
	return h
}

// mendOnNodes has the leaders be on this and that node.
func mendOnNodes(t *testing.T, addr string) {
	admin := kadm.NewClient(connect(t, addr))
	verify := func(op kadm.AlterConfig) {
		done, err := admin.AlterBrokerConfigs(t.Context(), []kadm.AlterConfig{op})
		if err != nil || done[0].Err != nil {
			t.Fatalf("settings: %v %+v", err, done)
		}
	}
	const setting, off = "transaction.partition.verification.enable", "false"
	verify(kadm.AlterConfig{Op: kadm.SetConfig, Name: setting, Value: kadm.StringPtr(off)})
	defer verify(kadm.AlterConfig{Op: kadm.DeleteConfig, Name: setting})
	for _, state := range hangingStates[1:4] {
		t.Run(state.name, func(t *testing.T) {
			h := newHanging(t, addr, "nodes", state)
			h.kill(t, h.driver, 1, nil)
			how := byMarkers
			if len(state.data) == 0 {
				how = ""
			}
			h.mended(t, h.driver, how)
		})
	}
}

func (h *hangingPlace) send(t *testing.T, from, to uint64) {
	t.Helper()
	s := openWith(t, h.driver, h.env)
	wantAcks(t, send(t, s, records(from, to)))
	s.Close()
}

// mended opens a session and wants what hangs to be ended the right way, by_markers or not as is said.
func (h *hangingPlace) mended(t *testing.T, driver kafka.Exactly, how string) {
	t.Helper()
	far, seen, end := h.open(t, driver)
	if far != h.far || seen != h.seen {
		t.Errorf("the far cursor is %d and %d records are seen, want %d and %d", far, seen, h.far, h.seen)
	}
	if want := h.seen + 100 - int(h.far); end != want {
		t.Errorf("%d records are seen in the end, want %d", end, want)
	}
	if !strings.Contains(h.log.String(), how) {
		t.Errorf("the log says %q, want %s", h.log.String(), how)
	}
}

// open opens a session and sends all behind its cursor. It returns that, the records that were seen then, and those in the end.
func (h *hangingPlace) open(t *testing.T, driver kafka.Exactly) (far uint64, seen, end int) {
	t.Helper()
	s := openWith(t, driver, h.env)
	far = s.(uplink.Resumer).Far().Seq
	seen = seenNow(t, h.addr, h.topic)
	wantAcks(t, send(t, s, records(far+1, 100)))
	s.Close()
	return far, seen, seenNow(t, h.addr, h.topic)
}

var errKilled = errors.New("killed")

// kill has a session end at a step of the repair. It returns how many steps there were.
func (h *hangingPlace) kill(t *testing.T, driver kafka.Exactly, at int, also func()) (steps int) {
	t.Helper()
	driver.Mending = func() error {
		if steps++; steps <= at {
			return nil
		}
		if also != nil {
			also()
		}
		return errKilled
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for {
		s, err := driver.Open(ctx, h.env)
		switch {
		case err == nil:
			s.Close()
			return steps
		case errors.Is(err, errKilled):
			return steps
		case steps > 0 || ctx.Err() != nil:
			t.Fatalf("Open = %v in the middle of the repair", err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// killedWhileMending ends the session at each step of the repair. The next one does neither double nor lose.
func killedWhileMending(t *testing.T, addr string) {
	for _, state := range hangingStates {
		places := len(state.data)
		if state.cursor > 0 {
			places++
		}
		for at := range places + 1 {
			name := fmt.Sprintf("%d of %d", at, places)
			t.Run(state.name+", "+name, func(t *testing.T) {
				t.Parallel()
				h := newHanging(t, addr, name, state)
				if steps := h.kill(t, h.driver, at, nil); steps != at+1 {
					t.Fatalf("the repair has ended after %d steps, want it stopped at %d", steps, at+1)
				}
				how := byMarkers
				if at == places { // nothing is left to be done
					how = ""
				}
				h.mended(t, h.driver, how)
			})
		}
	}
	// The negative control: a transaction that is to end what hangs and is fenced before its commit.
	for _, i := range []int{1, 2, 4} {
		state := hangingStates[i]
		t.Run("control, "+state.name, func(t *testing.T) {
			t.Parallel()
			h := newHanging(t, addr, "control", state)
			h.driver.Unmarked = true
			if steps := h.kill(t, h.driver, 1, nil); steps != 2 {
				t.Fatalf("the repair has ended after %d steps, want it stopped at 2", steps)
			}
			far, seen, end := h.open(t, h.driver)
			t.Logf("without markers: the far cursor is %d, %d records are seen, %d in the end; right are %d, %d and %d",
				far, seen, end, h.far, h.seen, h.seen+100-int(h.far))
			if far == h.far && seen == h.seen {
				t.Error("nothing is lost or doubled without markers: this run sees nothing")
			}
		})
	}
}

// brokerKilledWhileMending has the broker end with the session.
func brokerKilledWhileMending(t *testing.T, server *rig.Server) {
	for _, at := range []int{1, 2} { // between two markers
		state := hangingStates[1]
		name := fmt.Sprintf("the broker %d of 3", at)
		t.Run(fmt.Sprintf("%s, %d of 3", state.name, at), func(t *testing.T) {
			h := newHanging(t, server.Addr, name, state)
			h.kill(t, h.driver, at, func() {
				server.Kill9()
				server.Start()
			})
			h.mended(t, h.driver, byMarkers)
		})
	}
}

// lateMarker has a marker of an older session come when a newer one has written.
func lateMarker(t *testing.T, addr string) {
	h := newHanging(t, addr, "late", hangingStates[1])
	h.mended(t, h.driver, byMarkers)
	admin := kadm.NewClient(connect(t, addr))
	var at kadm.TopicsSet
	at.Add(h.topic+"-cursors", 0)
	described, err := admin.DescribeProducers(t.Context(), at)
	if err != nil || len(described.SortedProducers()) != 1 {
		t.Fatalf("producers: %v %+v", err, described)
	}
	last := described.SortedProducers()[0]
	for _, epoch := range []int16{last.ProducerEpoch - 1, last.ProducerEpoch - 2} {
		var to kadm.TopicsSet
		to.Add(last.Topic, 0)
		answers, err := admin.WriteTxnMarkers(t.Context(), kadm.TxnMarkers{
			ProducerID: last.ProducerID, ProducerEpoch: epoch, Commit: false, CoordinatorEpoch: last.CoordinatorEpoch, Topics: to,
		})
		if err != nil || !errors.Is(answers.SortedPartitions()[0].Err, kerr.InvalidProducerEpoch) {
			t.Errorf("a marker of the epoch %d where %d has written: %v %+v, want it refused", epoch, last.ProducerEpoch, err, answers)
		}
	}
}

// whoMayMend has users with this and that right, and a broker that does not know how.
func whoMayMend(t *testing.T, server *rig.Server) {
	admin := kadm.NewClient(connect(t, server.Addr))
	for _, right := range []struct {
		user string
		op   kadm.ACLOperation
	}{{"ANONYMOUS", kadm.OpAll}, {"alter", kadm.OpAlter}, {"action", kadm.OpClusterAction}} { // the first is the broker itself
		made, err := admin.CreateACLs(t.Context(), kadm.NewACLs().Clusters().Operations(right.op).Allow("User:"+right.user).AllowHosts("*"))
		if err != nil || made[0].Err != nil {
			t.Fatalf("allow: %v %+v", err, made)
		}
	}
	by := func(name, how string, state hangingState, change func(*kafka.Config)) {
		t.Run(name+", "+state.name, func(t *testing.T) {
			t.Parallel()
			h := newHanging(t, server.Addr, name, state)
			c := *h.driver.Config
			change(&c)
			h.mended(t, kafka.Exactly{Config: &c}, how)
		})
	}
	as := func(user string) func(*kafka.Config) {
		return func(c *kafka.Config) {
			c.Brokers, c.SASL, c.User, c.Password = []string{server.At["SASL"]}, "plain", user, pipeline.NewSecret("open")
		}
	}
	by("alter", byMarkers, hangingStates[1], as("alter"))
	by("action", byMarkers, hangingStates[1], as("action"))
	for _, state := range hangingStates {
		by("neither", byTransaction, state, as("gw"))
	}
	t.Run("a user that may not read", func(t *testing.T) {
		t.Parallel()
		h := newHanging(t, server.Addr, "unread", hangingStates[4])
		topic := kadm.NewACLs().Topics(h.topic).ResourcePatternType(kadm.ACLPatternLiteral)
		all, denied := *topic, *topic
		all.Operations(kadm.OpAll).Allow("User:*").AllowHosts("*")
		denied.Operations(kadm.OpRead).Deny("User:gw").DenyHosts("*")
		for _, right := range []*kadm.ACLBuilder{&all, &denied} {
			if made, err := admin.CreateACLs(t.Context(), right); err != nil || made[0].Err != nil {
				t.Fatalf("rights: %v %+v", err, made)
			}
		}
		c := *h.driver.Config
		as("gw")(&c)
		s, err := kafka.Exactly{Config: &c}.Open(t.Context(), h.env)
		if err == nil {
			s.Close()
			t.Fatal("a session has opened")
		}
		t.Logf("in plain words: %v", err)
		if !uplink.IsConfig(err) || !strings.Contains(err.Error(), "may not read topic "+h.topic) {
			t.Errorf("Open = %v, want it to name the right that is missing", err)
		}
		if gone, err := admin.DeleteACLs(t.Context(), &denied); err != nil || gone[0].Err != nil {
			t.Fatalf("rights: %v %+v", err, gone)
		}
		h.mended(t, kafka.Exactly{Config: &c}, byTransaction)
	})
	older := func(front rig.Front, version int16) func(*kafka.Config) {
		olderFront(t, front, int16(kmsg.WriteTxnMarkers), version)
		return func(c *kafka.Config) { c.Brokers = []string{front.At} }
	}
	by("a broker that does not know how", byTransaction, hangingStates[1], older(server.Fronts[0], -1))
	by("a broker that may abort whatever is said", byTransaction, hangingStates[1], older(server.Fronts[1], 1))
}

// olderFront has a broker say that it knows a request up to a version only, or below 0 that it does not know it.
func olderFront(t *testing.T, front rig.Front, key, version int16) {
	t.Helper()
	l, err := net.Listen("tcp", front.At)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() }) // ends the loop below
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			broker, err := net.Dial("tcp", front.To)
			if err != nil {
				_ = c.Close()
				continue
			}
			var asked sync.Map // correlation ids of ApiVersions, and the version of each
			frames := func(from, to net.Conn, change func(frame []byte) []byte) {
				defer func() { _, _ = from.Close(), to.Close() }() // and so the other direction ends
				for {
					var size [4]byte
					if _, err := io.ReadFull(from, size[:]); err != nil {
						return
					}
					frame := make([]byte, binary.BigEndian.Uint32(size[:]))
					if _, err := io.ReadFull(from, frame); err != nil {
						return
					}
					frame = change(frame)
					if _, err := to.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(frame))), frame...)); err != nil {
						return
					}
				}
			}
			go frames(c, broker, func(frame []byte) []byte {
				if kmsg.Key(binary.BigEndian.Uint16(frame)) == kmsg.ApiVersions {
					asked.Store(string(frame[4:8]), int16(binary.BigEndian.Uint16(frame[2:])))
				}
				return frame
			})
			go frames(broker, c, func(frame []byte) []byte {
				v, ok := asked.Load(string(frame[:4]))
				if !ok {
					return frame
				}
				told := kmsg.ApiVersionsResponse{Version: v.(int16)}
				if told.ReadFrom(frame[4:]) != nil {
					return frame
				}
				told.ApiKeys = slices.DeleteFunc(told.ApiKeys, func(k kmsg.ApiVersionsResponseApiKey) bool { return version < 0 && k.ApiKey == key })
				for i := range told.ApiKeys {
					if k := &told.ApiKeys[i]; k.ApiKey == key {
						k.MinVersion, k.MaxVersion = min(k.MinVersion, version), version
					}
				}
				return told.AppendTo(frame[:4:4])
			})
		}
	}()
}

const byMarkers, byTransaction = "by_markers=true", "by_markers=false"

// withoutCursor commits records and ends before the cursor is written.
func withoutCursor(t *testing.T, driver kafka.Exactly, env uplink.Env, recs []uplink.Record) {
	t.Helper()
	committed, goOn := make(chan struct{}), make(chan struct{})
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

type place struct {
	topic     string
	partition int32
}

// hang writes a transactional record to a partition while its coordinator knows of no transaction.
func hang(t *testing.T, addr, id string, to place, record kmsg.Record) {
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
	partition.Partition, partition.Records = to.partition, raw
	of := kmsg.NewProduceRequestTopic()
	of.Topic, of.Partitions = to.topic, []kmsg.ProduceRequestTopicPartition{partition}
	write := kmsg.NewPtrProduceRequest()
	write.TransactionID, write.Acks, write.TimeoutMillis, write.Topics = &id, -1, 5000, []kmsg.ProduceRequestTopic{of}
	topics, err := kadm.NewClient(c).ListTopics(t.Context(), to.topic)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := c.Broker(int(topics[to.topic].Partitions[to.partition].Leader)).Request(t.Context(), write)
	if err != nil {
		t.Fatalf("write: %v", err)
	}
	if p := answer.(*kmsg.ProduceResponse).Topics[0].Partitions[0]; p.ErrorCode != 0 {
		t.Fatalf("write: error %d", p.ErrorCode)
	}
}

// seenNow returns how many records a read-committed consumer sees, in all partitions. Where a transaction is open it waits for a moment.
func seenNow(t *testing.T, addr, topic string) (seen int) {
	t.Helper()
	admin := kadm.NewClient(connect(t, addr))
	var ends kadm.ListedOffsets
	for patience := time.Now().Add(2 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		all, err := admin.ListEndOffsets(t.Context(), topic)
		if err == nil {
			ends, err = admin.ListCommittedOffsets(t.Context(), topic)
		}
		if err = errors.Join(err, all.Error(), ends.Error()); err != nil {
			t.Fatal(err)
		}
		open := false
		all.Each(func(o kadm.ListedOffset) {
			decided, _ := ends.Lookup(topic, o.Partition)
			open = open || decided.Offset < o.Offset
		})
		if !open || time.Now().After(patience) {
			break
		}
	}
	left := map[int32]int64{}
	from := map[int32]kgo.Offset{}
	ends.Each(func(o kadm.ListedOffset) {
		if o.Offset > 0 {
			left[o.Partition], from[o.Partition] = o.Offset, kgo.NewOffset().AtStart()
		}
	})
	c := connect(t, addr, kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: from}))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for len(left) > 0 {
		fetches := c.PollFetches(ctx)
		if ctx.Err() != nil {
			t.Fatalf("%d records are seen, and not the end of %v", seen, left)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if end, ok := left[r.Partition]; ok && r.Offset+1 >= end { // what is decided later than we asked comes behind it
				delete(left, r.Partition)
			} else if !ok {
				return
			}
			if !r.Attrs.IsControl() {
				seen++
			}
		})
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
