package kafka

import (
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// throttle notes that brokers hold back because of a quota. They answer what was sent and say for how long they take nothing more;
// the client keeps to that.
type throttle struct {
	say func(reason string)

	mu      sync.Mutex    // guards the fields below
	longest time.Duration // since take
	quiet   *time.Timer   // until it counts as over
	ended   bool
}

// A break shorter than throttleShown is none to speak of. One is over when none came for throttleOver after its end.
const (
	throttleShown = 100 * time.Millisecond
	throttleOver  = 2 * time.Second
)

// OnBrokerThrottle implements kgo.HookBrokerThrottle.
func (t *throttle) OnBrokerThrottle(_ kgo.BrokerMetadata, d time.Duration, _ bool) {
	if d < throttleShown {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return
	}
	t.longest = max(t.longest, d)
	if t.quiet != nil {
		t.quiet.Stop()
	}
	t.quiet = time.AfterFunc(d+throttleOver, func() { t.tell("") })
	t.tell("is slowed by the broker's quota for this client or user (its setting producer_byte_rate or request_percentage)")
}

func (t *throttle) tell(reason string) {
	if t.say != nil {
		t.say(reason)
	}
}

// take returns the longest break since the last call.
func (t *throttle) take() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	d := t.longest
	t.longest = 0
	return d
}

func (t *throttle) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = true
	if t.quiet != nil && t.quiet.Stop() {
		t.tell("")
	}
}
