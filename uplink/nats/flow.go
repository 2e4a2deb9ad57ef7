package nats

import "time"

// flow is how many records may be on their way without an answer. It begins small and grows for as long as the answers come as
// quickly as they ever did, and shrinks where they do not: what waits in the server, or on the line, is in doubt when the connection
// breaks and gains nothing. A server that flushes each message, say, answers for all that wait at once when the last one is on its disk.
type flow struct {
	most  uint64        // minPending to maxPending; zero for minPending
	base  time.Duration // the quickest answer
	since uint64        // number of the first record that was sent since it was as large as this
}

// How much longer than the quickest answer one may take for it to grow, and how much longer makes it shrink.
const (
	flowQuick = 300 * time.Millisecond
	flowSlow  = time.Second
)

func (f *flow) size() uint64 { return max(f.most, minPending) }

// took says that record number was answered after d, and which number the next one has.
func (f *flow) took(d time.Duration, number, next uint64) {
	if f.base == 0 || d < f.base {
		f.base = d
	}
	if number < f.since {
		return // it was sent before the last change
	}
	switch before := f.size(); {
	case d > f.base+flowSlow:
		f.most = max(before/2, minPending)
	case d < f.base+flowQuick:
		f.most = min(before*2, maxPending)
	}
	f.since = next
}
