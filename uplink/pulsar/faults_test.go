package pulsar_test

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	client "github.com/apache/pulsar-client-go/pulsar"

	"edgegateway/pipeline"
	"edgegateway/test/rig"
	"edgegateway/uplink"
	"edgegateway/uplink/pulsar"
	"edgegateway/uplink/uplinktest"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestFaults(t *testing.T) {
	b := broker()
	admin := func(method, path string, body any) { t.Helper(); must(t, b.Admin(method, path, body)) }
	namespace := func(name string, policies map[string]any) {
		t.Helper()
		if err := b.Admin(http.MethodPut, "namespaces/public/"+name, policies); err != nil && !strings.Contains(err.Error(), "already exists") {
			t.Fatal(err) // another test may have made it
		}
	}
	namespace("repeats", map[string]any{"deduplicationEnabled": false})
	namespace("strict", map[string]any{"autoTopicCreationOverride": map[string]any{"allowAutoTopicCreation": false}})
	namespace("bare", map[string]any{"retention_policies": map[string]int{"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}})
	admin(http.MethodPut, "persistent/public/default/ended", nil)
	admin(http.MethodPost, "persistent/public/default/ended/terminate", nil)
	c := connect(t, b.Addr)
	foreign, err := c.CreateProducer(client.ProducerOptions{Topic: "foreign"})
	must(t, err)
	_, err = foreign.Send(t.Context(), &client.ProducerMessage{Payload: []byte("of somebody else")})
	must(t, err)
	foreign.Close()
	taken, err := c.CreateProducer(client.ProducerOptions{Topic: "taken", ProducerAccessMode: client.ProducerAccessModeExclusive})
	must(t, err)
	named := connect(t, b.Addr)
	_, err = named.CreateProducer(client.ProducerOptions{Topic: "busy", Name: "edge-gateway/gw1/line/7"})
	must(t, err)
	with := func(topic string, change func(*pulsar.Config)) *pulsar.Config {
		c := at(b.Addr, topic)
		if change != nil {
			change(c)
		}
		return c
	}
	exactly := func(c *pulsar.Config) uplink.Driver { return promised{c, uplink.ExactlyOnce} }
	uplinktest.RunFaults(t, []uplinktest.Fault{
		{
			Name: "no broker", Driver: with("x", func(c *pulsar.Config) { c.Servers = []string{"127.0.0.1:1"} }),
			Want: "refuses the connection",
		},
		{
			Name: "TLS where there is none", Driver: with("x", func(c *pulsar.Config) { c.TLS.Enabled = true }),
			Want: "instead of speaking TLS",
		},
		{
			Name: "a namespace that stores repeats", Driver: exactly(with("public/repeats/a", nil)),
			Want: "a second time", Config: true,
			Mend: func() { admin(http.MethodPost, "namespaces/public/repeats/deduplication", true) },
		},
		{
			Name: "a topic that is missing", Driver: with("public/strict/a", nil), Want: "does not exist, and", Config: true,
			Mend: func() { admin(http.MethodPut, "persistent/public/strict/a", nil) },
		},
		{
			Name: "a namespace that is missing", Driver: with("public/nowhere/a", nil), Want: "and its namespace", Config: true,
			Mend: func() { namespace("nowhere", nil) },
		},
		{
			Name: "a topic that is terminated", Driver: with("ended", nil), Want: "is terminated", Config: true,
		},
		{
			Name: "a topic with messages of somebody else", Driver: exactly(with("foreign", nil)), Want: "is not one of this gateway and stream", Config: true,
		},
		{
			Name: "a topic that somebody has for himself", Driver: exactly(with("taken", nil)), Want: "another producer that wants it for itself",
			Mend: taken.Close,
		},
		{
			Name: "a producer of the same name", Driver: promised{with("busy", nil), uplink.EffectivelyOnce}, Want: "in use by a producer of the same name",
			Mend: named.Close,
		},
		{
			Name: "nobody to read and no retention", Want: "would delete each record", Config: true,
			Driver: with("public/bare/unread", func(c *pulsar.Config) { c.Admin = "http://" + b.Web }),
			Mend:   func() { admin(http.MethodPut, "persistent/public/bare/unread/subscription/reader", nil) },
		},
	})
}

func TestAFullTopicHoldsTheRecordsUntilItIsRead(t *testing.T) {
	b := broker()
	must(t, b.Admin(http.MethodPut, "namespaces/public/full", map[string]any{}))
	quota := func(bytes int, policy string) {
		t.Helper()
		must(t, b.Admin(http.MethodPost, "namespaces/public/full/backlogQuota?backlogQuotaType=destination_storage",
			map[string]any{"limitSize": bytes, "policy": policy}))
	}
	for i, policy := range []string{"producer_exception", "producer_request_hold"} {
		topic := []string{"public/full/a", "public/full/b"}[i]
		must(t, b.Admin(http.MethodPut, "persistent/"+topic, nil))
		must(t, b.Admin(http.MethodPut, "persistent/"+topic+"/subscription/slow", nil))
		quota(1000, policy)
		_, driver := exactly(topic)
		g := run(t, driver, uplinktest.NewLog(), "")
		g.send(50)
		for deadline := time.Now().Add(patient); ; time.Sleep(200 * time.Millisecond) { // the broker checks its quotas now and then
			g.append(1)
			if strings.Contains(g.Status().Error, "backlog quota") {
				t.Logf("in plain words: %s", g.Status().Error)
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: Status = %+v, want an error about the quota", policy, g.Status())
			}
		}
		quota(1<<30, policy)
		g.settle()
		g.stop()
		holds(t, topic, upTo(g.log.Len())...)
	}
}

// noise is a record that no compression makes smaller.
func noise(bytes int) pipeline.Message {
	text := make([]byte, bytes*3/4)
	_, _ = rand.Read(text) // it never fails
	return pipeline.Message{Topic: "boiler/1/image", Value: pipeline.String(base64.StdEncoding.EncodeToString(text))}
}

// The limit of a topic is known to the broker only: it refuses one message, and would store what follows.
func TestARecordOverTheLimitOfATopicBecomesADeadLetter(t *testing.T) {
	b := broker()
	for _, of := range []struct {
		delivery uplink.Delivery
		pack     int
	}{{uplink.AtLeastOnce, 1}, {uplink.EffectivelyOnce, 1}, {uplink.EffectivelyOnce, 20}, {uplink.ExactlyOnce, 1}, {uplink.ExactlyOnce, 20}} {
		topic := fmt.Sprintf("small-%s-%d", strings.ReplaceAll(string(of.delivery), "_", ""), of.pack)
		must(t, b.Admin(http.MethodPut, "persistent/public/default/"+topic, nil))
		must(t, b.Admin(http.MethodPost, "persistent/public/default/"+topic+"/maxMessageSize", 140_000))
		applied := func() (limit int) {
			_ = b.Admin(http.MethodGet, "persistent/public/default/"+topic+"/maxMessageSize", nil, &limit) // it answers nothing before
			return limit
		}
		for deadline := time.Now().Add(patient); applied() != 140_000; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("the topic does not get its limit")
			}
		}
		time.Sleep(time.Second) // the policy takes effect by way of a topic of the broker's own
		c := at(b.Addr, topic)
		c.Pack = of.pack
		g := run(t, promised{c, of.delivery}, uplinktest.NewLog(), "")
		g.append(3000)
		compressible := noise(1)
		compressible.Value = pipeline.String(strings.Repeat("x", 190_000))
		g.log.Append(compressible) // 3001: as large, and it fits
		g.append(10)
		g.log.Append(noise(170_000)) // 3012
		g.append(1000)
		g.settle()
		g.stop()
		if letters := g.log.Letters(); len(letters) != 1 || letters[0].Seq != 3012 {
			t.Errorf("%s: dead letters %v, want 3012", topic, letters)
		}
		want := append(upTo(3011), upTo(4012)[3012:]...)
		if of.delivery == uplink.AtLeastOnce {
			wantAtLeast(t, topic, want)
			continue
		}
		holds(t, topic, want...)
	}
}

// wantAtLeast wants these sequences in a topic, however often.
func wantAtLeast(t *testing.T, topic string, want []int) {
	t.Helper()
	there := map[string]bool{}
	for _, s := range read(t, broker().Addr, topic) {
		there[s.ID] = true
	}
	for _, seq := range want {
		if id := fmt.Sprintf("gw1/line/7/%d", seq); !there[id] {
			t.Fatalf("%s: record %s is missing", topic, id)
		}
	}
	if len(there) != len(want) {
		t.Errorf("%s holds %d records, want %d", topic, len(there), len(want))
	}
}

func TestATopicThatIsTerminatedInMidFlowHoldsTheRecords(t *testing.T) {
	b := broker()
	for _, delivery := range []uplink.Delivery{uplink.AtLeastOnce, uplink.EffectivelyOnce, uplink.ExactlyOnce} {
		topic := "ends-" + strings.ReplaceAll(string(delivery), "_", "")
		g := run(t, promised{at(b.Addr, topic), delivery}, uplinktest.NewLog(), "")
		g.send(50)
		must(t, b.Admin(http.MethodPost, "persistent/public/default/"+topic+"/terminate", nil))
		g.append(20)
		if s := g.says("topic persistent://public/default/" + topic + " is terminated"); !s.Config {
			t.Errorf("Status = %+v, want an error that a person must mend", s)
		}
		g.stop()
		if n := g.log.Settled(); n != 50 || len(g.log.Letters()) > 0 {
			t.Errorf("%d records have an outcome, %v are dead letters; want 50 and none", n, g.log.Letters())
		}
	}
}

func TestACursorTopicThatIsTerminatedIsNamed(t *testing.T) {
	b := broker()
	g := run(t, promised{at(b.Addr, "ends"), uplink.ExactlyOnce}, uplinktest.NewLog(), "")
	g.send(50)
	must(t, b.Admin(http.MethodPost, "persistent/public/default/ends-cursor/terminate", nil))
	if s := g.says("topic persistent://public/default/ends-cursor is terminated"); !s.Config {
		t.Errorf("Status = %+v, want an error that a person must mend", s)
	}
}

func TestABrokerOfSmallMessagesGetsSmallBatches(t *testing.T) {
	b := rig.Pulsar(t, "maxMessageSize=100000")
	for n := 400; n < 1500; n += 500 {
		g := run(t, promised{at(b.Addr, "tiny"), uplink.EffectivelyOnce}, filled(n), "")
		g.log.Wait(n-100, patient)
		g.stop()
	}
	g := run(t, promised{at(b.Addr, "tiny"), uplink.EffectivelyOnce}, filled(1500), "")
	g.settle()
	g.stop()
	for i, s := range read(t, b.Addr, "tiny") {
		if want := fmt.Sprintf("gw1/line/7/%d", i+1); s.ID != want || i >= 1500 {
			t.Fatalf("record %s stands where %s should", s.ID, want)
		}
	}
}
