package uplink_test

import (
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"edgegateway/uplink"
)

// noted is a uplink.Mark in memory.
type noted struct {
	mu sync.Mutex // guards at
	at *uplink.FarCursor
}

func (n *noted) Load() (uplink.FarCursor, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.at == nil {
		return uplink.FarCursor{}, false
	}
	return *n.at, true
}

func (n *noted) Store(at uplink.FarCursor) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.at = &at
	return nil
}

func (n *noted) Clear() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.at = nil
	return nil
}

// An old copy of the disk was put back: the log has 10 records that the far side knows, and gives the numbers behind them, which the
// far side knows as well, to others.
func TestARepeatOfWhatWasNeverSentIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		known := uint64(20)
		driver := &far{send: func(_ int, recs []uplink.Record, report func(uint64, uplink.Outcome)) error {
			for i := range recs {
				report(recs[i].ID.Seq, uplink.Outcome{Verdict: uplink.Ack, Repeat: recs[i].ID.Seq <= known})
			}
			return nil
		}}
		mark, choices := &noted{}, make(chan uplink.Choice, 1)
		l := runWith(t, driver, 10, func(cfg *uplink.RunnerConfig) {
			cfg.Mark = mark
			cfg.Choice = func() uplink.Choice {
				select {
				case c := <-choices:
					return c
				default:
					return ""
				}
			}
		})
		sleep(time.Minute)
		if s := l.Status(); l.log.Settled() != 10 || s.Error != "" {
			t.Fatalf("%d settled, %+v; want 10, and no error for what may have been sent before", l.log.Settled(), s)
		}
		l.append(15)
		sleep(time.Hour)
		s := l.Status()
		if l.log.Settled() != 10 || !s.Config || !strings.Contains(s.Error, "another record with the number 11") {
			t.Fatalf("%d settled, %+v; want 10, and that number 11 is another record", l.log.Settled(), s)
		}
		if at, ok := mark.Load(); !ok || at != (uplink.FarCursor{Epoch: 3, Seq: 10}) {
			t.Errorf("mark %v, want 3/10", at)
		}
		choices <- uplink.Resume
		sleep(10 * time.Minute)
		if s := l.Status(); l.log.Settled() != 25 || s.Error != "" {
			t.Errorf("%d settled, %+v; want 25 after the operator's choice", l.log.Settled(), s)
		}
		if _, ok := mark.Load(); ok {
			t.Error("the mark is there after the operator's choice")
		}
		l.append(5)
		sleep(time.Minute)
		l.check(t, 30)
	})
}

// What was sent by this runner is no stranger: its answer was lost.
func TestARepeatOfWhatWasInDoubtCountsAsDelivered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		driver := &far{send: func(session int, recs []uplink.Record, report func(uint64, uplink.Outcome)) error {
			if session == 1 {
				if recs[len(recs)-1].ID.Seq < 10 {
					return nil // the log gives them as they come
				}
				return errFar
			}
			for i := range recs {
				report(recs[i].ID.Seq, uplink.Outcome{Verdict: uplink.Ack, Repeat: true})
			}
			return nil
		}}
		l := run(t, driver, 0)
		sleep(time.Second)
		l.append(10)
		sleep(time.Hour)
		l.check(t, 10)
	})
}
