package pulsar

import (
	"testing"
	"time"
)

func TestBatchesGrowOnAQuickLineAndShrinkOnASlowOne(t *testing.T) {
	r := room{bytes: batchBytes, topic: &narrow{}}
	for _, step := range []struct {
		bytes int
		d     time.Duration
		want  int
	}{
		{1000, time.Millisecond, batchBytes}, // it says nothing of a full one
		{batchBytes, time.Millisecond, 2 * batchBytes},
		{2 * batchBytes, time.Second, 4 * batchBytes},
		{4 * batchBytes, 5 * time.Second, 4 * batchBytes},
		{4 * batchBytes, 9 * time.Second, 2 * batchBytes},
		{2 * batchBytes, 20 * time.Second, batchBytes},
		{batchBytes, 20 * time.Second, batchBytes},
		{10, 20 * time.Second, batchBytes}, // latency, which no size makes less
	} {
		if r.took(step.bytes, step.d); r.bytes != step.want {
			t.Errorf("after %d bytes in %v: %d, want %d", step.bytes, step.d, r.bytes, step.want)
		}
	}
	for range 10 {
		r.took(r.bytes, 0)
	}
	if r.bytes != mostBatch || r.limit(5<<20) != mostBatch || r.limit(100_000) != 100_000-besides || r.limit(0) != leastBatch {
		t.Errorf("bytes %d, limits %d, %d, %d", r.bytes, r.limit(5<<20), r.limit(100_000), r.limit(0))
	}
}

func TestWhatATopicHasRefusedIsTriedAgainLater(t *testing.T) {
	n := &narrow{}
	r := room{bytes: mostBatch, topic: n}
	want := func(text string, bytes int) {
		t.Helper()
		if got := r.limit(5 << 20); got != bytes {
			t.Errorf("%s: %d bytes, want %d", text, got, bytes)
		}
	}
	want("nothing refused", mostBatch)
	n.refused(40_000)
	want("refused", 20_000)
	n.at = n.at.Add(-growFirst)
	want("a minute later", 40_000)
	n.refused(40_000)
	want("refused again", 20_000)
	n.at = n.at.Add(-growFirst)
	want("a minute after that", 20_000)
	n.at = n.at.Add(-growFirst)
	want("another one", 40_000)
	n.at = n.at.Add(-40 * growFirst)
	want("long after", mostBatch)
	n.refused(1)
	want("a record", leastBatch)
	n.at = n.at.Add(-growFirst)
	want("a minute later, for the old times count no more", 2)
	n.state(17_000)
	n.at = n.at.Add(-20 * growFirst)
	want("as the admin API says", 17_000)
}
