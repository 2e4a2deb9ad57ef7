package uplinktest

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"edgegateway/test/rig"
	"edgegateway/uplink"
)

// lines hands out where a proxy may listen and where it leads. A server that tells its clients where to connect next has only
// so many such places.
type lines struct {
	any  *rig.Front // where any port will do
	free chan rig.Front
}

func newLines(s *rig.Server) *lines {
	one := rig.Front{At: s.ProxyAt, To: s.ProxyTo}
	if strings.HasSuffix(one.At, ":0") {
		return &lines{any: &one}
	}
	fronts := append([]rig.Front{one}, s.Fronts...)
	l := &lines{free: make(chan rig.Front, len(fronts))}
	for _, f := range fronts {
		l.free <- f
	}
	return l
}

// proxy puts a line between the driver and the broker, and waits for one where there are only so many.
func (b *bench) proxy() *Proxy {
	b.Helper()
	front := b.lines.any
	if front == nil {
		f := <-b.lines.free
		front = &f
		b.Cleanup(func() { b.lines.free <- f }) // after the proxy has ended
	}
	p := NewProxy(b.T, front.At, front.To)
	b.addr = p.Addr
	return p
}

// slow begins a case that finds out whether the patience of a real gateway fits a slow line, which is not a dead one. The place
// takes a first record before.
func (b *bench) slow(there time.Duration, rate int64) {
	b.Helper()
	_, stop := b.runner()
	b.append(1)
	b.waitSettled()
	stop()
	b.proxy().Slow(there, rate)
	b.timing = uplink.Timing{}
}

func slowLine(_ *testing.T, b *bench) {
	b.slow(60*time.Millisecond, 200<<10)
	b.append(1500)
	b.carries()
}

func latency(_ *testing.T, b *bench) {
	b.slow(time.Second, 0) // there and back
	b.append(300)
	b.carries()
}

func narrow(_ *testing.T, b *bench) {
	b.slow(0, 10_000)
	b.append(long(300, 6000)) // 12 s, or as much as is in flight at once and more
	b.carries()
}

// carries wants what is in the log to arrive without a failure.
func (b *bench) carries() {
	b.Helper()
	r, stop := b.runner()
	most := 0
	for deadline := time.Now().Add(long(2*time.Minute, 20*time.Minute)); !b.log.Wait(b.log.Len(), 20*time.Millisecond); {
		s := r.Status()
		most = max(most, s.InFlight)
		if s.State == uplink.Waiting {
			b.Fatalf("a slow line was taken for a dead one: %s", s.Error)
		}
		if time.Now().After(deadline) {
			b.Fatalf("%d of %d records have an outcome; %+v", b.log.Settled(), b.log.Len(), s)
		}
	}
	stop()
	if bound := b.flightBound(); most > bound {
		b.Errorf("%d records were in flight, want at most %d", most, bound)
	}
	b.check(0)
}

// flightBound is how many records a runner of this driver may have in flight.
func (b *bench) flightBound() int {
	d := b.suite.Driver(b.addr, b.place)
	if roomy, ok := d.(uplink.Roomy); ok {
		n, _ := roomy.InFlight(b.suite.env().Promise)
		return max(1024, n)
	}
	return 1024
}

// lostReplies loses them in two ways: the line is closed upon it, or the gateway has to find out by itself.
func lostReplies(t *testing.T, b *bench) {
	p := b.proxy()
	r, stop := b.runner()
	for round := range 4 {
		b.append(200)
		b.waitSettled()
		p.Swallow(true)
		b.append(300)
		for deadline := time.Now().Add(patient); p.Swallowed() == 0; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("no reply came to be swallowed")
			}
		}
		if round%2 == 1 && !waitState(r, uplink.Waiting) {
			t.Errorf("Status = %+v without replies, want waiting", r.Status())
		}
		p.Swallow(false)
		b.waitSettled()
	}
	stop()
	if b.log.Again() == 0 && !b.suite.Resumes {
		t.Error("no record was sent a second time: the test lost no reply")
	}
	t.Logf("%d records were sent a second time", b.log.Again())
	b.check(b.log.Again())
}

// reset cuts connections after a number of bytes that falls into the sign-in, a request or between two.
func reset(t *testing.T, b *bench) {
	p := b.proxy()
	_, stop := b.runner()
	for range long(8, 60) {
		p.CutAfter(rand.IntN(40_000))
		b.append(200)
		time.Sleep(rand.N(400 * time.Millisecond))
		p.Mend()
		b.append(100)
		time.Sleep(rand.N(200 * time.Millisecond))
	}
	b.waitSettled()
	stop()
	t.Logf("%d records were sent a second time", b.log.Again())
	b.check(b.log.Again())
}

// blackHole has a line that takes connections and bytes and gives nothing back, from the start and in mid-flow.
func blackHole(t *testing.T, b *bench) {
	p := b.proxy()
	p.Hole(true)
	b.append(100)
	b.timing.Open = 1500 * time.Millisecond
	r, stop := b.runner()
	if !waitState(r, uplink.Waiting) {
		t.Errorf("Status = %+v with a line that answers nothing, want waiting", r.Status())
	}
	t.Logf("in plain words: %s", r.Status().Error)
	if s := r.Status(); s.Error == "" || s.Config {
		t.Errorf("Status = %+v, want an error that is nobody's to mend", s)
	}
	p.Hole(false)
	stop()
	b.timing.Open = timing.Open
	r, stop = b.runner()
	for range 2 {
		b.waitSettled()
		p.Hole(true)
		b.append(200)
		if !waitState(r, uplink.Waiting) {
			t.Errorf("Status = %+v with a line that has gone quiet, want waiting", r.Status())
		}
		p.Hole(false)
	}
	b.waitSettled()
	stop()
	b.check(b.log.Again())
}
