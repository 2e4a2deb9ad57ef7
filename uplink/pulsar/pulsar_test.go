package pulsar_test

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	client "github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/prometheus/client_golang/prometheus"

	"edgegateway/pipeline"
	"edgegateway/test/rig"
	"edgegateway/uplink"
	"edgegateway/uplink/pulsar"
	"edgegateway/uplink/uplinktest"
)

const patient = 60 * time.Second

// maxMessage is the broker's limit in the tests.
const maxMessage = "262144"

// promised asks a delivery of a driver.
type promised struct {
	*pulsar.Config
	delivery uplink.Delivery
}

// Open implements uplink.Driver.
func (p promised) Open(ctx context.Context, env uplink.Env) (uplink.Session, error) {
	env.Promise.Delivery = p.delivery
	return p.Config.Open(ctx, env)
}

func at(addr, topic string) *pulsar.Config {
	return &pulsar.Config{Servers: []string{addr}, Topic: topic}
}

// shared is the broker of all tests that leave it as it was.
var shared struct {
	main   rig.Main
	broker *rig.PulsarServer
}

func TestMain(m *testing.M) {
	code := m.Run()
	shared.main.Close()
	os.Exit(code)
}

func broker() *rig.PulsarServer {
	if shared.broker == nil {
		shared.broker = start(&shared.main)
	}
	return shared.broker
}

func tooLarge() pipeline.Message {
	text := make([]byte, 300<<10) // as JSON it has a third more, and no compression gets it below the limit
	_, _ = rand.Read(text)        // it never fails
	return pipeline.Message{Topic: "boiler/1/text", Value: pipeline.String(base64.StdEncoding.EncodeToString(text))}
}

func connect(t testing.TB, addr string) client.Client {
	t.Helper()
	c, err := client.NewClient(client.ClientOptions{
		URL: "pulsar://" + addr, Logger: log.DefaultNopLogger(), MetricsRegisterer: prometheus.NewRegistry(), OperationTimeout: 20 * time.Second,
	})
	if err != nil {
		t.Fatalf("client: %v", err)
	}
	t.Cleanup(c.Close)
	return c
}

// messages returns all that a topic holds.
func messages(t testing.TB, addr, topic string) []client.Message {
	t.Helper()
	c := connect(t, addr)
	var reader client.Reader
	var err error
	for deadline := time.Now().Add(patient); ; time.Sleep(100 * time.Millisecond) { // a broker that was killed takes its time
		reader, err = c.CreateReader(client.ReaderOptions{Topic: topic, StartMessageID: client.EarliestMessageID(), ReceiverQueueSize: 5000})
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("read %s back: %v", topic, err)
		}
	}
	defer reader.Close()
	var all []client.Message
	for reader.HasNext() {
		ctx, cancel := context.WithTimeout(t.Context(), patient)
		m, err := reader.Next(ctx)
		cancel()
		if err != nil {
			t.Fatalf("read %s back: %v", topic, err)
		}
		all = append(all, m)
	}
	return all
}

func read(t testing.TB, addr, topic string) []uplinktest.Stored {
	t.Helper()
	var out []uplinktest.Stored
	for _, m := range messages(t, addr, topic) {
		id, first := m.Properties()["gw-id"], m.Properties()["gw-first"]
		if first == "" {
			out = append(out, uplinktest.Stored{ID: id, Payload: string(m.Payload())})
			continue
		}
		seq, err := strconv.Atoi(first)
		if err != nil {
			t.Fatalf("gw-first: %v", err)
		}
		for line := range strings.SplitSeq(strings.TrimSuffix(string(m.Payload()), "\n"), "\n") {
			out = append(out, uplinktest.Stored{ID: id[:strings.LastIndexByte(id, '/')+1] + strconv.Itoa(seq), Payload: line})
			seq++
		}
	}
	return out
}

func TestDeadLettersSentAgainHaveATopicOfTheirOwnWhereNumbersOnlyGrow(t *testing.T) {
	c := at("p:6650", "plant-{gateway}-{stream}")
	for delivery, want := range map[uplink.Delivery]string{
		uplink.ExactlyOnce:     "persistent://public/default/plant-gw1-line-resent-far",
		uplink.EffectivelyOnce: "persistent://public/default/plant-gw1-line-resent-far",
		uplink.AtLeastOnce:     "persistent://public/default/plant-gw1-line",
	} {
		env := uplink.Env{Gateway: "gw1", Stream: "line!far", Route: "line", Uplink: "far", Promise: uplink.Promise{Delivery: delivery}}
		if got := c.TopicOf(env); got != want {
			t.Errorf("%s: topic %s, want %s", delivery, got, want)
		}
	}
}
