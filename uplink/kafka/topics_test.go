package kafka_test

import (
	"strings"
	"testing"
	"time"

	"edgegateway/pipeline"
	"edgegateway/test/rig"
	"edgegateway/uplink"
	"edgegateway/uplink/kafka"
	"edgegateway/uplink/uplinktest"
)

// TestTopicsByMessage sends the records of one stream to topics that each names for itself.
func TestTopicsByMessage(t *testing.T) {
	server := rig.Kafka(t)
	for _, place := range []string{"plant.line-1.boiler_1.temp", "plant.line-1.boiler_1.pressure"} {
		prepare(t, server.Addr, place)
	}
	driver := &kafka.Config{Brokers: []string{server.Addr}, Topic: "plant.{source}.{topic}-{gateway}", ClientID: "edge"}
	if problems := driver.Check(); len(problems) > 0 {
		t.Fatalf("Check: %v", problems)
	}
	log := uplinktest.NewLog()
	for i := range 600 {
		m := pipeline.Message{Time: time.Now(), Source: "line-1", Topic: "boiler 1/temp", Value: pipeline.Int(int64(i))}
		if i%3 == 0 {
			m.Topic = "boiler 1/pressure"
		}
		log.Append(m)
	}
	env := uplink.Env{Gateway: "gw1", Stream: "line", Epoch: 7, Uplink: "far"}
	run(t, driver, env, log, func(uplink.Status) bool { return log.Settled() == 600 })
	for place, want := range map[string]int{"plant.line-1.boiler_1.temp": 400, "plant.line-1.boiler_1.pressure": 200} {
		if got := len(readCommitted(t, server.Addr, place)); got != want {
			t.Errorf("topic %s has %d records, want %d", place, got, want)
		}
	}
	log.Append(pipeline.Message{Time: time.Now(), Source: "line-2", Topic: "x", Value: pipeline.Int(1)})
	s := run(t, driver, env, log, func(s uplink.Status) bool { return s.Config })
	t.Logf("in plain words: %s", s.Error)
	if !strings.Contains(s.Error, "topic plant.line-2.x-gw1 does not exist") || log.Settled() != 600 {
		t.Errorf("Status = %+v with %d settled, want the missing topic named and its record held", s, log.Settled())
	}
}

func TestWhatIsKept(t *testing.T) {
	fixed, byMessage := &kafka.Config{Topic: "{gateway}"}, &kafka.Config{Topic: "{gateway}-{key}"}
	for _, test := range []struct {
		name   string
		driver *kafka.Config
		p      uplink.Promise
		want   string
	}{
		{"at_least_once", byMessage, uplink.Promise{}, ""},
		{"exactly_once", fixed, uplink.Promise{Delivery: uplink.ExactlyOnce}, ""},
		{"exactly_once with topics by message", byMessage, uplink.Promise{Delivery: uplink.ExactlyOnce}, "must know all topics"},
		{"exactly_once by key", fixed, uplink.Promise{Delivery: uplink.ExactlyOnce, Order: uplink.OrderKey}, "want order: strict"},
		{"effectively_once", fixed, uplink.Promise{Delivery: uplink.EffectivelyOnce}, "want exactly_once"},
		{"at_least_once by key", fixed, uplink.Promise{Order: uplink.OrderKey}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := uplink.CheckPromise(test.driver, test.p)
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("CheckPromise = %v, want %q", err, test.want)
			}
		})
	}
}
