package uplink_test

import (
	"testing"
	"testing/synctest"
	"time"

	"edgegateway/uplink"
)

// TestWhatIsInDoubtKeepsItsAgeOverSessions has no answer come: the age counts from when a record was sent first, and begins anew with
// the next record once that one is confirmed.
func TestWhatIsInDoubtKeepsItsAgeOverSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var report func(uint64, uplink.Outcome)
		f := &far{send: func(session int, _ []uplink.Record, r func(uint64, uplink.Outcome)) error {
			if report = r; session == 2 {
				return errFar
			}
			return nil
		}}
		l := run(t, f, 0)
		age := func() time.Duration {
			if at := l.Status().InDoubt; !at.IsZero() {
				return time.Since(at)
			}
			return -1
		}
		sleep(time.Second)
		if got := age(); got != -1 {
			t.Errorf("in doubt for %v with nothing sent", got)
		}
		l.append(1)
		sleep(10 * time.Second)
		l.append(1)
		sleep(10 * time.Second)
		if got := age(); got != 20*time.Second {
			t.Errorf("in doubt for %v, want 20 s", got)
		}
		for range 60 { // the first session is given up, the second one fails, the third one sends both again
			if sleep(time.Second); f.count() == 3 {
				break
			}
			if got := age(); got < 20*time.Second {
				t.Errorf("in doubt for %v after %d sessions", got, f.count())
			}
		}
		before := age()
		if f.count() != 3 || before < 30*time.Second {
			t.Errorf("in doubt for %v after %d sessions, want 30 s at least after 3", before, f.count())
		}
		report(1, uplink.Outcome{Verdict: uplink.Ack})
		synctest.Wait()
		if got := age(); got != before-10*time.Second {
			t.Errorf("in doubt for %v with the first one confirmed, want %v", got, before-10*time.Second)
		}
		report(2, uplink.Outcome{Verdict: uplink.Ack})
		synctest.Wait()
		if got := age(); got != -1 {
			t.Errorf("in doubt for %v with all confirmed", got)
		}
		l.check(t, 2)
	})
}

func TestFiguresOutliveSessions(t *testing.T) {
	gauge, counter := uplink.Metric{Name: "b_seconds"}, uplink.Metric{Name: "a_total"}
	var figures uplink.Figures
	for range 2 {
		figures.Set(gauge, 7)
		figures.Add(counter, 2)
	}
	got := figures.List()
	if len(got) != 2 || got[0] != (uplink.Figure{Metric: counter, Value: 4}) || got[1] != (uplink.Figure{Metric: gauge, Value: 7}) {
		t.Errorf("List() = %+v", got)
	}
	if gauge.IsCounter() || !counter.IsCounter() {
		t.Error("a counter is told by its name")
	}
	var none *uplink.Figures
	none.Set(gauge, 1)
	if none.List() != nil {
		t.Error("what nobody keeps is forgotten")
	}
}
