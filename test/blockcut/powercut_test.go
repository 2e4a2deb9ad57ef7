package blockcut_test

import (
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"edgegateway/test/blockcut/blockdev"
)

// again is how many points there are for one at which the power is cut once more while the log recovers.
const again = 20

// cutter cuts the power in the record of a scene, and examines what is left.
type cutter struct {
	s        *scene
	replica  *blockdev.Device
	second   *blockdev.Device // for the cut while the replica recovers
	lies     int
	points   int
	wrong    []string
	at       string // where they are mounted
	atSecond string
}

// newCutter returns one that works on the scenes of a device, one after the other.
func newCutter(t *testing.T, d *blockdev.Device) *cutter {
	return &cutter{replica: newReplica(t, d), second: newReplica(t, d), at: t.TempDir(), atSecond: t.TempDir()}
}

// cut cuts before each event of a scene, in each way that makes a difference; before some events only, where the budget is
// small. It returns how many points there were, and what was wrong.
func (c *cutter) cut(s *scene, budget int) (points int, wrong []string) {
	c.s, c.points, c.wrong = s, 0, nil
	events, err := c.s.d.Events()
	must(c.s.t, err)
	open := waiting(events)
	all := 0
	for n := range places(events) {
		all += len(blockdev.Variants(open[n]))
	}
	share := float64(budget) / float64(all)
	for n := range places(events) {
		for _, v := range blockdev.Variants(open[n]) {
			if c.s.rnd.Float64() > share {
				continue
			}
			cut := blockdev.Cut{At: n, Variant: v, Seed: c.s.rnd.Uint64(), Lies: c.lies}
			c.examine(cut)
			if c.points >= budget || len(c.wrong) >= 20 {
				return c.points, c.wrong
			}
		}
	}
	return c.points, c.wrong
}

// places yields where a cut is another one than the cut before: before each write and flush, and at the end.
func places(events []blockdev.Event) func(func(int) bool) {
	return func(yield func(int) bool) {
		for n, e := range events {
			if e.Op != blockdev.OpMark && !yield(n) {
				return
			}
		}
		yield(len(events))
	}
}

// examine makes one cut, or two: the second while the replica mounts, recovers and goes on.
func (c *cutter) examine(cut blockdev.Cut) {
	t := c.s.t
	_, err := c.replica.Cut(c.s.d, cut)
	must(t, err)
	twice := c.points%again == again-1
	if twice {
		must(t, c.replica.Record())
	}
	c.look(c.replica, c.at, cut, "")
	if !twice || len(c.wrong) > 0 {
		return
	}
	events, err := c.replica.Events()
	must(t, err)
	open := waiting(events)
	for range 3 {
		n := c.s.rnd.IntN(len(events) + 1)
		list := blockdev.Variants(open[n])
		more := blockdev.Cut{At: n, Variant: list[c.s.rnd.IntN(len(list))], Seed: c.s.rnd.Uint64(), Lies: c.lies}
		_, err := c.second.Cut(c.replica, more)
		must(t, err)
		c.look(c.second, c.atSecond, cut, fmt.Sprintf(", and again before %d of its recovery, %s", n, more.Variant))
	}
}

// look mounts a device, which has the file system replay its journal, and examines the log on it.
func (c *cutter) look(d *blockdev.Device, at string, cut blockdev.Cut, more string) {
	t := c.s.t
	c.points++
	var wrong []string
	must(t, d.Warm(0, journal))
	dir, err := mount(d, at, c.s.p.ext4)
	if err != nil {
		wrong = []string{fmt.Sprintf("the file system does not mount: %v", err)}
	} else {
		wrong = c.s.h.examine(t.Context(), dir, cut.At)
		must(t, d.Unmount())
	}
	for _, w := range wrong {
		c.wrong = append(c.wrong, fmt.Sprintf("cut before event %d, %s%s: %s", cut.At, cut.Variant, more, w))
	}
}

// TestPowerCut records logs at work on ext4, and rebuilds, mounts and opens what a power cut at each write and flush of the
// device could leave.
func TestPowerCut(t *testing.T) {
	want := 500
	if v := os.Getenv("POWERCUT_POINTS"); v != "" {
		n, err := strconv.Atoi(v)
		must(t, err)
		want = n
	}
	var points, violations atomic.Int64
	began := time.Now()
	t.Run("profiles", func(t *testing.T) {
		for i, p := range profiles() {
			t.Run(p.name, func(t *testing.T) {
				t.Parallel()
				d := newDevice(t, imageMiB)
				c := newCutter(t, d)
				var sum shown
				for left, seed := (want+2)/3, uint64(i); left > 0 && !t.Failed(); seed += 3 {
					s := newScene(t, d, p, seed)
					s.perform()
					sum.add(s)
					n, wrong := c.cut(s, min(left, perScene))
					left -= n
					points.Add(int64(n))
					violations.Add(int64(len(wrong)))
					for _, w := range wrong {
						t.Errorf("scene %d, %s", seed, w)
					}
				}
				sum.mustShow(t, p)
			})
		}
	})
	t.Logf("%.0f points/min", float64(points.Load())/time.Since(began).Minutes())
	line := fmt.Sprintf("power-cut block: points %d violations %d", points.Load(), violations.Load())
	t.Log(line)
	report(line)
}

// TestPowerCutControl takes away what the log relies on: the same cuts must find that.
func TestPowerCutControl(t *testing.T) {
	for _, test := range []struct {
		name, ext4 string
		lies       int
	}{
		{name: "no barrier: ext4 flushes nothing", ext4: "barrier=0"},
		{name: "the device flushes one flush later than it says", lies: 1},
		{name: "the device flushes ten flushes later than it says", lies: 10},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := profiles()[0]
			p.ext4 = test.ext4
			d := newDevice(t, imageMiB)
			s := newScene(t, d, p, 1)
			s.perform()
			c := newCutter(t, d)
			c.lies = test.lies
			points, wrong := c.cut(s, 400)
			line := fmt.Sprintf("power-cut block control: %s: points %d violations %d", test.name, points, len(wrong))
			report(line)
			if t.Log(line); len(wrong) == 0 {
				t.Fatal("found nothing, want violations")
			}
			t.Log(wrong[0])
		})
	}
}

// perScene bounds the points of one scene, so that a long run has many scenes.
const perScene = 1000

// shown counts what the scenes of a profile had in them.
type shown struct{ begun, freed, letters, dropped int }

func (n *shown) add(s *scene) {
	n.begun, n.freed = n.begun+s.begun, n.freed+s.freed
	for _, u := range s.h.ups {
		for _, o := range u.outcomes {
			if o.refused {
				n.letters++
			}
		}
	}
	n.dropped += len(s.h.fin)
}

// mustShow fails where the scenes were too dull to prove anything.
func (n *shown) mustShow(t *testing.T, p profile) {
	t.Helper()
	t.Logf("%d segments begun, %d freed, %d dead letters, %d dropped ranges", n.begun, n.freed, n.letters, n.dropped)
	if n.begun < 4 || n.freed == 0 || n.letters == 0 || (n.dropped > 0) != (p.why != 0) {
		t.Error("the scenes are too dull")
	}
}
