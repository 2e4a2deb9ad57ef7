package nats_test

import (
	"testing"
	"time"

	"edgegateway/uplink/nats"
)

func TestTheFlowFollowsTheAnswers(t *testing.T) {
	const ms = time.Millisecond
	for _, test := range []struct {
		name string
		took func(onTheWay uint64) time.Duration
		want uint64
	}{
		{"a fast line", func(uint64) time.Duration { return ms }, 4096},
		{"a line of 2 s there and back", func(uint64) time.Duration { return 2000 * ms }, 4096},
		{"a line of ten records a second", func(n uint64) time.Duration { return time.Duration(n) * 100 * ms }, 256},
		{"a server that answers for all at once, a flush of 1 ms each", func(n uint64) time.Duration { return time.Duration(n) * ms }, 1024},
	} {
		t.Run(test.name, func(t *testing.T) {
			var f nats.Flow
			sent := uint64(0)
			f.Took(test.took(1), sent, sent+1) // one record by itself
			most, least := uint64(0), uint64(1<<60)
			for n := range 50 {
				size := f.Size()
				first := sent
				sent += size
				f.Took(test.took(size), first+1, sent)
				if n >= 20 {
					most, least = max(most, size), min(least, size)
				}
			}
			if most > test.want || least < test.want/2 || least < 256 {
				t.Errorf("%d to %d records are on their way, want %d at most and half of it at least", least, most, test.want)
			}
		})
	}
}
