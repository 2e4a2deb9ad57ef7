package uplink_test

import (
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"edgegateway/uplink"
)

func TestPausedRunnerLetsWhatIsInFlightFinishAndHoldsTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &far{send: func(_ int, recs []uplink.Record, report func(uint64, uplink.Outcome)) error {
			go func() {
				time.Sleep(500 * time.Millisecond)
				_ = ackAll(0, recs, report)
			}()
			return nil
		}}
		l := run(t, f, 10)
		sleep(100 * time.Millisecond)
		l.Pause()
		l.Pause()
		sleep(time.Second)
		if s := l.Status(); s.State != uplink.Paused || l.log.Settled() != 10 || f.closed != 1 {
			t.Errorf("Status = %+v, %d settled, %d sessions closed; want paused with 10 settled and 1 closed", s, l.log.Settled(), f.closed)
		}
		l.append(5)
		sleep(time.Hour)
		if n := f.count(); n != 1 || l.log.Settled() != 10 {
			t.Errorf("%d sessions, %d settled while paused, want 1 and 10", n, l.log.Settled())
		}
		l.Resume()
		l.Resume()
		sleep(time.Second)
		l.check(t, 15)
		if n := l.log.Again(); n != 0 {
			t.Errorf("%d records were sent again, want 0", n)
		}
		if text := l.text(); strings.Count(text, "uplink paused") != 1 {
			t.Errorf("the log says:\n%s", text)
		}
	})
}

func TestPauseEndsATryAndResumeAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &far{open: func(int) error { return uplink.Config(errFar) }, send: ackAll}
		l := run(t, f, 1)
		sleep(5 * time.Second)
		l.Pause()
		sleep(0)
		if s := l.Status(); s.State != uplink.Paused || f.count() != 1 {
			t.Errorf("Status = %+v after %d sessions, want paused after 1", s, f.count())
		}
		sleep(time.Hour)
		l.Resume()
		sleep(0)
		if n := f.count(); n != 2 {
			t.Errorf("%d tries, want one at once after Resume", n)
		}
		l.Pause()
		sleep(0)
		l.stop()
		if s := l.Status(); s.State != uplink.Stopped {
			t.Errorf("Status = %+v after a stop while paused", s)
		}
	})
}

func TestRunnerBeginsPausedAndCanBePausedFromAnywhere(t *testing.T) {
	f := &far{send: ackAll}
	l := runWith(t, f, 2000, func(cfg *uplink.RunnerConfig) { cfg.Paused = true })
	if n := f.count(); n != 0 {
		t.Errorf("%d sessions, want none", n)
	}
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for range 50 {
				if i%2 == 0 {
					l.Pause()
				} else {
					l.Resume()
				}
				_ = l.Status()
			}
		})
	}
	all.Wait()
	l.Resume()
	if !l.log.Wait(2000, 20*time.Second) {
		t.Errorf("%d of 2000 records settled", l.log.Settled())
	}
	l.stop()
	for _, m := range l.log.Mistakes() {
		t.Error(m)
	}
}
