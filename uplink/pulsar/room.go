package pulsar

import (
	"sync"
	"time"
)

// How many bytes go in one message, where nothing else may be in flight: as many as the line brings there in some seconds, for each
// message takes a round trip; less than the broker takes, or the library would cut a batch in two; and less than what the topic has
// refused, because it may have a limit of its own, which the client does not hear of.
const (
	mostBatch  = 1 << 20
	quick      = 4 * time.Second // a message of twice the size may follow
	slow       = 2 * quick       // one of half the size has to
	growFirst  = time.Minute     // until twice as much is tried where a topic has refused something; twice as long where that was refused too
	growLast   = time.Hour       // the longest of these times
	leastBatch = 1               // a record is a message by then
	besides    = 4 << 10         // what a batch has around it
)

// room is how many bytes a session's next message may have.
type room struct {
	topic *narrow
	bytes int
}

// limit returns how large a batch may be, where the broker takes so many bytes in a message. A record that is larger goes alone.
func (r *room) limit(broker int) int {
	return max(min(r.bytes, r.topic.limit(), broker-besides), leastBatch)
}

// took notes how long a message was on its way.
func (r *room) took(bytes int, d time.Duration) {
	switch {
	case d > slow:
		r.bytes = max(min(r.bytes, bytes/2), batchBytes)
	case d < quick && bytes > r.bytes/2:
		r.bytes = min(2*r.bytes, mostBatch)
	}
}

// narrow is what a topic takes in a message, as far as is known from what it has refused. It outlives the sessions.
type narrow struct {
	mu     sync.Mutex // guards the fields below
	bytes  int        // 0 for all
	at     time.Time
	every  time.Duration // until it doubles
	stated bool          // the admin API says so
}

func (n *narrow) limit() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.limitLocked()
}

func (n *narrow) limitLocked() int {
	most := n.bytes
	if most == 0 {
		return mostBatch
	}
	for d := time.Since(n.at); !n.stated && d >= n.every && most < mostBatch; d -= n.every {
		most *= 2
	}
	return min(most, mostBatch)
}

// refused notes that a message of several records was too large. The limit counts what is left after compression, so nobody can tell how
// much of the next ones is not.
func (n *narrow) refused(bytes int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.limitLocked() == mostBatch:
		n.every = growFirst
	case bytes > n.bytes && !n.stated:
		n.every = min(2*n.every, growLast)
	}
	n.bytes, n.at, n.stated = max(bytes/2, leastBatch), time.Now(), false
}

// state notes what the admin API says.
func (n *narrow) state(bytes int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.bytes, n.at, n.every, n.stated = max(bytes, leastBatch), time.Now(), growFirst, true
}
