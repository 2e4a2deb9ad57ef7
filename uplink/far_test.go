package uplink_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"edgegateway/uplink"
	"edgegateway/uplink/uplinktest"
)

// farSide is a driver whose far side keeps a cursor.
type farSide struct {
	mu     sync.Mutex // guards the fields below
	at     uplink.FarCursor
	got    []uint64
	resets []uplink.FarCursor
}

func (f *farSide) Open(context.Context, uplink.Env) (uplink.Session, error) {
	return &farSideSession{f: f}, nil
}

type farSideSession struct{ f *farSide }

func (s *farSideSession) Far() uplink.FarCursor {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	return s.f.at
}

func (s *farSideSession) Reset(_ context.Context, to uplink.FarCursor) error {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	s.f.at = to
	s.f.resets = append(s.f.resets, to)
	return nil
}

func (s *farSideSession) Send(_ context.Context, recs []uplink.Record, report func(uint64, uplink.Outcome)) error {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	for i := range recs {
		s.f.at = uplink.FarCursor{Epoch: recs[i].ID.Epoch, Seq: recs[i].ID.Seq}
		s.f.got = append(s.f.got, recs[i].ID.Seq)
		report(recs[i].ID.Seq, uplink.Outcome{Verdict: uplink.Ack})
	}
	return nil
}

func (s *farSideSession) Close() {}

// marker is a mark in memory; the zero value is none.
type marker struct{ at uplink.FarCursor }

func (m *marker) Load() (uplink.FarCursor, bool)  { return m.at, m.at != uplink.FarCursor{} }
func (m *marker) Store(at uplink.FarCursor) error { m.at = at; return nil }
func (m *marker) Clear() error                    { m.at = uplink.FarCursor{}; return nil }

// span returns from, …, to.
func span(from, to uint64) []uint64 {
	var out []uint64
	for ; from <= to; from++ {
		out = append(out, from)
	}
	return out
}

func TestWhereSendingGoesOnIsWhatBothSidesKnow(t *testing.T) {
	const tail, epoch = 20, 3
	for _, test := range []struct {
		name   string
		own    int // records that the log knows as confirmed
		freed  uint64
		far    uplink.FarCursor
		late   int // records that come after the gateway has begun, before it is connected
		mark   uplink.FarCursor
		choice uplink.Choice
		sent   []uint64
		fault  string // what the status says where it does not run
	}{
		{name: "a new place", own: 0, sent: span(1, tail)},
		{name: "both the same", own: 5, far: uplink.FarCursor{Epoch: epoch, Seq: 5}, sent: span(6, tail)},
		{name: "the crash came between their commit and ours", own: 5, far: uplink.FarCursor{Epoch: epoch, Seq: 12}, sent: span(13, tail)},
		{name: "all was stored already", own: 5, far: uplink.FarCursor{Epoch: epoch, Seq: tail}},
		{name: "an earlier log was there", own: 0, far: uplink.FarCursor{Epoch: epoch - 1, Seq: 900}, sent: span(1, tail)},
		{name: "the far side has lost some", own: 10, far: uplink.FarCursor{Epoch: epoch, Seq: 7}, sent: span(8, tail)},
		{
			name: "the far side has lost what is freed here", own: 10, freed: 9, far: uplink.FarCursor{Epoch: epoch, Seq: 7},
			fault: "the far side has lost confirmed records",
		},
		{
			name: "the same, and the gap is accepted", own: 10, freed: 9, far: uplink.FarCursor{Epoch: epoch, Seq: 7}, choice: uplink.Resume,
			sent: span(11, tail),
		},
		{name: "an old disk was put back", own: 5, far: uplink.FarCursor{Epoch: epoch, Seq: tail + 1}, fault: "an old copy of the gateway's disk"},
		{
			name: "the same, and the log is believed", own: 5, far: uplink.FarCursor{Epoch: epoch, Seq: tail + 1}, choice: uplink.Restart,
			sent: span(6, tail),
		},
		{name: "the same, and the far side is believed", own: 5, far: uplink.FarCursor{Epoch: epoch, Seq: tail + 1}, choice: uplink.Resume},
		{name: "the same, and the log has grown past it since", own: 5, far: uplink.FarCursor{Epoch: epoch, Seq: tail + 1}, late: 10, fault: "an old copy of the gateway's disk"},
		{
			name: "the same, and the gateway was started again", own: 5, far: uplink.FarCursor{Epoch: epoch, Seq: tail - 2},
			mark: uplink.FarCursor{Epoch: epoch, Seq: tail - 5}, fault: "an old copy of the gateway's disk",
		},
		{
			name: "the same, and there is a new log now", own: 5, far: uplink.FarCursor{Epoch: epoch, Seq: tail - 2},
			mark: uplink.FarCursor{Epoch: epoch - 1, Seq: 1}, sent: span(tail-1, tail),
		},
		{name: "a newer log was there", own: 5, far: uplink.FarCursor{Epoch: epoch + 1, Seq: 2}, fault: "two gateways have the id"},
		{
			name: "the same, and the far side cannot be believed", own: 5, far: uplink.FarCursor{Epoch: epoch + 1, Seq: 2}, choice: uplink.Resume,
			fault: "two gateways have the id",
		},
		{
			name: "the same, and the log is believed after all", own: 5, far: uplink.FarCursor{Epoch: epoch + 1, Seq: 2}, choice: uplink.Restart,
			sent: span(6, tail),
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log := uplinktest.NewLog()
				for range tail {
					log.Append(sample)
				}
				if err := log.Pass(uint64(test.own)); err != nil {
					t.Fatal(err)
				}
				log.Freed(test.freed)
				f := &farSide{at: test.far}
				asked := false
				mark := &marker{at: test.mark}
				status := live(t, uplink.RunnerConfig{
					Driver: f, Env: uplink.Env{Gateway: "gw1", Stream: "line", Epoch: epoch, Uplink: "far"},
					Mark: mark,
					Choice: func() uplink.Choice {
						if asked {
							return ""
						}
						asked = true
						return test.choice
					},
				}, log, test.late)
				if test.fault != "" {
					if !strings.Contains(status.Error, test.fault) || !status.Config {
						t.Errorf("status says %q, want %q and a person to mend it", status.Error, test.fault)
					}
				} else if status.Error != "" {
					t.Errorf("status says %q, want nothing", status.Error)
				}
				if !slices.Equal(f.got, test.sent) {
					t.Errorf("sent %v, want %v", f.got, test.sent)
				}
				if waits := test.fault != ""; waits != (mark.at != uplink.FarCursor{}) {
					t.Errorf("the mark is %v, want one as long as nothing can be sent", mark.at)
				}
				if seq, _ := log.Position(); test.fault == "" && seq != tail {
					t.Errorf("the cursor stands at %d, want %d", seq, tail)
				}
				for _, m := range log.Mistakes() {
					t.Error(m)
				}
			})
		})
	}
}

// An old copy of the disk was put back while the line was down, and the gateway was started again before the far side had said
// anything: what came meanwhile is new all the same.
func TestALifeWithoutAConnectionHasSentNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, mark := uplinktest.NewLog(), &marker{}
		for range 20 {
			log.Append(sample)
		}
		f := &farSide{at: uplink.FarCursor{Epoch: 3, Seq: 25}}
		begin := func(driver uplink.Driver, late int) uplink.Status {
			return live(t, uplink.RunnerConfig{
				Driver: driver, Mark: mark, Env: uplink.Env{Gateway: "gw1", Stream: "line", Epoch: 3, Uplink: "far"},
			}, log, late)
		}
		down := &far{open: func(int) error { return errFar }}
		begin(down, 20)
		begin(down, 20)
		if s := begin(f, 0); !strings.Contains(s.Error, "an old copy of the gateway's disk") || len(f.got) > 0 {
			t.Fatalf("status says %q and %d are sent, want nothing sent because the far side is ahead", s.Error, len(f.got))
		}
		if seq, _ := log.Position(); seq != 0 {
			t.Errorf("the cursor stands at %d, want 0: the far side has others by these numbers", seq)
		}
	})
}

// Where both fit, a kill at any time after that asks nobody.
func TestAMarkIsGoneBeforeTheFirstRecordIsSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mark := &marker{}
		driver := &far{open: func(session int) error {
			if _, ok := mark.Load(); !ok && session == 1 {
				t.Error("a new life has not noted what its log had at the start")
			}
			return nil
		}, send: func(_ int, recs []uplink.Record, report func(uint64, uplink.Outcome)) error {
			if at, ok := mark.Load(); ok {
				t.Errorf("record %d is sent while the mark says that nothing beyond %v was", recs[0].ID.Seq, at)
			}
			return ackAll(0, recs, report)
		}}
		l := runWith(t, driver, 10, func(cfg *uplink.RunnerConfig) { cfg.Mark = mark })
		sleep(time.Second)
		l.append(10)
		sleep(time.Second)
		l.check(t, 20)
	})
}

// A choice that was left where nothing was to be chosen is not followed a year later.
func TestAChoiceThatNobodyAskedForIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		choices := make(chan uplink.Choice, 1)
		f := &farSide{}
		l := runWith(t, f, 10, func(cfg *uplink.RunnerConfig) {
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
		choices <- uplink.Restart
		l.Reconnect()
		sleep(time.Minute)
		if len(choices) != 0 || !strings.Contains(l.text(), "the operator's choice is forgotten") {
			t.Errorf("the choice waits; the log says:\n%s", l.text())
		}
		f.mu.Lock()
		f.at.Seq = 99 // now there is something to choose
		f.mu.Unlock()
		l.Reconnect()
		sleep(time.Hour)
		s := l.Status()
		if !slices.Equal(s.Choices, []uplink.Choice{uplink.Restart, uplink.Resume}) || !s.Config {
			t.Fatalf("status %+v, want that an operator is to choose", s)
		}
		choices <- uplink.Restart
		l.Reconnect()
		sleep(time.Minute)
		if s := l.Status(); s.State != uplink.Sending || s.Choices != nil || !slices.Equal(f.resets, []uplink.FarCursor{{Epoch: 3, Seq: 10}}) {
			t.Errorf("status %+v, the far cursor was set to %v; want that the choice was followed", s, f.resets)
		}
		choices <- uplink.Resume
		l.Reconnect()
		sleep(time.Minute)
		if len(choices) != 0 {
			t.Error("a second choice waits, though the first one was followed")
		}
		l.check(t, 10)
	})
}
