package uplinktest

import (
	"fmt"
	"testing"

	"edgegateway/pipeline"
)

// verdict is what a place holds, set against what was sent.
type verdict struct {
	sent, lost, doubled int
	wrong               error // the first that is not where it should be, or not what was sent
}

// judge looks at records after (excluded) to sent (included). Those in dead must not be there; the order is that in which each
// arrived first.
func (s Suite) judge(stored []Stored, after, sent int, dead map[int]bool) verdict {
	if s.Latest {
		return judgeLatest(stored, after, sent, dead)
	}
	v := verdict{sent: sent - after}
	seen := make(map[string]bool, len(stored))
	next := after + 1
	skip := func() {
		for dead[next] {
			next++
		}
	}
	for _, s := range stored {
		if seen[s.ID] {
			v.doubled++
			continue
		}
		seen[s.ID] = true
		skip()
		switch want := asStored(next); {
		case v.wrong != nil:
		case s.ID != want.ID:
			v.wrong = fmt.Errorf("record %s stands where %s should: lost or out of order", s.ID, want.ID)
		case s.Payload != want.Payload:
			v.wrong = fmt.Errorf("record %s has payload\n%s, want\n%s", s.ID, s.Payload, want.Payload)
		}
		next++
	}
	for n := after + 1; n <= sent; n++ {
		if !dead[n] && !seen[recordID(n).String()] {
			v.lost++
		}
	}
	if skip(); v.wrong == nil && next-1 != sent {
		v.wrong = fmt.Errorf("records up to %d are there, want up to %d", next-1, sent)
	}
	return v
}

func recordID(n int) pipeline.RecordID {
	return pipeline.RecordID{Gateway: gateway, Stream: stream, Epoch: epoch, Seq: uint64(n)}
}

// asStored is the n-th record as a broker should give it back.
func asStored(n int) Stored {
	id, m := recordID(n), message(n)
	return Stored{ID: id.String(), Payload: string(pipeline.AppendJSON(nil, id, &m))}
}

// judgeLatest wants the last record of each topic: what a topic has not, or has an older one of, is lost.
func judgeLatest(stored []Stored, after, sent int, dead map[int]bool) verdict {
	v := verdict{sent: sent - after}
	last := map[string]Stored{} // by topic
	for n := after + 1; n <= sent; n++ {
		if !dead[n] {
			last[message(n).Topic] = asStored(n)
		}
	}
	want := map[string]string{} // payloads by record id
	for _, s := range last {
		want[s.ID] = s.Payload
	}
	for _, s := range stored {
		payload, ok := want[s.ID]
		switch {
		case !ok && v.wrong == nil:
			v.wrong = fmt.Errorf("record %s is there, and is not the last one of its topic", s.ID)
		case ok && payload != s.Payload && v.wrong == nil:
			v.wrong = fmt.Errorf("record %s has payload\n%s, want\n%s", s.ID, s.Payload, payload)
		default:
		}
		delete(want, s.ID)
	}
	v.lost = len(want)
	return v
}

// mustBe wants each record once and in order, but for so many that may be there twice.
func (v verdict) mustBe(t testing.TB, mayDouble int) {
	t.Helper()
	t.Logf("sent %d lost %d doubled %d", v.sent, v.lost, v.doubled)
	if v.wrong != nil || v.lost > 0 {
		t.Errorf("%d records are lost; %v", v.lost, v.wrong)
	}
	if v.doubled > mayDouble {
		t.Errorf("%d records are stored twice, want at most %d", v.doubled, mayDouble)
	}
}
