package uplink

import (
	"errors"
	"math/rand/v2"
	"testing"

	"edgegateway/wal"
)

var errTest = errors.New("test")

// What is up in the sky is what a map would hold, in whatever order records go up, come down and are settled; a page that is used
// again has nothing of its last life.
func TestSkyHoldsWhatIsUp(t *testing.T) {
	var s sky
	up, down := map[uint64]bool{}, []*aloft{}
	next := uint64(0)
	for range 200_000 {
		switch rand.N(4) {
		case 0, 1:
			if next++; rand.N(100) == 0 {
				next += rand.Uint64N(1000) // records that were lost
			}
			s.put(aloft{rec: wal.Record{Seq: next}, since: int64(next)})
			up[next] = true
		case 2:
			for seq := range up { // any of them
				a := s.take(seq)
				if a == nil || a.rec.Seq != seq || a.since != int64(seq) || a.Err != nil {
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
	}
	found := 0
	s.each(func(a *aloft) {
		if found++; !up[a.rec.Seq] {
			t.Errorf("record %d is up", a.rec.Seq)
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
