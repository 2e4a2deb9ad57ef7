package pulsar_test

import (
	"testing"

	"edgegateway/uplink"
	"edgegateway/uplink/uplinktest"
)

func TestProbeDisturbsNobody(t *testing.T) {
	c, driver := exactly("probed")
	g := run(t, driver, uplinktest.NewLog(), "")
	g.send(20)
	env := uplink.Env{Gateway: "gw1", Stream: "line", Epoch: 7, Uplink: "far", Promise: uplink.Promise{Delivery: uplink.ExactlyOnce}}
	steps := 0
	c.Probe(t.Context(), env, func(s uplink.Step) {
		steps++
		if s.Err != nil {
			t.Errorf("%s: %v", s.Name, s.Err)
		}
	})
	if steps != 4 {
		t.Errorf("%d steps, want 4", steps)
	}
	g.send(20)
	g.stop()
	holds(t, "probed", upTo(40)...)
	_, driver = exactly("probed")
	g = run(t, driver, filled(50), "") // the cursor is found behind the probe's note
	g.settle()
	g.stop()
	holds(t, "probed", upTo(50)...)
}
