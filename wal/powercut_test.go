package wal_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"edgegateway/wal"
)

// checkOptions open a log so that hardly anything changes: with these few segments are full, and spares are of use.
var checkOptions = wal.Options{SegmentBytes: 2 * small, NewEpoch: 9}

// cut cuts the power after each event from one on, in each way; after some events only, where the budget is small.
func (s *scene) cut(from int, control wal.Control, budget int) (points int, violations []string) {
	replica := wal.NewReplica(s.t.TempDir())
	o := replica.Under(checkOptions)
	m := s.rec.DiskAt(from, control)
	share := float64(budget) / float64(6*s.rec.Changes(from)+1)
	for i := from; i < s.rec.Len() && points < budget && len(violations) < 20; i++ {
		if !m.Apply(s.rec, i) || s.rnd.Float64() > share {
			continue
		}
		lo := s.rec.NextChange(i + 1)
		for _, v := range m.Variants() {
			must(s.t, replica.Build(m, v, s.rnd))
			_, wrong := s.h.examine(replica.Dir, o, lo, i)
			if points++; points%goOnEach == 0 && len(wrong) == 0 {
				s.goOn(replica.Dir, o)
				_, wrong = s.h.examine(replica.Dir, o, lo, i)
			}
			for _, w := range wrong {
				violations = append(violations, fmt.Sprintf("run %d, after %s, %s: %s", s.run, s.rec.Describe(i), v, w))
			}
		}
	}
	return points, violations
}

// goOnEach is how many points there are for one at which the log is also written to, and looked at again.
const goOnEach = 40

// goOn writes to a log that was cut, so that pages are freed and used which the cut has left.
func (s *scene) goOn(dir string, o wal.Options) {
	o.SegmentBytes = small
	l, err := wal.Open(dir, o)
	must(s.t, err)
	for n := range 3 {
		must(s.t, put(s.t, l, wal.Batch{State: []wal.Change{{Key: goneOn, Value: make([]byte, 3000+n)}}}))
	}
	must(s.t, l.Close())
}

func newScene(t *testing.T, p profile, seed uint64, dir string) *scene {
	return &scene{
		t: t, rec: wal.NewRecorder(dir), h: &history{seen: map[string][]sighting{}}, p: p, rnd: rand.New(rand.NewPCG(seed, 77)),
	}
}

// TestPowerCut records logs at work, and rebuilds and opens what a power cut at each of their writes could leave.
func TestPowerCut(t *testing.T) {
	want := 900
	if v := os.Getenv("POWERCUT_POINTS"); v != "" {
		var err error
		want, err = strconv.Atoi(v)
		must(t, err)
	}
	var points, violations atomic.Int64
	began := time.Now()
	t.Run("profiles", func(t *testing.T) {
		for i, p := range profiles() {
			t.Run(p.name, func(t *testing.T) {
				t.Parallel()
				var sum shown
				share := (want + len(profiles()) - 1) / len(profiles())
				for seed := uint64(0); (share > 0 || !sum.enough(p) && seed < 10) && !t.Failed(); seed++ {
					n, wrong := cutScene(t, p, uint64(len(profiles()))*seed+uint64(i), max(share, 12), &sum)
					share -= n
					points.Add(int64(n))
					violations.Add(int64(len(wrong)))
					for _, w := range wrong {
						t.Error(w)
					}
				}
				if t.Logf("%+v", sum); !sum.enough(p) {
					t.Error("the scenes are too dull")
				}
			})
		}
	})
	t.Logf("%.0f points/s", float64(points.Load())/time.Since(began).Seconds())
	reportLine(t, "POWERCUT_RESULT", fmt.Sprintf("power-cut%s: points %d violations %d", os.Getenv("POWERCUT_ON"), points.Load(), violations.Load()))
}

// cutScene plays a scene and cuts it; then it kills the process or cuts the power somewhere, plays on, and cuts again.
func cutScene(t *testing.T, p profile, seed uint64, budget int, sum *shown) (points int, violations []string) {
	dir := t.TempDir()
	s := newScene(t, p, seed, dir)
	s.perform(dir)
	sum.add(s)
	first := 0
	for _, u := range s.h.ups {
		if u.first == nil {
			first = max(first, u.opened)
		}
	}
	points, violations = s.cut(0, wal.Control{}, (budget+1)/2)
	for _, v := range []wal.Variant{"", wal.Sectors, wal.Garbage} {
		at := first + s.rnd.IntN(s.rec.Len()-first)
		dir := t.TempDir()
		next := s.interrupt(at, v, dir)
		next.p.items /= 4
		from := next.rec.Len()
		next.perform(dir)
		n, wrong := next.cut(from, wal.Control{}, (budget+5)/6)
		points, violations = points+n, append(violations, wrong...)
	}
	return points, violations
}

// TestPowerCutControl takes away what the log relies on, one after the other: the same cuts must find that.
func TestPowerCutControl(t *testing.T) {
	for _, test := range []struct {
		name    string
		control wal.Control
		lag     bool
		want    string // begins what is found
	}{
		{name: "no flush before the meta page", control: wal.Control{NoDataFlush: true}},
		{name: "no flush of the directory", control: wal.Control{NoDirSync: true}},
		{name: "no flush of the directory before a file is emptied", control: wal.Control{NoRecycleFlush: true}},
		{name: "cursors in a later commit", lag: true, want: "went back"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var points, recycled int
			var violations []string
			// What is missing matters at a few moments only, which a scene may not have.
			for seed := uint64(1); len(violations) == 0 && seed <= 10; seed++ {
				dir := t.TempDir()
				s := newScene(t, profiles()[0], seed, dir)
				s.lag = test.lag
				s.perform(dir)
				var n int
				n, violations = s.cut(0, test.control, 3000)
				points, recycled = points+n, recycled+s.rec.Recycled()
			}
			t.Logf("%d files were used again", recycled)
			reportLine(t, "POWERCUT_RESULT", fmt.Sprintf("power-cut control: %s: points %d violations %d", test.name, points, len(violations)))
			if len(violations) == 0 || !strings.Contains(violations[0], test.want) {
				t.Fatalf("%d points have found %q, want violations", points, violations)
			}
			t.Log(violations[0])
		})
	}
}

// reportLine writes a figure where make finds it.
func reportLine(t *testing.T, env, line string) {
	t.Helper()
	t.Log(line)
	if file := os.Getenv(env); file != "" {
		f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		must(t, err)
		fmt.Fprintln(f, line)
		must(t, f.Close())
	}
}

// TestKillThenPowerCut kills the process at each of its writes, opens the log again, and cuts the power then. What the
// restart has shown to readers must not be lost: it may have been in the page cache only.
func TestKillThenPowerCut(t *testing.T) {
	p := profiles()[0]
	p.items = 3
	dir := t.TempDir()
	s := newScene(t, p, 1, dir)
	s.perform(dir)
	at := 0
	for _, u := range s.h.ups {
		at = max(at, u.opened)
	}
	for at = s.rec.NextChange(at); at < s.rec.Len(); at = s.rec.NextChange(at + 1) {
		dir := t.TempDir()
		next := s.interrupt(at, "", dir)
		next.p.items = 1
		next.perform(dir)
		_, wrong := next.cut(at, wal.Control{}, 60)
		for _, w := range wrong {
			t.Errorf("killed after event %d: %s", at, w)
		}
		if t.Failed() {
			return
		}
	}
}
