package pulsar_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	client "github.com/apache/pulsar-client-go/pulsar"

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
			Name: "nobody to read and no retention", Want: "would delete each record", Config: true,
			Driver: with("public/bare/unread", func(c *pulsar.Config) { c.Admin = "http://" + b.Web }),
			Mend:   func() { admin(http.MethodPut, "persistent/public/bare/unread/subscription/reader", nil) },
		},
	})
}

func TestAFullTopicHoldsTheRecordsUntilItIsRead(t *testing.T) {
	b := broker()
	must(t, b.Admin(http.MethodPut, "namespaces/public/full", map[string]any{}))
	must(t, b.Admin(http.MethodPut, "persistent/public/full/a", nil))
	must(t, b.Admin(http.MethodPut, "persistent/public/full/a/subscription/slow", nil))
	must(t, b.Admin(http.MethodPost, "namespaces/public/full/backlogQuota?backlogQuotaType=destination_storage",
		map[string]any{"limitSize": 1000, "policy": "producer_exception"}))
	_, driver := exactly("public/full/a")
	g := run(t, driver, uplinktest.NewLog(), "")
	g.send(50)
	for deadline := time.Now().Add(patient); ; time.Sleep(200 * time.Millisecond) { // the broker checks its quotas now and then
		g.append(1)
		if strings.Contains(g.Status().Error, "backlog quota") {
			t.Logf("in plain words: %s", g.Status().Error)
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("Status = %+v, want an error about the quota", g.Status())
		}
	}
	must(t, b.Admin(http.MethodPost, "namespaces/public/full/backlogQuota?backlogQuotaType=destination_storage",
		map[string]any{"limitSize": 1 << 30, "policy": "producer_exception"}))
	g.settle()
	g.stop()
	holds(t, "public/full/a", upTo(g.log.Len())...)
}

func TestARecordOverTheLimitOfATopicBecomesADeadLetter(t *testing.T) {
	b := broker()
	must(t, b.Admin(http.MethodPut, "persistent/public/default/small", nil))
	must(t, b.Admin(http.MethodPost, "persistent/public/default/small/maxMessageSize", 20000))
	time.Sleep(time.Second) // the policy takes effect by way of a topic of the broker's own
	_, driver := exactly("small")
	g := run(t, driver, uplinktest.NewLog(), "")
	g.append(30)
	big := tooLarge()
	big.Value = tooLarge().Value // 300 KB: more than the broker takes
	g.log.Append(big)            // 31
	g.append(30)
	g.settle()
	g.stop()
	want := append(upTo(30), upTo(61)[31:]...)
	holds(t, "small", want...)
	if letters := g.log.Letters(); len(letters) != 1 || letters[0].Seq != 31 {
		t.Errorf("dead letters %v, want 31", letters)
	}
}
