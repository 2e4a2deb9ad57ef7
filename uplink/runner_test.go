package uplink_test

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"edgegateway/pipeline"
	"edgegateway/uplink"
	"edgegateway/wal"
)

func TestOutcomesInAnyOrderMoveTheCursor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &far{send: func(_ int, recs []uplink.Record, report func(uint64, uplink.Outcome)) error {
			for _, r := range slices.Backward(recs) {
				report(r.ID.Seq, uplink.Outcome{Verdict: uplink.Ack})
				report(r.ID.Seq, uplink.Outcome{Verdict: uplink.Drop}) // a driver's mistake goes unheard
			}
			return nil
		}}
		l := run(t, f, 100)
		l.check(t, 100)
		if s := l.Status(); s.Acked != 100 || s.Dropped != 0 || f.count() != 1 {
			t.Errorf("Status = %+v after %d sessions, want 100 acked, 0 dropped, 1 session", s, f.count())
		}
	})
}

func TestSessionEndsAtTheFirstTroubleAndTheNextBeginsAtTheFirstRecordWithoutOutcome(t *testing.T) {
	retry := func(_ int, recs []uplink.Record, report func(uint64, uplink.Outcome)) error {
		for _, r := range recs {
			o := uplink.Outcome{Verdict: uplink.Ack}
			if r.ID.Seq == 4 {
				o = uplink.Outcome{Err: errFar}
			}
			report(r.ID.Seq, o)
		}
		return nil
	}
	fail := func(_ int, recs []uplink.Record, report func(uint64, uplink.Outcome)) error {
		_ = ackAll(0, recs[:3], report)
		return errFar
	}
	for _, row := range []struct {
		name   string
		send   func(int, []uplink.Record, func(uint64, uplink.Outcome)) error
		second []uint64
	}{
		{"an outcome of retry", retry, []uint64{4}},
		{"an error of Send", fail, []uint64{4, 5, 6, 7, 8, 9, 10}},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &far{send: func(n int, recs []uplink.Record, report func(uint64, uplink.Outcome)) error {
					if n == 1 {
						return row.send(n, recs, report)
					}
					return ackAll(n, recs, report)
				}}
				l := run(t, f, 10)
				synctest.Wait()
				s := l.Status()
				if s.State != uplink.Waiting || s.Error != errFar.Error() || s.NextTry.Before(time.Now()) {
					t.Errorf("Status = %+v, want waiting with the error and the next try", s)
				}
				sleep(2 * time.Second)
				l.check(t, 10)
				if len(f.sent) != 2 || !slices.Equal(f.sent[1], row.second) || f.closed != 2 {
					t.Errorf("sent %v, closed %d sessions; want a second session of %v, and both closed", f.sent, f.closed, row.second)
				}
				if s := l.Status(); s.Error != "" {
					t.Errorf("Error = %q after a confirmation, want none", s.Error)
				}
			})
		})
	}
}

func TestSessionWithoutAnAnswerIsGivenUpAndItsLateReportsDoNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var late []func(uint64, uplink.Outcome)
		f := &far{send: func(_ int, _ []uplink.Record, report func(uint64, uplink.Outcome)) error {
			late = append(late, report)
			return nil
		}}
		l := run(t, f, 5)
		sleep(29 * time.Second)
		if s := l.Status(); s.State != uplink.Sending || s.InFlight != 5 {
			t.Errorf("Status = %+v before the stall, want sending with 5 in flight", s)
		}
		sleep(3 * time.Second)
		if n := f.count(); n != 2 {
			t.Fatalf("%d sessions after a stall of 30 s, want 2", n)
		}
		for seq := range uint64(5) {
			late[0](seq+1, uplink.Outcome{Verdict: uplink.Ack})
		}
		synctest.Wait()
		if n := l.log.Settled(); n != 0 {
			t.Errorf("%d records settled by late reports, want 0", n)
		}
		late[1](1, uplink.Outcome{Verdict: uplink.Ack})
		sleep(29 * time.Second) // progress was made: no stall yet
		if s := l.Status(); s.State != uplink.Sending {
			t.Errorf("Status = %+v, want sending", s)
		}
		l.check(t, 1)
	})
}

type letter struct {
	seq    uint64
	reason string
}

func letters(l *line) []letter {
	var out []letter
	for _, d := range l.log.Letters() {
		out = append(out, letter{d.Seq, d.Reason})
	}
	slices.SortFunc(out, func(a, b letter) int { return cmp.Compare(a.seq, b.seq) })
	return out
}

func TestRecordRefusedForSureAndRecordThatCannotBeReadAreDroppedInPassing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &far{send: func(_ int, recs []uplink.Record, report func(uint64, uplink.Outcome)) error {
			for _, r := range recs {
				o := uplink.Outcome{Verdict: uplink.Ack}
				if r.ID.Seq == 2 {
					o = uplink.Outcome{Verdict: uplink.Drop, Err: errFar}
				}
				report(r.ID.Seq, o)
			}
			return nil
		}}
		l := run(t, f, 3)
		l.log.AppendData([]byte{0xff})
		l.append(1)
		l.check(t, 5)
		got := letters(l)
		if len(got) != 2 || got[0] != (letter{2, errFar.Error()}) || got[1].seq != 4 || !strings.Contains(got[1].reason, "cannot be read") {
			t.Errorf("dead letters %v, want 2 and 4 with their reasons", got)
		}
		if f.count() != 1 {
			t.Errorf("%d sessions, want 1", f.count())
		}
	})
}

func TestPausesGrowUntilARecordIsConfirmed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var working atomic.Bool
		f := &far{}
		f.send = func(n int, recs []uplink.Record, report func(uint64, uplink.Outcome)) error {
			if working.Load() {
				return ackAll(n, recs, report)
			}
			return errFar // connects each time, and fails each time
		}
		l := run(t, f, 1)
		sleep(24 * time.Hour)
		n := f.count()
		if n < 24*12 || n > 24*60 {
			t.Errorf("%d tries in 24 h, want pauses of up to 5 min", n)
		}
		opened := f.times()
		if d := opened[1].Sub(opened[0]); d > 1200*time.Millisecond {
			t.Errorf("first pause %v, want about 1 s at most", d)
		}
		for i := 1; i < n; i++ {
			if d := opened[i].Sub(opened[i-1]); d < 100*time.Millisecond || d > 5*time.Minute+time.Second {
				t.Errorf("pause %d is %v, want 0.1 s to 5 min", i, d)
			}
		}
		if lines := strings.Count(l.text(), "\n"); lines > 3 {
			t.Errorf("an outage of a day is %d lines, want at most 3:\n%s", lines, l.text())
		}
		working.Store(true)
		sleep(6 * time.Minute)
		working.Store(false)
		l.append(1)
		synctest.Wait()
		if d := time.Until(l.Status().NextTry); d > 1200*time.Millisecond {
			t.Errorf("pause after a confirmation %v, want about 1 s at most", d)
		}
		l.check(t, 1)
	})
}

func TestErrorThatAPersonMustMendIsTriedSlowlyAndRecoversByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var missing atomic.Bool
		missing.Store(true)
		f := &far{send: ackAll, open: func(int) error {
			if missing.Load() {
				return uplink.Config(errFar)
			}
			return nil
		}}
		l := run(t, f, 3)
		sleep(time.Hour)
		opened := f.times()
		for i := 1; i < len(opened); i++ {
			if d := opened[i].Sub(opened[i-1]); d < 10*time.Second || d > time.Minute {
				t.Errorf("pause %d is %v, want 10 s to 1 min", i, d)
			}
		}
		if s := l.Status(); !s.Config || s.Error != errFar.Error() || s.State != uplink.Waiting {
			t.Errorf("Status = %+v, want waiting with an error for a person", s)
		}
		if n := strings.Count(l.text(), "level=ERROR"); n != 1 {
			t.Errorf("%d error lines, want 1:\n%s", n, l.text())
		}
		missing.Store(false)
		sleep(time.Minute)
		l.check(t, 3)
	})
}

func TestStopWaitsShortlyForWhatIsInFlight(t *testing.T) {
	for _, row := range []struct {
		name    string
		answer  time.Duration
		settled int
		most    time.Duration
	}{
		{"an answer in time counts", 600 * time.Millisecond, 4, 600 * time.Millisecond},
		{"an answer too late is not waited for", time.Hour, 0, time.Second},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &far{send: func(_ int, recs []uplink.Record, report func(uint64, uplink.Outcome)) error {
					time.AfterFunc(row.answer, func() { _ = ackAll(0, recs, report) })
					return nil
				}}
				l := run(t, f, 4)
				synctest.Wait()
				if d := l.stop(); d > row.most {
					t.Errorf("stop took %v, want at most %v", d, row.most)
				}
				l.check(t, row.settled)
				if s := l.Status(); s.State != uplink.Stopped {
					t.Errorf("State = %s, want stopped", s.State)
				}
			})
		})
	}
}

func TestWhatIsInFlightIsBounded(t *testing.T) {
	for _, row := range []struct {
		name           string
		records, bytes int
		want           int
	}{
		{"by records", 40, 1 << 20, 40},
		{"by bytes", 1000, 10 * len(pipeline.Encode(nil, &sample)), 10},
		{"a record larger than the bound goes alone", 1000, 5, 1},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &far{send: silent}
				l := run(t, f, 500, row.records, row.bytes)
				synctest.Wait()
				if got := l.Status().InFlight; got != row.want {
					t.Errorf("%d records in flight, want %d", got, row.want)
				}
				l.check(t, 0)
			})
		})
	}
}

func TestRunEndsWhenTheLogGivesNoMoreRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &far{send: ackAll}
		r := uplink.New(uplink.RunnerConfig{Driver: f, Cursor: brokenLog{}})
		if err := r.Run(t.Context()); !errors.Is(err, wal.ErrDamaged) {
			t.Errorf("Run = %v, want %v", err, wal.ErrDamaged)
		}
		if s := r.Status(); s.State != uplink.Stopped || s.Error == "" || f.closed != 1 {
			t.Errorf("Status = %+v, %d sessions closed; want stopped with an error, 1", s, f.closed)
		}
	})
}

type brokenLog struct{}

func (brokenLog) Read(context.Context, int, int) ([]wal.Record, error) { return nil, wal.ErrDamaged }
func (brokenLog) Done(...wal.Record)                                   {}
func (brokenLog) Refuse(wal.Record, wal.Refusal)                       {}
func (brokenLog) Rewind()                                              {}
