package uplink

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"
)

var errTest = errors.New("test")

// What is up in the sky is what a map would hold, in whatever order records go up, come down and are settled; a page that is used
// again has nothing of its last life.
func TestSkyHoldsWhatIsUp(t *testing.T) {
	var s sky
	up, down := map[uint64]bool{}, []*aloft{}
	next := uint64(0)
	sent := func(seq uint64) int64 { return int64(seq / 16 * 7919 % 4001) } // what was held goes up late, and by any order
	for n := range 200_000 {
		switch rand.N(4) {
		case 0, 1:
			if next++; rand.N(100) == 0 {
				next += rand.Uint64N(1000) // records that were lost
			}
			s.put(aloft{seq: next, since: sent(next)})
			up[next] = true
		case 2:
			for seq := range up { // any of them
				a := s.take(seq)
				if a == nil || a.seq != seq || a.since != sent(seq) || a.Err != nil {
					t.Fatalf("record %d: %+v", seq, a)
				}
				if s.take(seq) != nil {
					t.Fatalf("record %d came down twice", seq)
				}
				a.Err = errTest
				delete(up, seq)
				down = append(down, a)
				break
			}
		default:
			for _, a := range down {
				s.settled(a)
			}
			down = down[:0]
		}
		if s.count != len(up) {
			t.Fatalf("%d are up, want %d", s.count, len(up))
		}
		if n%500 == 0 {
			want := int64(math.MaxInt64)
			for seq := range up {
				want = min(want, sent(seq))
			}
			if got := s.oldest(); got != want {
				t.Fatalf("the oldest was sent at %d, want %d", got, want)
			}
		}
	}
	found := 0
	s.each(func(a *aloft) {
		if found++; !up[a.seq] {
			t.Errorf("record %d is up", a.seq)
		}
	})
	if found != len(up) || s.take(next+1) != nil {
		t.Errorf("%d are up, want %d", found, len(up))
	}
	for seq := range up {
		s.settled(s.take(seq))
	}
	for _, a := range down {
		s.settled(a)
	}
	if s.count != 0 || len(s.pages) != 0 {
		t.Errorf("%d records and %d pages are left", s.count, len(s.pages))
	}
}
