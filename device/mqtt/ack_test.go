package mqtt_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"edgegateway/pipeline"
)

// dialects are the ways a client can publish with an acknowledgement.
var dialects = []struct {
	name    string
	version byte
	qos     byte
	ack     byte
}{
	{"MQTT 3.1.1 QoS 1", 4, 1, puback},
	{"MQTT 3.1.1 QoS 2", 4, 2, pubrec},
	{"MQTT 5 QoS 1", 5, 1, puback},
	{"MQTT 5 QoS 2", 5, 2, pubrec},
}

func TestNoAcknowledgementBeforeTheCommit(t *testing.T) {
	for _, d := range dialects {
		t.Run(d.name, func(t *testing.T) {
			sink := newSink()
			b := start(t, config(t), sink)
			c := signIn(t, b.Addr(), options{version: d.version, id: "c"})
			const n = 50
			for i := range n {
				c.publish("dev/x", fmt.Sprint(i), d.qos, uint16(i+1), 0)
			}
			sink.waitQueued(t, n)
			c.wantSilence()
			if got := sink.commit(nil); got != n {
				t.Fatalf("%d batches in the commit, want %d", got, n)
			}
			for i := range n {
				c.wantAck(d.ack, uint16(i+1), 0)
			}
			if got := sink.messages(); len(got) != n || got[0].Topic != "dev/x" || got[0].Source != "local" || got[n-1].Value.Text() != "49" {
				t.Errorf("stored %d messages: %+v", len(got), got)
			}
			if sink.urgent != n {
				t.Errorf("%d batches were urgent, want %d", sink.urgent, n)
			}
		})
	}
}

func TestQoS0IsNeitherUrgentNorAcknowledged(t *testing.T) {
	sink := newSink()
	b := start(t, config(t), sink)
	c := signIn(t, b.Addr(), options{id: "c"})
	c.publish("dev/x", "1", 0, 0, 0)
	sink.waitQueued(t, 1)
	sink.commit(nil)
	c.wantSilence()
	if sink.urgent != 0 || len(sink.messages()) != 1 {
		t.Errorf("urgent %d, stored %d; want 0, 1", sink.urgent, len(sink.messages()))
	}
}

func TestARefusedMessageGetsNoPositiveAcknowledgement(t *testing.T) {
	full := fmt.Errorf("lane default: %w", pipeline.ErrFull)
	stopped := fmt.Errorf("lane default: %w", pipeline.ErrStopped)
	for _, d := range dialects {
		for _, when := range []string{"by Put", "by the commit"} {
			for _, cause := range []error{full, stopped, errors.New("something new")} {
				t.Run(fmt.Sprintf("%s, refused %s: %v", d.name, when, cause), func(t *testing.T) {
					sink := newSink()
					b := start(t, config(t), sink)
					c := signIn(t, b.Addr(), options{version: d.version, id: "c"})
					if when == "by Put" {
						sink.setRefuse(cause)
					}
					c.publish("dev/x", "1", d.qos, 7, 0)
					if when != "by Put" {
						sink.waitQueued(t, 1)
						sink.commit(cause)
					}
					if d.version == 5 && errors.Is(cause, pipeline.ErrFull) {
						c.wantAck(d.ack, 7, 0x97)
						// The id is free again, and the next try is a new one.
						sink.setRefuse(nil)
						c.publish("dev/x", "2", d.qos, 7, 0)
						sink.waitQueued(t, 1)
						sink.commit(nil)
						c.wantAck(d.ack, 7, 0)
					} else {
						c.wantEnd()
					}
					if st := b.Status(); st.Counters["refused_total"] != 1 {
						t.Errorf("refused_total = %d, want 1", st.Counters["refused_total"])
					}
				})
			}
		}
	}
}

func TestStatusTellsThatTheLogRefuses(t *testing.T) {
	sink := newSink().auto(t, 0)
	b := start(t, config(t), sink)
	c := signIn(t, b.Addr(), options{version: 5, id: "c"})
	sink.setRefuse(pipeline.ErrFull)
	c.publish("dev/x", "1", 1, 1, 0)
	c.wantAck(puback, 1, 0x97)
	if st := b.Status(); st.State != "degraded" || st.Error != "publishes are not acknowledged: lane is full" {
		t.Errorf("state %q, error %q", st.State, st.Error)
	}
	sink.setRefuse(nil)
	c.publish("dev/x", "2", 1, 2, 0)
	c.wantAck(puback, 2, 0)
	st := b.Status()
	if st.State != "up" || st.Error != "" {
		t.Errorf("state %q, error %q after the log took a message again", st.State, st.Error)
	}
	if len(st.Parts) != 1 || st.Parts[0].Name != "c" || st.Counters["acked_total"] != 1 || st.Counters["publishes_total"] != 2 {
		t.Errorf("status %+v", st)
	}
}

func TestTheWindowHoldsBackOneClientOnly(t *testing.T) {
	conf := config(t)
	conf.ReceiveMaximum = 4
	sink := newSink()
	b := start(t, conf, sink)
	eager := signIn(t, b.Addr(), options{id: "eager"})
	other := signIn(t, b.Addr(), options{id: "other"})
	for i := range 10 {
		eager.publish("dev/x", fmt.Sprint(i), 1, uint16(i+1), 0)
	}
	sink.waitQueued(t, 4)
	other.publish("dev/y", "o", 1, 1, 0)
	sink.waitQueued(t, 5)
	other.wantSilence()
	if got := sink.queued(); got != 5 {
		t.Fatalf("%d queued, want 4 of the eager client and 1 of the other", got)
	}
	sink.commit(nil)
	other.wantAck(puback, 1, 0)
	for i := range 4 {
		eager.wantAck(puback, uint16(i+1), 0)
	}
	sink.waitQueued(t, 4)
	sink.commit(nil)
	sink.waitQueued(t, 2)
	sink.commit(nil)
	for i := range 6 {
		eager.wantAck(puback, uint16(i+5), 0)
	}
}

func TestAFullLaneHoldsBackItsPublishersOnly(t *testing.T) {
	sink := newSink()
	b := start(t, config(t), sink)
	c := signIn(t, b.Addr(), options{id: "c"})
	idle := signIn(t, b.Addr(), options{id: "idle"})
	room := make(chan struct{})
	sink.mu.Lock()
	sink.full = room
	sink.mu.Unlock()
	c.publish("dev/x", "1", 1, 1, 0)
	idle.wantSilence()
	close(room)
	sink.waitQueued(t, 1)
	sink.commit(nil)
	c.wantAck(puback, 1, 0)
}

func TestStoppingAcknowledgesNothingThatIsNotCommitted(t *testing.T) {
	for _, version := range []byte{4, 5} {
		t.Run(fmt.Sprintf("MQTT version byte %d", version), func(t *testing.T) {
			sink := newSink()
			b := start(t, config(t), sink)
			c := signIn(t, b.Addr(), options{version: version, id: "c", will: "dev/gone", willPayload: "w"})
			c.publish("dev/x", "1", 1, 1, 0)
			sink.waitQueued(t, 1)
			began := time.Now()
			b.stop()
			if took := time.Since(began); took > 2*time.Second {
				t.Errorf("stopping took %v", took)
			}
			sink.commit(nil) // too late: the client is gone
			if reason := c.wantEnd(); version == 5 && reason != 0x8B {
				t.Errorf("DISCONNECT %#x, want 0x8b", reason)
			}
			if got := sink.payloads(); len(got) != 1 {
				t.Errorf("stored %q, want the publish and no will", got)
			}
		})
	}
}
