package uplink_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"edgegateway/uplink"
)

// stubborn refuses record 3 for now, each time; it says whether it has answered.
func stubborn(answered bool) func(int, []uplink.Record, func(uint64, uplink.Outcome)) error {
	return func(_ int, recs []uplink.Record, report func(uint64, uplink.Outcome)) error {
		for i := range recs {
			o := uplink.Outcome{Verdict: uplink.Ack}
			if recs[i].ID.Seq == 3 {
				o = uplink.Outcome{Err: errFar, Answered: answered}
			}
			report(recs[i].ID.Seq, o)
		}
		return nil
	}
}

func TestARecordThatIsRefusedForNowTooOftenOrTooLongBecomesADeadLetter(t *testing.T) {
	for _, row := range []struct {
		name     string
		policy   uplink.Policy
		answered bool
		attempts int           // of the dead letter; 0: there is none after a day
		by       time.Duration // when it is there at the latest
	}{
		{"no limit", uplink.Policy{}, true, 0, 0},
		{"five attempts", uplink.Policy{RetryAttempts: 5}, true, 5, time.Minute},
		{"one attempt", uplink.Policy{RetryAttempts: 1}, true, 1, time.Second},
		{"five attempts, and nobody answers for it", uplink.Policy{RetryAttempts: 5}, false, 0, 0},
		{"an hour", uplink.Policy{RetryAge: time.Hour}, true, 15, 90 * time.Minute},
		{"an hour, and nobody answers for it", uplink.Policy{RetryAge: time.Hour}, false, -1, 90 * time.Minute},
	} {
		for _, order := range []uplink.Order{uplink.OrderStrict, uplink.OrderKey, uplink.OrderNone} {
			t.Run(row.name+", order "+string(order), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := &far{send: stubborn(row.answered)}
					l := runWith(t, f, 10, func(cfg *uplink.RunnerConfig) { cfg.Env.Promise.Order, cfg.Policy = order, row.policy })
					if row.attempts == 0 {
						sleep(24 * time.Hour)
						if n := len(l.log.Letters()); n != 0 {
							t.Errorf("%d dead letters, want the record held for ever", n)
						}
						if s := l.Status(); row.answered && (s.Attempts < 200 || s.HeldFor == "" && order != uplink.OrderStrict) {
							t.Errorf("Status = %+v after a day of attempts", s)
						}
						l.check(t, 2)
						return
					}
					sleep(row.by)
					letters := l.log.Letters()
					if len(letters) != 1 || letters[0].Seq != 3 || letters[0].Driver != "faked" || !strings.Contains(letters[0].Reason, errFar.Error()) {
						t.Fatalf("dead letters %v, want record 3 with the last reason", letters)
					}
					n := letters[0].Attempts
					if row.policy.RetryAttempts > 0 && n != row.attempts || row.attempts > 0 && n < row.attempts || row.attempts < 0 && n != 0 {
						t.Errorf("%d attempts, want %d", n, row.attempts)
					}
					if s := l.Status(); s.Attempts != 0 || s.Held != 0 || s.Dropped != 1 {
						t.Errorf("Status = %+v, want nothing held", s)
					}
					l.append(5)
					sleep(time.Minute)
					l.check(t, 15)
				})
			})
		}
	}
}

func TestConnectionsThatFailUseUpNoAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var down atomic.Bool
		down.Store(true)
		f := &far{
			open: func(n int) error {
				if n%2 == 0 && down.Load() {
					return errFar
				}
				return nil
			},
			send: func(n int, recs []uplink.Record, report func(uint64, uplink.Outcome)) error {
				if down.Load() {
					return errFar
				}
				return ackAll(n, recs, report)
			},
		}
		l := runWith(t, f, 10, func(cfg *uplink.RunnerConfig) { cfg.Policy = uplink.Policy{RetryAttempts: 2} })
		sleep(24 * time.Hour)
		down.Store(false)
		sleep(10 * time.Minute)
		l.check(t, 10)
		if n := len(l.log.Letters()); n != 0 {
			t.Errorf("%d dead letters after an outage, want none", n)
		}
	})
}

func TestAnOutageCountsForTheAgeOfWhatWasSentAndNotOfWhatWaitsBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var down atomic.Bool
		down.Store(true)
		f := &far{send: func(n int, recs []uplink.Record, report func(uint64, uplink.Outcome)) error {
			if down.Load() {
				return nil // no answer: a stall
			}
			return ackAll(n, recs, report)
		}}
		l := runWith(t, f, 30, func(cfg *uplink.RunnerConfig) {
			cfg.Policy = uplink.Policy{RetryAge: time.Hour}
			cfg.MaxRecords = 10
		})
		sleep(80 * time.Minute)
		down.Store(false)
		sleep(10 * time.Minute)
		l.check(t, 30)
		if got := l.log.Letters(); len(got) != 10 || got[0].Attempts != 0 || !strings.Contains(got[0].Reason, "no answer") {
			t.Errorf("dead letters %v, want the 10 that were tried for an hour, with a reason", got)
		}
	})
}

func TestTheLimitsAreThoseOfTheDriversSectionWhereNoneAreGiven(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := limited{&far{send: stubborn(true)}}
		l := run(t, f, 10)
		sleep(time.Minute)
		l.check(t, 10)
		if got := l.log.Letters(); len(got) != 1 || got[0].Attempts != 3 {
			t.Errorf("dead letters %v, want one after 3 attempts", got)
		}
	})
}

type limited struct{ *far }

func (limited) SendingPolicy() *uplink.Policy { return &uplink.Policy{RetryAttempts: 3} }

// guarded is a driver whose sessions can be fenced.
type guarded struct {
	*far
	mu    sync.Mutex // guards the fields below
	asked int
	says  error
	hangs bool
}

func (g *guarded) Open(ctx context.Context, env uplink.Env) (uplink.Session, error) {
	s, err := g.far.Open(ctx, env)
	if err != nil {
		return nil, err
	}
	return &guardedSession{s, g}, nil
}

type guardedSession struct {
	uplink.Session
	g *guarded
}

func (s *guardedSession) Alive(ctx context.Context) error {
	s.g.mu.Lock()
	s.g.asked++
	err, hangs := s.g.says, s.g.hangs
	s.g.mu.Unlock()
	if hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	return err
}

func (g *guarded) set(err error, hangs bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.says, g.hangs = err, hangs
}

func (g *guarded) questions() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.asked
}

func TestAnIdleSessionThatIsFencedSaysSoWithinTenSeconds(t *testing.T) {
	for _, row := range []struct {
		name  string
		err   error
		hangs bool
		want  string
	}{
		{"another one has its place", uplink.Fenced(errors.New("another gateway writes")), false, "another gateway writes"},
		{"nobody answers", nil, true, "deadline"},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := &guarded{far: &far{send: ackAll}}
				l := run(t, g, 5)
				sleep(time.Minute)
				if n := g.questions(); n < 18 || n > 21 {
					t.Errorf("asked %d times in a minute, want about 20", n)
				}
				g.set(row.err, row.hangs)
				sleep(9 * time.Second)
				s := l.Status()
				if !strings.Contains(s.Error, row.want) || s.State != uplink.Waiting && !row.hangs || s.Config != (row.err != nil) {
					t.Errorf("Status = %+v within 9 s, want %q", s, row.want)
				}
				g.set(nil, false)
				sleep(30 * time.Minute)
				if s := l.Status(); s.Error != "" {
					t.Errorf("Error = %q when it is asked and answers, want none", s.Error)
				}
				l.append(5)
				sleep(time.Second)
				l.check(t, 10)
			})
		})
	}
}

func TestASessionThatSendsIsNotAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &guarded{far: &far{send: ackAll}}
		l := run(t, g, 1)
		for range 120 {
			sleep(500 * time.Millisecond)
			l.append(1)
		}
		if n := g.questions(); n != 0 {
			t.Errorf("asked %d times, want none while it sends", n)
		}
		l.check(t, 121)
	})
}

func TestAFencedGatewayWaitsLongerEachTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// A far side that cannot tell who holds the place: each session that is opened fences the other gateway's.
		f := &far{send: func(_ int, recs []uplink.Record, report func(uint64, uplink.Outcome)) error {
			if len(recs) > 0 && recs[0].ID.Seq == 1 {
				report(1, uplink.Outcome{Verdict: uplink.Ack})
			}
			return uplink.Fenced(errors.New("another gateway writes"))
		}}
		l := run(t, f, 100)
		sleep(7 * 24 * time.Hour)
		opened := f.times()
		if len(opened) < 8 || len(opened) > 16 {
			t.Errorf("%d sessions in a week, want about 12", len(opened))
		}
		for i := 1; i < len(opened); i++ {
			least := min(10*time.Minute<<(i-1), 24*time.Hour)
			if d := opened[i].Sub(opened[i-1]); d < least || d > least+least/2+time.Second {
				t.Errorf("pause %d is %v, want %v to half as much again", i, d, least)
			}
		}
		l.check(t, 1)
	})
}
