package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"edgegateway/test/rig"
)

// entry is one thing that a broker holds, in the order in which the broker gives it back.
type entry struct {
	ID      string          `json:"id"`
	Epoch   uint64          `json:"epoch"`
	Seq     uint64          `json:"seq"`
	Time    time.Time       `json:"time"`
	Source  string          `json:"source"`
	Topic   string          `json:"topic"`
	Value   json.RawMessage `json:"value"`
	Quality string          `json:"quality"`
	Reason  string          `json:"reason"`

	raw      string
	outside  string    // record id beside the payload: header or field
	appended time.Time // by the broker's clock
}

func parseEntry(payload, outside string, appended time.Time) (entry, error) {
	e := entry{raw: payload, outside: outside, appended: appended}
	if err := json.Unmarshal([]byte(payload), &e); err != nil {
		return e, fmt.Errorf("%w in %.200q", err, payload)
	}
	return e, nil
}

// readKafka reads a topic of one partition from its start to its end, as a consumer that reads committed records only.
func readKafka(t *testing.T, address, topic string) []entry {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(address), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}))
	if err != nil {
		t.Fatalf("kafka consumer: %v", err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	ends, err := kadm.NewClient(client).ListCommittedOffsets(ctx, topic)
	if err != nil {
		t.Fatalf("kafka's end offset: %v", err)
	}
	end, _ := ends.Lookup(topic, 0)
	var entries []entry
	for next := int64(0); next < end.Offset; {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			t.Fatalf("read kafka: %v", err)
		}
		for _, r := range fetches.Records() {
			outside := ""
			for _, h := range r.Headers {
				if h.Key == "record-id" {
					outside = string(h.Value)
				}
			}
			e, err := parseEntry(string(r.Value), outside, r.Timestamp)
			if err != nil {
				t.Fatalf("kafka's record at offset %d: %v", r.Offset, err)
			}
			entries, next = append(entries, e), r.Offset+1
		}
	}
	return entries
}

func readNATS(t *testing.T, address, stream string) []entry {
	t.Helper()
	nc, err := nats.Connect("nats://" + address)
	if err != nil {
		t.Fatalf("nats consumer: %v", err)
	}
	defer nc.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatalf("nats consumer: %v", err)
	}
	s, err := js.Stream(ctx, stream)
	if err != nil {
		t.Fatalf("nats stream: %v", err)
	}
	last := s.CachedInfo().State.LastSeq
	consumer, err := s.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverAllPolicy})
	if err != nil {
		t.Fatalf("nats consumer: %v", err)
	}
	var entries []entry
	if last == 0 {
		return entries
	}
	messages, err := consumer.Messages()
	if err != nil {
		t.Fatalf("nats consumer: %v", err)
	}
	defer messages.Stop()
	for {
		msg, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			t.Fatalf("read nats after %d entries: %v", len(entries), err)
		}
		meta, err := msg.Metadata()
		if err != nil {
			t.Fatalf("read nats: %v", err)
		}
		e, err := parseEntry(string(msg.Data()), msg.Headers().Get(nats.MsgIdHdr), meta.Timestamp)
		if err != nil {
			t.Fatalf("nats' message %d: %v", meta.Sequence.Stream, err)
		}
		entries = append(entries, e)
		if meta.Sequence.Stream >= last {
			return entries
		}
	}
}

func readRedis(t *testing.T, address, key string) []entry {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: address})
	defer func() { _ = client.Close() }() // only read
	var entries []entry
	for from := "-"; ; {
		page, err := client.XRangeN(t.Context(), key, from, "+", 1000).Result()
		if err != nil {
			t.Fatalf("read redis: %v", err)
		}
		for _, m := range page {
			payload, _ := m.Values["payload"].(string)
			outside, _ := m.Values["id"].(string)
			e, err := parseEntry(payload, outside, time.Time{})
			if err != nil {
				t.Fatalf("redis' entry %s: %v", m.ID, err)
			}
			if want := fmt.Sprintf("%d-%d", e.Epoch, e.Seq); m.ID != want {
				t.Errorf("redis' entry has the id %s (want %s)", m.ID, want)
			}
			entries = append(entries, e)
			from = "(" + m.ID
		}
		if len(page) == 0 {
			return entries
		}
	}
}

// makeTopic makes a topic of one partition whose records bear the time at which the broker appended them, so that a
// repetition can be matched with the kill before it.
func makeTopic(t *testing.T, address, topic string) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(address))
	if err != nil {
		t.Fatalf("kafka client: %v", err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	logAppend := "LogAppendTime"
	answer, err := kadm.NewClient(client).CreateTopic(ctx, 1, 1, map[string]*string{"message.timestamp.type": &logAppend}, topic)
	if err != nil || answer.Err != nil {
		t.Fatalf("make topic %s: %v, %v", topic, err, answer.Err)
	}
}

// makeStream makes a JetStream stream.
func makeStream(t *testing.T, address, stream, subjects string) {
	t.Helper()
	nc, err := nats.Connect("nats://" + address)
	if err != nil {
		t.Fatalf("nats client: %v", err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err == nil {
		_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{
			Name: stream, Subjects: []string{subjects}, Storage: jetstream.FileStorage, Duplicates: 10 * time.Minute,
		})
	}
	if err != nil {
		t.Fatalf("make stream %s: %v", stream, err)
	}
}

// brokers are the three far brokers.
type brokers struct {
	kafka, nats, redis *rig.Server
}

const (
	gatewayID   = "e2e"
	streamName  = "main"
	kafkaTopic  = "e2e.main"
	natsStream  = "E2E"
	natsSubject = "edge.e2e.main"
	redisKey    = "edge:e2e:main"
)

func startBrokers(t *testing.T) *brokers {
	t.Helper()
	b := &brokers{
		kafka: rig.Kafka(t),
		nats:  rig.NATS(t, rig.NATSOptions{SyncAlways: true}),
		redis: rig.Redis(t),
	}
	makeTopic(t, b.kafka.Addr, kafkaTopic)
	makeStream(t, b.nats.Addr, natsStream, natsSubject)
	return b
}

// uplinks is the part of a config that leads to all three.
func (b *brokers) uplinks() string {
	return fmt.Sprintf(`
uplinks:
  kafka: {driver: kafka, brokers: ["%s"], topic: %s}
  nats: {driver: nats, servers: ["nats://%s"], stream: %s, subject: %s}
  redis: {driver: redis, address: "%s"}
`, b.kafka.Addr, kafkaTopic, b.nats.Addr, natsStream, natsSubject, b.redis.Addr)
}

func (b *brokers) read(t *testing.T) map[string][]entry {
	t.Helper()
	return map[string][]entry{
		"kafka": readKafka(t, b.kafka.Addr, kafkaTopic),
		"nats":  readNATS(t, b.nats.Addr, natsStream),
		"redis": readRedis(t, b.redis.Addr, redisKey),
	}
}
