package uplinktest

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"edgegateway/pipeline"
	"edgegateway/test/rig"
	"edgegateway/uplink"
)

// Suite is what Run needs to know of a driver.
type Suite struct {
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
	// Doubles says that a record which was in flight when a session ended may be stored twice.
	Doubles bool
	// Resumes says that a session goes on behind a far cursor, so that what was stored is not sent again.
	Resumes bool
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

// Run runs the suite as subtests of t.
func Run(t *testing.T, s Suite) {
	if killed(t, s) {
		return
	}
	server := s.Server(t)
	for _, part := range []struct {
		name string
		run  func(*testing.T, *bench)
	}{
		{"each record is confirmed once and in order", inOrder},
		{"a record refused for good becomes a dead letter and the rest flows", refused},
		{"close in flight then restart", closeInFlight},
		{"a slow line", slowLine},
		{"lost replies", lostReplies},
		{"a broker that stands still", standsStill},
		{"the broker is down at the start", downAtStart},
		{"the broker is stopped and started in mid-flow", stopped},
		{"the broker is killed in mid-flow", brokerKilled},
		{"the gateway is killed in mid-flow", gatewayKilled},
	} {
		t.Run(part.name, func(t *testing.T) {
			place := "place-" + strings.ReplaceAll(strings.ToLower(part.name), " ", "-")
			b := &bench{T: t, suite: s, server: server, place: place, addr: server.Addr, log: NewLog()}
			if s.Prepare != nil {
				s.Prepare(t, server.Addr, place)
			}
			part.run(t, b)
			for _, m := range b.log.Mistakes() {
				t.Errorf("the runner's use of the log: %s", m)
			}
		})
	}
}

// bench is one subtest's set-up.
type bench struct {
	*testing.T
	suite  Suite
	server *rig.Server
	place  string
	addr   string // of the broker or of a proxy
	log    *Log
}

// runner starts a runner and returns it with a function that stops it.
func (b *bench) runner() (*uplink.Runner, func()) {
	b.Helper()
	r := uplink.New(uplink.RunnerConfig{
		Driver: b.suite.Driver(b.addr, b.place), Env: env(), Cursor: b.log, Timing: timing,
	})
	return r, b.start(r)
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

func (b *bench) waitSettled() {
	b.Helper()
	if !b.log.Wait(b.log.Len(), patient) {
		b.Fatalf("%d of %d records have an outcome after %v", b.log.Settled(), b.log.Len(), patient)
	}
}

// check reads everything back: no record but the dead letters may be missing, the order is that of the log, and what is
// there twice is within what the driver promises.
func (b *bench) check(mayDouble int) {
	b.Helper()
	dead := map[int]bool{}
	for _, l := range b.log.Letters() {
		dead[int(l.Seq)] = true
	}
	if !b.suite.Doubles {
		mayDouble = 0
	}
	verify(b.T, b.suite.Read(b.T, b.server.Addr, b.place), b.log.Len(), dead, mayDouble)
}

func verify(t testing.TB, stored []Stored, sent int, dead map[int]bool, mayDouble int) {
	t.Helper()
	seen := make(map[string]bool, len(stored))
	doubled, next := 0, 1
	for _, s := range stored {
		if seen[s.ID] {
			doubled++
			continue
		}
		seen[s.ID] = true
		for dead[next] {
			next++
		}
		id := pipeline.RecordID{Gateway: gateway, Stream: stream, Epoch: epoch, Seq: uint64(next)}
		if s.ID != id.String() {
			t.Fatalf("record %s stands where %s should: lost or out of order", s.ID, id)
		}
		m := message(next)
		if want := string(pipeline.AppendJSON(nil, id, &m)); s.Payload != want {
			t.Fatalf("record %s has payload\n%s, want\n%s", s.ID, s.Payload, want)
		}
		next++
	}
	for dead[next] {
		next++
	}
	if next-1 != sent {
		t.Errorf("%d of %d records arrived", next-1, sent)
	}
	if doubled > mayDouble {
		t.Errorf("%d records are stored twice, want at most %d", doubled, mayDouble)
	}
	t.Logf("sent %d lost 0 doubled %d dead letters %d", sent, doubled, len(dead))
}
