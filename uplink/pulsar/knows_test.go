package pulsar_test

import (
	"testing"

	"edgegateway/pipeline"
	"edgegateway/uplink"
)

// It is read from fields of the library, which may change with it.
func TestWhatTheBrokerKnowsOfAProducer(t *testing.T) {
	for _, delivery := range []uplink.Delivery{uplink.EffectivelyOnce, uplink.AtLeastOnce} {
		driver := promised{at(broker().Addr, "known-"+string(delivery)), delivery}
		open := func() uplink.Session {
			s, err := driver.Open(t.Context(), uplink.Env{Gateway: "gw1", Stream: "line", Epoch: 7, Uplink: "far"})
			must(t, err)
			return s
		}
		knows := func(seq uint64, want bool) {
			t.Helper()
			s := open()
			defer s.Close()
			got, err := s.(uplink.Knower).Knows(t.Context(), pipeline.RecordID{Gateway: "gw1", Stream: "line", Epoch: 7, Seq: seq})
			if err != nil || got != want {
				t.Errorf("%s: Knows(%d) = %v, %v; want %v", delivery, seq, got, err, want)
			}
		}
		knows(1, false)
		s := open()
		acked := make(chan uplink.Outcome, 20)
		for n := uint64(1); n <= 20; n++ {
			id := pipeline.RecordID{Gateway: "gw1", Stream: "line", Epoch: 7, Seq: n}
			m := pipeline.Message{Topic: "boiler/1", Value: pipeline.Int(int64(n))}
			must(t, s.Send(t.Context(), []uplink.Record{{ID: id, Message: m, JSON: pipeline.AppendJSON(nil, id, &m)}},
				func(_ uint64, o uplink.Outcome) { acked <- o }))
		}
		for range 20 {
			if o := <-acked; o.Verdict != uplink.Ack || o.Repeat {
				t.Fatalf("outcome %+v, want an ack of what is new", o)
			}
		}
		s.Close()
		knows(20, delivery == uplink.EffectivelyOnce) // without a name the broker takes nothing for a repeat
		knows(21, false)
	}
}
