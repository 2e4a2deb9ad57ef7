package uplink_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"edgegateway/uplink"
)

func TestReconnectWaitsForWhatIsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var answer []func()
		driver := &far{send: func(_ int, recs []uplink.Record, report func(uint64, uplink.Outcome)) error {
			mu.Lock()
			defer mu.Unlock()
			for _, seq := range seqs(recs) {
				answer = append(answer, func() { report(seq, uplink.Outcome{Verdict: uplink.Ack}) })
			}
			return nil
		}}
		confirm := func() {
			mu.Lock()
			defer mu.Unlock()
			for _, a := range answer {
				a()
			}
			answer = nil
		}
		l := run(t, driver, 10)
		synctest.Wait()
		l.Reconnect()
		l.append(5)
		sleep(2 * time.Second)
		if n := driver.count(); n != 1 {
			t.Errorf("%d sessions while records are in flight, want 1", n)
		}
		confirm()
		sleep(time.Second)
		if n := driver.count(); n != 2 {
			t.Errorf("%d sessions after the answers, want 2", n)
		}
		confirm()
		l.check(t, 15)
		sent := 0
		for _, s := range driver.sent {
			sent += len(s)
		}
		if sent != 15 || driver.closed != 2 {
			t.Errorf("%d records were sent and %d sessions closed, want 15 and 2", sent, driver.closed)
		}
	})
}

func TestReconnectEndsAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		driver := &far{send: ackAll, open: func(session int) error {
			if session == 1 {
				return uplink.Config(errFar)
			}
			return nil
		}}
		l := run(t, driver, 3)
		sleep(time.Second) // the pause is ten seconds at the least
		if n := driver.count(); n != 1 {
			t.Fatalf("%d sessions, want 1", n)
		}
		begun := time.Now()
		l.Reconnect()
		synctest.Wait()
		if n := driver.count(); n != 2 || time.Since(begun) != 0 {
			t.Errorf("%d sessions after %v, want 2 at once", n, time.Since(begun))
		}
		l.check(t, 3)
	})
}
