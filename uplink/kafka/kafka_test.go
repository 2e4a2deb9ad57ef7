package kafka_test

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"edgegateway/pipeline"
	"edgegateway/test/rig"
	"edgegateway/uplink"
	"edgegateway/uplink/kafka"
	"edgegateway/uplink/uplinktest"
)

func TestSuite(t *testing.T) {
	late := false
	var server *rig.Server
	if !uplinktest.IsChild() {
		server = rig.Kafka(t)
		t.Run("faults", func(t *testing.T) { faults(t, server.Addr) }) // here, because a broker takes long to start
	}
	uplinktest.Run(t, uplinktest.Suite{
		Server:  func(rig.TB) *rig.Server { return server },
		Prepare: prepare,
		Driver: func(addr, place string) uplink.Driver {
			return &kafka.Config{Brokers: []string{addr}, Topic: place + "-{gateway}", ClientID: "edge", Compression: "none"}
		},
		Read: read,
		Refused: func() pipeline.Message {
			if late = !late; late { // refused together with the whole batch that it is in
				return pipeline.Message{Topic: "boiler/late", Key: "boiler", Time: time.Now().AddDate(10, 0, 0)}
			}
			return pipeline.Message{Topic: "boiler/log", Key: "boiler", Value: pipeline.Bytes(bytes.Repeat([]byte("x"), 150_000))}
		},
		Doubles:       true,
		Interruptions: 1, // a start takes five seconds
	})
}

func connect(t testing.TB, addr string, options ...kgo.Opt) *kgo.Client {
	t.Helper()
	c, err := kgo.NewClient(append(options, kgo.SeedBrokers(addr), kgo.DisableClientMetrics())...)
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	t.Cleanup(c.Close)
	return c
}

func prepare(t testing.TB, addr, place string) {
	t.Helper()
	limit := "100000"
	settings := map[string]*string{"max.message.bytes": &limit}
	if place == "place-each-record-is-confirmed-once-and-in-order" {
		settings = nil // full batches
	}
	admin := kadm.NewClient(connect(t, addr))
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		_, err := admin.CreateTopic(t.Context(), 1, 1, settings, place+"-gw1")
		if err == nil {
			break
		}
		// A broker on a busy machine may have missed its heartbeats, and then none is there to hold the topic.
		if !errors.Is(err, kerr.InvalidReplicationFactor) || time.Now().After(deadline) {
			t.Fatalf("make the topic: %v", err)
		}
	}
	// The broker answers before it knows of the topic itself.
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		topics, err := admin.ListTopics(t.Context(), place+"-gw1")
		if err == nil && topics.Has(place+"-gw1") && topics.Error() == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the topic does not come: %v, %v", err, topics.Error())
		}
	}
}

func read(t testing.TB, addr, place string) []uplinktest.Stored {
	t.Helper()
	topic := place + "-gw1"
	c := connect(t, addr, kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()))
	ends, err := kadm.NewClient(c).ListEndOffsets(t.Context(), topic)
	if err != nil {
		t.Fatalf("read back: %v", err)
	}
	end, ok := ends.Lookup(topic, 0)
	if !ok || end.Err != nil {
		t.Fatalf("read back: end of %s: %+v", topic, end)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var out []uplinktest.Stored
	for int64(len(out)) < end.Offset {
		fetches := c.PollFetches(ctx)
		if ctx.Err() != nil {
			t.Fatalf("read back: %d of %d records", len(out), end.Offset)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			out = append(out, uplinktest.Stored{ID: header(r, "record-id"), Payload: string(r.Value)})
		})
	}
	return out
}

func header(r *kgo.Record, key string) string {
	for _, h := range r.Headers {
		if h.Key == key {
			return string(h.Value)
		}
	}
	return ""
}

func faults(t *testing.T, addr string) {
	admin := kadm.NewClient(connect(t, addr))
	at := func(topic string) *kafka.Config { return &kafka.Config{Brokers: []string{addr}, Topic: topic} }
	signIn := at("x")
	signIn.SASL, signIn.User, signIn.Password = "plain", "gw", pipeline.NewSecret("open")
	encrypted := at("x")
	encrypted.TLS.Enabled = true
	uplinktest.RunFaults(t, []uplinktest.Fault{
		{Name: "topic missing", Driver: at("missing"), Want: "topic missing does not exist", Config: true, Mend: func() {
			if _, err := admin.CreateTopic(t.Context(), 1, 1, nil, "missing"); err != nil {
				t.Fatal(err)
			}
		}},
		{Name: "sign-in that the broker does not know", Driver: signIn, Want: "does not offer this way to sign in", Config: true},
		{Name: "TLS to a broker without it", Driver: encrypted, Want: "TLS"},
	})
}
