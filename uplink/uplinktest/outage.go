package uplinktest

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"edgegateway/uplink"
)

// A child with this variable appends at a pace that a line can follow and says how much memory it has.
const outageVariable = "EDGE_UPLINKTEST_OUTAGE"

// outage wants the memory of a gateway to stay where it was while the broker cannot be reached and sources go on: what waits,
// waits on the disk. The line is dead in turns in the two ways there are, refusing and silent.
func outage(t *testing.T, b *bench) {
	p := b.proxy()
	dir := filepath.Join(t.TempDir(), "log")
	c := b.child(dir, outageVariable+"=1")
	c.waitPast(500)
	c.waitFlight()
	time.Sleep(time.Second)
	before, _ := c.look()
	times := 0
	for end := time.Now().Add(long(20*time.Second, 10*time.Minute)); time.Now().Before(end); {
		p.Hole(true)
		time.Sleep(long(4*time.Second, time.Minute))
		p.Hole(false)
		p.Down()
		time.Sleep(long(3*time.Second, time.Minute))
		p.Up()
		times += 2
	}
	during, flight := c.look()
	total := c.settle(500)
	bound := before + 12<<20 + 2*b.flightBytes()
	t.Logf("live heap %.1f MB before the outage, %.1f MB at most during it (bound %.1f MB); in flight at most %d; %d records",
		float64(before)/1e6, float64(during)/1e6, float64(bound)/1e6, flight, total)
	if before == 0 || during > bound {
		t.Errorf("live heap %d before and %d during the outage, want at most %d", before, during, bound)
	}
	if most := b.flightBound(); flight == 0 || flight > most {
		t.Errorf("%d records were in flight, want some and at most %d", flight, most)
	}
	again := 0
	if b.suite.Doubles {
		again = times * b.flightBound()
	}
	b.suite.judge(b.suite.Read(t, b.server.Addr, b.place), 0, total, nil).mustBe(t, again)
}

// flightBytes is how many bytes a runner of this driver may have in flight.
func (b *bench) flightBytes() int {
	if roomy, ok := b.suite.Driver(b.addr, b.place).(uplink.Roomy); ok {
		_, n := roomy.InFlight(b.suite.env().Promise)
		return max(1<<20, n)
	}
	return 1 << 20
}

// waitFlight waits until the child has a session: what the line does before that is no outage.
func (c *child) waitFlight() {
	c.t.Helper()
	for deadline := time.Now().Add(patient); ; time.Sleep(10 * time.Millisecond) {
		c.mu.Lock()
		flight := c.flight
		c.mu.Unlock()
		if flight > 0 {
			return
		}
		if time.Now().After(deadline) {
			c.t.Fatal("the gateway sends nothing")
		}
	}
}

// look returns the most of live heap and of records in flight since it was last called.
func (c *child) look() (heap, flight int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	heap, flight = c.heap, c.flight
	c.heap, c.flight = 0, 0
	return heap, flight
}

// weigh says how much memory this process has and what its runner has in flight.
func weigh(ctx context.Context, r *uplink.Runner) {
	for ctx.Err() == nil {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		fmt.Printf("heap %d\nflight %d\n", m.HeapAlloc, r.Status().InFlight)
		time.Sleep(200 * time.Millisecond)
	}
}
