package uplink_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"edgegateway/pipeline"
	"edgegateway/uplink"
	"edgegateway/uplink/uplinktest"
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

// knower is a driver whose far side knows records by their ids, up to known. It does not store what it knows.
type knower struct {
	mu     sync.Mutex // guards the fields below
	known  uint64
	stored []uint64
}

func (k *knower) Open(context.Context, uplink.Env) (uplink.Session, error) { return knowing{k}, nil }

type knowing struct{ k *knower }

func (s knowing) Knows(_ context.Context, id pipeline.RecordID) (bool, error) {
	s.k.mu.Lock()
	defer s.k.mu.Unlock()
	return id.Seq <= s.k.known, nil
}

func (s knowing) Send(_ context.Context, recs []uplink.Record, report func(uint64, uplink.Outcome)) error {
	s.k.mu.Lock()
	defer s.k.mu.Unlock()
	for i := range recs {
		seq := recs[i].ID.Seq
		repeat := seq <= s.k.known
		if !repeat {
			s.k.known = seq
			s.k.stored = append(s.k.stored, seq)
		}
		report(seq, uplink.Outcome{Verdict: uplink.Ack, Repeat: repeat})
	}
	return nil
}

func (s knowing) Close() {}

// An old copy of the disk was put back, the line was down, and whoever saw that started the gateway again.
func TestARepeatIsHeldThoughTheGatewayWasStartedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, mark, k := uplinktest.NewLog(), &noted{}, &knower{known: 15}
		for range 10 {
			log.Append(sample)
		}
		resume := false
		begin := func(driver uplink.Driver, late int) uplink.Status {
			return live(t, uplink.RunnerConfig{
				Driver: driver, Mark: mark, Env: uplink.Env{Gateway: "gw1", Stream: "line", Epoch: 3, Uplink: "far"},
				Choice: func() uplink.Choice {
					if resume {
						return uplink.Resume
					}
					return ""
				},
			}, log, late)
		}
		down := &far{open: func(int) error { return errFar }}
		begin(down, 10)
		begin(down, 10)
		for range 2 {
			if s := begin(k, 0); !strings.Contains(s.Error, "another record with the number 11") || !s.Config {
				t.Fatalf("status %+v, want that number 11 is another record", s)
			}
			if seq, _ := log.Position(); seq != 0 || len(k.stored) > 0 {
				t.Fatalf("the cursor stands at %d and %d are stored, want nothing to happen before an operator has chosen", seq, len(k.stored))
			}
		}
		resume = true
		if s := begin(k, 0); s.Error != "" || log.Settled() != 30 || len(k.stored) != 15 {
			t.Errorf("status %+v, %d settled, %d stored; want 30 and 15 after the choice", s, log.Settled(), len(k.stored))
		}
		resume = false
		if s := begin(k, 5); s.Error != "" || log.Settled() != 35 || len(k.stored) != 20 {
			t.Errorf("status %+v, %d settled, %d stored; want 35 and 20 afterwards", s, log.Settled(), len(k.stored))
		}
	})
}

// A disk on which nothing can be noted at the start is no reason to stand still, and it is tried again.
func TestAStartThatCannotBeNotedIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mark := &full{left: 3}
		opened := 0
		driver := &far{open: func(int) error {
			if opened++; opened > 5 {
				return nil
			}
			return errFar
		}, send: ackAll}
		l := runWith(t, driver, 10, func(cfg *uplink.RunnerConfig) { cfg.Mark = mark })
		l.append(10)
		sleep(10 * time.Minute)
		if mark.stored != (uplink.FarCursor{Epoch: 3, Seq: 10}) {
			t.Errorf("noted %v, want 3/10 as soon as there was room", mark.stored)
		}
		if n := strings.Count(l.text(), "the start cannot be noted"); n != 1 {
			t.Errorf("said %d times, want once:\n%s", n, l.text())
		}
		l.check(t, 20)
	})
}

// full is a mark that cannot be stored so many times.
type full struct {
	marker
	left   int
	stored uplink.FarCursor
}

func (f *full) Store(at uplink.FarCursor) error {
	if f.left--; f.left >= 0 {
		return errFar
	}
	f.stored = at
	return f.marker.Store(at)
}
