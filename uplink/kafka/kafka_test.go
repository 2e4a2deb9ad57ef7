package kafka_test

import (
	"errors"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"edgegateway/pipeline"
	"edgegateway/test/rig"
	"edgegateway/uplink/kafka"
	"edgegateway/uplink/uplinktest"
)

func TestFaults(t *testing.T) { faults(t, rig.Kafka(t).Addr) }

func connect(t testing.TB, addr string, options ...kgo.Opt) *kgo.Client {
	t.Helper()
	c, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(addr), kgo.DisableClientMetrics()}, options...)...)
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
