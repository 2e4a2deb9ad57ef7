package uplinktest

import (
	"math/rand/v2"
	"testing"
	"time"
)

// RunBrokerKills kills the broker at any moment while a runner drains a log that is fed all the time. Suite.Server must start a
// broker that confirms only what is on its disk. None may be lost, and the order must be that of the log. It prints the figures
// and returns how many records are there twice, which is the caller's to judge. UPLINK_BROKER_KILLS in the environment is the
// number of kills instead.
func RunBrokerKills(t *testing.T, s Suite, mode string, kills int) (doubled int) {
	t.Helper()
	kills = fromEnvironment("UPLINK_BROKER_KILLS", kills)
	b := newBench(t, s, s.Server(t), "broker-kills")
	_, stop := b.runner()
	feeding, fed := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(fed)
		for {
			select {
			case <-feeding:
				return
			case <-time.After(time.Millisecond):
				b.append(4)
			}
		}
	}()
	for range kills {
		from := b.log.Settled()
		if !b.log.Wait(from+200, patient) {
			t.Fatalf("nothing arrives between two kills: %d of %d records have an outcome", b.log.Settled(), b.log.Len())
		}
		time.Sleep(rand.N(400 * time.Millisecond))
		b.server.Kill9()
		time.Sleep(rand.N(200 * time.Millisecond))
		b.server.Start()
	}
	close(feeding)
	<-fed
	b.waitSettled()
	stop()
	v := s.judge(s.Read(t, b.server.Addr, b.place), 0, b.log.Len(), b.dead())
	say("kill-broker %s: kills %d sent %d lost %d doubled %d", mode, kills, v.sent, v.lost, v.doubled)
	v.mustBe(t, v.doubled)
	for _, m := range b.log.Mistakes() {
		t.Errorf("the runner's use of the log: %s", m)
	}
	return v.doubled
}
