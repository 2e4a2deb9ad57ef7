package uplinktest

import (
	"strings"
	"testing"
	"time"

	"edgegateway/uplink"
)

// fencedWithin is how soon the older of two gateways with one id has to know of the other.
const fencedWithin = 10 * time.Second

// RunTwins starts a second gateway with the id of one that runs, as a copied disk or a copied config does. The older one has to
// be fenced and say so, whether it has something to send or nothing; what the newer one sends arrives once, and nothing of what
// the older one holds.
func RunTwins(t *testing.T, s Suite) {
	if IsChild() {
		return
	}
	server := s.Server(t)
	for _, c := range []struct {
		name string
		held int // records that the older one has and must keep
	}{{"the older one sends", 60}, {"the older one is idle", 0}} {
		t.Run(c.name, func(t *testing.T) {
			older := newBench(t, s, server, "twins-"+strings.ReplaceAll(c.name, " ", "-"))
			newer := *older
			newer.log = NewLog()
			olderRuns, stopOlder := older.runner()
			older.append(100)
			older.waitSettled()
			newer.append(100) // they are there already
			newerRuns, stopNewer := newer.runner()
			newer.append(50)
			newer.waitSettled()
			begun := time.Now()
			older.append(c.held)
			says := func(s uplink.Status) bool {
				return s.Config && strings.Contains(s.Error, "another gateway with the id "+gateway)
			}
			for !says(olderRuns.Status()) && time.Since(begun) < fencedWithin {
				time.Sleep(2 * time.Millisecond)
			}
			took := time.Since(begun)
			if status := olderRuns.Status(); !says(status) {
				t.Errorf("Status of the older gateway = %+v after %v, want it to say that another one has its id", status, fencedWithin)
			}
			t.Logf("in plain words: %s", olderRuns.Status().Error)
			for range 20 { // the older one tries again and must not take the place back
				newer.append(5)
				newer.waitSettled()
				time.Sleep(20 * time.Millisecond)
			}
			if status := newerRuns.Status(); status.Error != "" {
				t.Errorf("Status of the newer gateway = %+v, want no error", status)
			}
			if n := older.log.Settled(); n != 100 {
				t.Errorf("the older gateway counts %d records as delivered, want 100", n)
			}
			stopOlder()
			stopNewer()
			v := s.judge(s.Read(t, server.Addr, newer.place), 0, newer.log.Len(), nil)
			say("twins %s, %s: fenced after %.1f s, sent %d lost %d doubled %d", s.Name, c.name, took.Seconds(), v.sent, v.lost, v.doubled)
			v.mustBe(t, 0)
		})
	}
}
