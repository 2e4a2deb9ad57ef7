package pulsar_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"edgegateway/pipeline"
	"edgegateway/uplink"
	"edgegateway/uplink/pulsar"
)

// What the library has closed for the probe of a gateway's first session is no batch of that session: it would take its own for closed before
// they are, and on a busy machine put the next records into them (seen: one doubled at a kill).
func TestTheFirstSessionTakesNoBatchForItsOwn(t *testing.T) {
	for _, delivery := range []uplink.Delivery{uplink.EffectivelyOnce, uplink.ExactlyOnce} {
		s := opened(t, at(broker().Addr, "cuts"), delivery)
		if n := pulsar.Cuts(s); n != 0 {
			t.Errorf("%s: the first session knows of %d closed batches, want none", delivery, n)
		}
		s.Close()
	}
}

// A batch has the number of its last record. If a stop, or a session's end, let the library send a part of it, the rest would count as stored.
func TestASendThatIsStoppedLosesNothing(t *testing.T) {
	for _, delivery := range []uplink.Delivery{uplink.EffectivelyOnce, uplink.ExactlyOnce} {
		topic := "stopped-" + string(delivery)
		c := at(broker().Addr, topic)
		const each, rounds = 2000, 25
		for round := range rounds {
			s := opened(t, c, delivery)
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(5000+rand.IntN(30_000))*time.Microsecond)
			first := 1
			if far, ok := s.(uplink.Resumer); ok {
				first = int(far.Far().Seq) + 1
			}
			_ = s.Send(ctx, numbered(first, (round+1)*each), func(uint64, uplink.Outcome) {}) // it is to be cut short
			time.Sleep(5 * time.Millisecond)
			cancel()
			s.Close()
		}
		const all = rounds * each
		g := run(t, promised{at(broker().Addr, topic), delivery}, filled(all), "")
		g.settle()
		g.stop()
		holds(t, topic, upTo(all)...)
	}
}

func opened(t *testing.T, c *pulsar.Config, delivery uplink.Delivery) uplink.Session {
	t.Helper()
	env := uplink.Env{Gateway: "gw1", Stream: "line", Epoch: 7, Uplink: "far", Claims: &uplink.Claims{}}
	s, err := promised{c, delivery}.Open(t.Context(), env)
	must(t, err)
	return s
}

func numbered(from, to int) (out []uplink.Record) {
	for n := from; n <= to; n++ {
		m := pipeline.Message{Topic: fmt.Sprintf("t%d", n%3), Value: pipeline.Int(int64(n))}
		id := pipeline.RecordID{Gateway: "gw1", Stream: "line", Epoch: 7, Seq: uint64(n)}
		out = append(out, uplink.Record{ID: id, Message: m, JSON: pipeline.AppendJSON(nil, id, &m)})
	}
	return out
}
