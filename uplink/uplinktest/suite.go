package uplinktest

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"edgegateway/pipeline"
	"edgegateway/test/rig"
	"edgegateway/uplink"
)

// Suite is what Run needs to know of a driver.
type Suite struct {
	// Name is DRIVER MODE, as in "nats exactly_once". It stands before the figures.
	Name string
	// Delivery is what the stream asks for; empty leaves that to the driver.
	Delivery uplink.Delivery
	// Server starts the real broker; one serves the whole suite.
	Server func(rig.TB) *rig.Server
	// Prepare makes a place at the broker (topic, stream), where the broker wants that. It may be nil.
	Prepare func(t testing.TB, addr, place string)
	// Driver returns a driver that sends to a place at an address.
	Driver func(addr, place string) uplink.Driver
	// Read returns what a place holds, in its order.
	Read func(t testing.TB, addr, place string) []Stored
	// Refused returns a message that the broker refuses for good, however often it is sent.
	Refused func() pipeline.Message
	// Delete removes a place at the broker, with all it holds; Prepare makes it again. It may be nil where a write does.
	Delete func(t testing.TB, addr, place string)
	// Access returns a driver whose right to write to a place can be taken away at the broker, and given back.
	Access func(t testing.TB, addr, place string) (d uplink.Driver, revoke, renew func())
	// Doubles says that a record which was in flight when a session ended may be stored twice.
	Doubles bool
	// Resumes says that a session goes on behind a far cursor, so that what was stored is not sent again.
	Resumes bool
	// Latest says that a place holds the last record of each topic and nothing else.
	Latest bool
	// Interruptions is how often the broker is stopped, and how often killed; 0 means 2.
	Interruptions int
}

// Stored is a record as the broker gives it back.
type Stored struct {
	ID      string // the record id, from where the driver puts it beside the payload
	Payload string
}

// timing is that of a gateway in a hurry.
var timing = uplink.Timing{
	RetryMin: 20 * time.Millisecond, RetryMax: 200 * time.Millisecond,
	ConfigMin: 20 * time.Millisecond, ConfigMax: 200 * time.Millisecond,
	Stall: 1500 * time.Millisecond, Open: 5 * time.Second, Drain: time.Second,
}

const (
	gateway = "gw1"
	stream  = "line"
	epoch   = 7
	patient = 60 * time.Second // bound of waits that should take far less
)

// part is a case of the suite.
type part struct {
	name string
	run  func(*testing.T, *bench)
}

// The cases. Those of the first list only spoil a line of their own or wait, so they run side by side on one broker; those of the
// second want it for themselves.
func parts(s Suite) (together, alone []part) {
	together = []part{
		{"close in flight then restart", closeInFlight},
		{"a slow line", slowLine},
		{"a latency of 2 s", latency},
		{"a line of 10 kB a second", narrow},
		{"lost replies", lostReplies},
		{"connections reset in the middle of requests", reset},
		{"a line that takes all and answers nothing", blackHole},
		{"memory during a long outage", outage},
	}
	if s.Access != nil {
		together = append(together, part{"credentials are revoked and renewed", revoked})
	}
	if s.Delete != nil {
		together = append(together, part{"the place is deleted and made again", deleted})
	}
	return together, []part{
		{"each record is confirmed once and in order", inOrder},
		{"a record refused for good becomes a dead letter and the rest flows", refused},
		{"a record over every limit becomes a dead letter and the rest flows", tooLarge},
		{"a broker that stands still", standsStill},
		{"the broker is down at the start", downAtStart},
		{"the broker is stopped and started in mid-flow", stopped},
		{"the broker is killed in mid-flow", brokerKilled},
		{"the gateway is killed in mid-flow", gatewayKilled},
	}
}

// Run runs the suite as subtests of t.
func Run(t *testing.T, s Suite) {
	if killed(t, s) {
		return
	}
	server := s.Server(t)
	lines := newLines(server)
	t.Run(s.Name, func(t *testing.T) {
		together, alone := parts(s)
		t.Logf("conformance %s has %d cases", s.Name, len(together)+len(alone)) // test/conformance counts them
		run := func(p part) {
			t.Run(p.name, func(t *testing.T) {
				b := newBench(t, s, server, "place-"+strings.ReplaceAll(strings.ToLower(p.name), " ", "-"))
				b.lines = lines
				p.run(t, b)
				for _, m := range b.log.Mistakes() {
					t.Errorf("the runner's use of the log: %s", m)
				}
			})
		}
		var running sync.WaitGroup
		for _, p := range together {
			running.Go(func() { run(p) }) // t.Parallel would run as many as there are processors, and these wait
		}
		running.Wait()
		for _, p := range alone {
			run(p)
		}
	})
}

// bench is one subtest's set-up.
type bench struct {
	*testing.T
	suite  Suite
	server *rig.Server
	lines  *lines
	place  string
	addr   string // of the broker or of a proxy
	log    *Log
	timing uplink.Timing
	mark   *note // of RunRestored
}

// newBench makes a place at a broker.
func newBench(t *testing.T, s Suite, server *rig.Server, place string) *bench {
	t.Helper()
	if s.Prepare != nil {
		s.Prepare(t, server.Addr, place)
	}
	return &bench{T: t, suite: s, server: server, place: place, addr: server.Addr, log: NewLog(), timing: timing}
}

// runner starts a runner and returns it with a function that stops it.
func (b *bench) runner() (*uplink.Runner, func()) {
	b.Helper()
	r := uplink.New(b.config())
	return r, b.start(r)
}

func (b *bench) config() uplink.RunnerConfig {
	return uplink.RunnerConfig{Driver: b.suite.Driver(b.addr, b.place), Env: b.suite.env(), Cursor: b.log, Timing: b.timing}
}

func (s Suite) env() uplink.Env {
	e := env()
	if s.Delivery != "" {
		e.Promise = uplink.Promise{Delivery: s.Delivery, Order: uplink.OrderStrict}
	}
	return e
}

func env() uplink.Env {
	level := slog.LevelError
	if testing.Verbose() {
		level = slog.LevelInfo
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	return uplink.Env{Gateway: gateway, Stream: stream, Epoch: epoch, Uplink: "far", Log: log}
}

func (b *bench) start(r *uplink.Runner) (stop func()) {
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		select {
		case err := <-done:
			if err != nil {
				b.Errorf("Run = %v, want nil", err)
			}
		case <-time.After(patient):
			b.Errorf("Run does not return")
		}
	}
	b.Cleanup(stop)
	return stop
}

// message returns the n-th message of a test; n begins at 1 and is the record's sequence.
func message(n int) pipeline.Message {
	return pipeline.Message{
		Time: time.Unix(1_700_000_000+int64(n), 0).UTC(), Source: "boiler", Topic: fmt.Sprintf("boiler/1/point%d", n%7),
		Key: "boiler", Value: pipeline.Int(int64(n)), Unit: "°C",
	}
}

func (b *bench) append(n int) {
	for range n {
		b.log.Append(message(b.log.Len() + 1))
	}
}

// appendSteadily appends n messages at a pace until it is done.
func (b *bench) appendSteadily(n int, every time.Duration) (wait func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range n {
			b.append(1)
			time.Sleep(every)
		}
	}()
	return func() { <-done }
}

// waitSettled waits until all records have an outcome, as long as more of them have one.
func (b *bench) waitSettled() {
	b.Helper()
	for was := -1; !b.log.Wait(b.log.Len(), patient); {
		now := b.log.Settled()
		if now == was {
			b.Fatalf("%d of %d records have an outcome, and for %v no more of them", now, b.log.Len(), patient)
		}
		was = now
	}
}

// check reads everything back: no record but the dead letters may be missing, the order is that of the log, and what is
// there twice is within what the driver promises.
func (b *bench) check(mayDouble int) {
	b.Helper()
	if !b.suite.Doubles {
		mayDouble = 0
	}
	b.suite.judge(b.suite.Read(b.T, b.server.Addr, b.place), 0, b.log.Len(), b.dead()).mustBe(b.T, mayDouble)
}

func (b *bench) dead() map[int]bool {
	dead := map[int]bool{}
	for _, l := range b.log.Letters() {
		dead[int(l.Seq)] = true
	}
	return dead
}
