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
func judge(stored []Stored, after, sent int, dead map[int]bool) verdict {
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
		id := recordID(next)
		m := message(next)
		switch want := string(pipeline.AppendJSON(nil, id, &m)); {
		case v.wrong != nil:
		case s.ID != id.String():
			v.wrong = fmt.Errorf("record %s stands where %s should: lost or out of order", s.ID, id)
		case s.Payload != want:
			v.wrong = fmt.Errorf("record %s has payload\n%s, want\n%s", s.ID, s.Payload, want)
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

func verify(t testing.TB, stored []Stored, sent int, dead map[int]bool, mayDouble int) {
	t.Helper()
	judge(stored, 0, sent, dead).mustBe(t, mayDouble)
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
