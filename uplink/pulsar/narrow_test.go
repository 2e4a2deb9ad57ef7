package pulsar_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"edgegateway/pipeline"
	"edgegateway/uplink"
	"edgegateway/uplink/uplinktest"
)

// limit gives a topic a limit of its own, and waits until it holds.
func limit(t *testing.T, topic string, bytes int) {
	t.Helper()
	b := broker()
	_ = b.Admin(http.MethodPut, "persistent/public/default/"+topic, nil) // it may be there
	must(t, b.Admin(http.MethodPost, "persistent/public/default/"+topic+"/maxMessageSize", bytes))
	applied := func() (limit int) {
		_ = b.Admin(http.MethodGet, "persistent/public/default/"+topic+"/maxMessageSize", nil, &limit) // it answers nothing before
		return limit
	}
	for deadline := time.Now().Add(patient); applied() != bytes; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the topic does not get its limit")
		}
	}
	time.Sleep(time.Second) // the policy takes effect by way of a topic of the broker's own
}

// A topic's own limit counts what is left after compression: what it took of one record says nothing of the next one. Nobody tells the
// driver of it where there is no admin API.
func TestATopicThatTakesLessThanABatchIsRefusedWithoutAdmin(t *testing.T) {
	for _, of := range []struct {
		delivery    uplink.Delivery
		pack        int
		compression string
	}{
		{uplink.EffectivelyOnce, 1, ""},
		{uplink.EffectivelyOnce, 20, "zstd"},
		{uplink.ExactlyOnce, 1, "zlib"},
		{uplink.ExactlyOnce, 20, "snappy"},
		{uplink.ExactlyOnce, 1, "none"},
	} {
		topic := fmt.Sprintf("narrow-%s-%d-%s", strings.ReplaceAll(string(of.delivery), "_", ""), of.pack, of.compression)
		limit(t, topic, 20_000)
		c := at(broker().Addr, topic)
		c.Pack, c.Compression = of.pack, of.compression
		g := run(t, promised{c, of.delivery}, uplinktest.NewLog(), "")
		small := func(n int) {
			for range n {
				g.log.Append(pipeline.Message{Topic: "boiler/1/text", Value: pipeline.String(strings.Repeat("x", 15_000))})
			}
		}
		small(60) // these are nothing, compressed
		for range 20 {
			g.log.Append(noise(19_000)) // and these are more than the topic takes, with what is around them
			small(20)
		}
		for deadline := time.Now().Add(patient); !strings.Contains(g.Status().Error, "by its own policy") && g.log.Settled() < g.log.Len(); {
			if time.Now().After(deadline) {
				t.Fatalf("%s: Status = %+v, want an error about the limit", topic, g.Status())
			}
			time.Sleep(time.Millisecond)
		}
		if s := g.Status(); !s.Config {
			t.Errorf("%s: Status = %+v, want an error that a person must mend", topic, s)
		}
		wantNoneLost(t, g, topic)
		limit(t, topic, 200_000)
		g.settle()
		g.stop()
		holds(t, topic, upTo(g.log.Len())...)
	}
}

// wantNoneLost wants each record that has an outcome in the topic.
func wantNoneLost(t *testing.T, g *gateway, topic string) {
	t.Helper()
	settled := g.log.Settled()
	there := map[string]bool{}
	for _, s := range read(t, broker().Addr, topic) {
		there[s.ID] = true
	}
	for _, letter := range g.log.Letters() {
		there[fmt.Sprintf("gw1/line/7/%d", letter.Seq)] = true
	}
	for seq := 1; seq <= settled; seq++ {
		if id := fmt.Sprintf("gw1/line/7/%d", seq); !there[id] {
			t.Errorf("%s: record %s counts as delivered and is not there", topic, id)
			return
		}
	}
}
