package nats

import (
	"cmp"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"edgegateway/uplink"
)

// waitsFor returns what a record waits for before it is sent: all before it (strict), those of its key (key), or nothing. A stream with
// copies has a leader, and one that loses the lead drops what it has in its hands without a word, while the new one stores what comes
// behind. No condition on a message tells the server of that: the one on the last message's id holds for a stream with one writer
// only, and those on numbers want numbers that are known when the answers are there. So nothing is on its way that must not come first.
func waitsFor(env uplink.Env, stream jetstream.Stream) uplink.Order {
	order := cmp.Or(env.Promise.Order, uplink.OrderStrict)
	copies := stream.CachedInfo().Config.Replicas
	if copies <= 1 || order == uplink.OrderNone || env.Promise.Delivery == uplink.ExactlyOnce {
		return ""
	}
	if env.Log != nil {
		env.Log.Info("the stream has copies: a record waits for the answer to the one before it, so that a change of leader cannot "+
			"change their order (delivery: exactly_once keeps it in batches, order: none does without)",
			"stream", stream.CachedInfo().Config.Name, "replicas", copies, "order", string(order))
	}
	return order
}

// turns are what records wait for that must not be on their way together.
type turns struct {
	keys    map[string]bool // of records on their way
	slowest time.Duration   // answer of this session
	alarm   *time.Timer     // for the answer that is waited for
}

// patient is how many times longer than any before it an answer may take, once it is later than link.patience.
const patient = 5

// takeTurn tells whether a record may go now, and notes that it does.
func (s *session) takeTurn(p *publication, rec *uplink.Record) bool {
	switch s.waits {
	case uplink.OrderStrict:
		if s.oldest != s.next {
			return false
		}
	case uplink.OrderKey:
		p.key = rec.Message.PartitionKey()
		if s.turns.keys[p.key] {
			return false
		}
		if s.turns.keys == nil {
			s.turns.keys = map[string]bool{}
		}
		s.turns.keys[p.key] = true
	default:
		return true
	}
	p.sent = time.Now()
	if s.turns.slowest > 0 { // before that it is the Runner's to lose its patience
		s.turns.stop()
		late := max(s.patience, patient*s.turns.slowest)
		s.turns.alarm = time.AfterFunc(late, func() {
			s.fail(fmt.Errorf("%s has not answered for record %d in %v (has the stream another leader?)", s.address, s.firstLeft().seq, late))
		})
	}
	return true
}

// endTurn notes that a record has its answer, and tells whether the session goes on: with order: strict nothing goes behind a record
// that was not taken.
func (s *session) endTurn(p *publication, o uplink.Outcome) (goesOn bool) {
	if s.waits == "" {
		return true
	}
	delete(s.turns.keys, p.key)
	if s.oldest == s.next {
		s.turns.stop()
	}
	s.turns.slowest = max(s.turns.slowest, time.Since(p.sent))
	return s.waits != uplink.OrderStrict || o.Verdict != uplink.Retry
}

func (t *turns) stop() {
	if t.alarm != nil {
		t.alarm.Stop()
	}
}
