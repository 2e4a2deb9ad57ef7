package uplink_test

import (
	"fmt"
	"math/bits"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"edgegateway/uplink"
)

// refusing is a far side that refuses each batch with one of these records in it, and does not say which.
func refusing(bad []uint64, ends error) func(int, []uplink.Record, func(uint64, uplink.Outcome)) error {
	return func(_ int, recs []uplink.Record, report func(uint64, uplink.Outcome)) error {
		if !slices.ContainsFunc(seqs(recs), func(n uint64) bool { return slices.Contains(bad, n) }) {
			return ackAll(0, recs, report)
		}
		for _, r := range recs {
			report(r.ID.Seq, uplink.Outcome{Verdict: uplink.Suspect, Err: errFar})
		}
		return ends
	}
}

func TestRefusedRecordIsFoundInHalves(t *testing.T) {
	for _, row := range []struct {
		name string
		n    int
		bad  []uint64
		ends error
	}{
		{"the first", 1000, []uint64{1}, nil},
		{"the last", 1000, []uint64{1000}, nil},
		{"one in the middle", 1000, []uint64{617}, nil},
		{"and the driver gives the session up", 1000, []uint64{617}, errFar},
		{"two neighbours", 1000, []uint64{617, 618}, nil},
		{"three apart", 1000, []uint64{3, 500, 999}, nil},
		{"one of two", 2, []uint64{2}, nil},
		{"the only one", 1, []uint64{1}, nil},
		{"all of a few", 5, []uint64{1, 2, 3, 4, 5}, errFar},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &far{send: refusing(row.bad, row.ends)}
				begun := time.Now()
				l := run(t, f, row.n)
				synctest.Wait()
				if d := time.Since(begun); d != 0 {
					t.Errorf("the search took %v of pauses, want none", d)
				}
				tries := len(f.sent)
				t.Logf("%d of %d records refused: found with %d tries", len(row.bad), row.n, tries)
				if most := len(row.bad) * (bits.Len(uint(row.n)) + 2); tries > most+1 {
					t.Errorf("%d tries, want at most %d", tries, most+1)
				}
				l.append(5)
				l.check(t, row.n+5)
				var got []uint64
				for _, d := range l.log.Letters() {
					got = append(got, d.Seq)
					if d.Reason != errFar.Error() || d.Driver != "faked" || d.Attempts < 1 || d.Attempts > tries {
						t.Errorf("dead letter %+v, want its reason, its driver and its attempts", d)
					}
				}
				if !slices.Equal(got, row.bad) {
					t.Errorf("dead letters %v, want %v", got, row.bad)
				}
				if s := l.Status(); s.Acked != uint64(row.n+5-len(row.bad)) || s.Dropped != uint64(len(row.bad)) || s.Attempts != 0 {
					t.Errorf("Status = %+v, want %d acked and %d dropped", s, row.n+5-len(row.bad), len(row.bad))
				}
			})
		})
	}
}

func TestTheSearchGoesThroughWhatStoodBesideTheRefusedBatchToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// A far side that stores all or nothing, in four batches by number: the refused one names its own as suspects only.
		f := &far{send: func(_ int, recs []uplink.Record, report func(uint64, uplink.Outcome)) error {
			if !slices.Contains(seqs(recs), 602) {
				return ackAll(0, recs, report)
			}
			for _, r := range recs {
				o := uplink.Outcome{Err: errFar}
				if r.ID.Seq%4 == 602%4 {
					o.Verdict = uplink.Suspect
				}
				report(r.ID.Seq, o)
			}
			return nil
		}}
		l := run(t, f, 1000)
		synctest.Wait()
		if n := len(f.sent); n > 13 {
			t.Errorf("%d tries, want at most 13", n)
		}
		l.check(t, 1000)
		if got := fmt.Sprint(letters(l)); got != fmt.Sprint([]letter{{602, errFar.Error()}}) {
			t.Errorf("dead letters %v, want 602", got)
		}
	})
}
