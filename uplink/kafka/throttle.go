package kafka

import (
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"edgegateway/uplink"
)

// throttle notes that brokers hold back because of a quota. They answer what was sent and say for how long they take nothing more;
// the client keeps to that.
type throttle struct {
	say     func(reason string)
	figures *uplink.Figures

	mu      sync.Mutex    // guards the fields below
	longest time.Duration // since take
	counts  bool          // in the metric throttled
	quiet   *time.Timer   // until it counts as over
	ended   bool
}

var (
	throttled = uplink.Metric{
		Name: "kafka_throttled", Help: "Sessions that a quota of the broker holds back at present; 0 for none.",
	}
	throttledSeconds = uplink.Metric{
		Name: "kafka_throttled_seconds_total", Help: "Time for which brokers would take nothing more because of a quota, as they said it, since the start.",
	}
)

func newThrottle(env uplink.Env) *throttle {
	env.Figures.Add(throttled, 0)
	env.Figures.Add(throttledSeconds, 0)
	return &throttle{say: env.Slowed, figures: env.Figures}
}

// A break shorter than throttleShown is none to speak of. One is over when none came for throttleOver after its end.
const (
	throttleShown = 100 * time.Millisecond
	throttleOver  = 2 * time.Second
)

// OnBrokerThrottle implements kgo.HookBrokerThrottle.
func (t *throttle) OnBrokerThrottle(_ kgo.BrokerMetadata, d time.Duration, _ bool) {
	t.figures.Add(throttledSeconds, d.Seconds())
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
	t.quiet = time.AfterFunc(d+throttleOver, t.over)
	t.count(1)
	t.tell("is slowed by the broker's quota for this client or user (its setting producer_byte_rate or request_percentage)")
}

// over notes that no break came for a while.
func (t *throttle) over() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.ended {
		t.count(-1)
		t.tell("")
	}
}

// count changes the metric where that is not so yet.
func (t *throttle) count(by float64) {
	if t.counts == (by < 0) {
		t.counts = by > 0
		t.figures.Add(throttled, by)
	}
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
	t.count(-1)
	if t.quiet != nil && t.quiet.Stop() {
		t.tell("")
	}
}
