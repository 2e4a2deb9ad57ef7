package uplink_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"edgegateway/pipeline"
	"edgegateway/uplink"
)

// picky is a far side that takes no records of some keys for now. It confirms each record by itself.
type picky struct {
	mu     sync.Mutex // guards the fields below
	closed map[string]bool
	got    []uint64
	asked  map[uint64]int
}

func (p *picky) send(_ int, recs []uplink.Record, report func(uint64, uplink.Outcome)) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range recs {
		seq := recs[i].ID.Seq
		p.asked[seq]++
		if p.closed[recs[i].Message.Key] {
			report(seq, uplink.Outcome{Err: errFar, Answered: true})
			continue
		}
		p.got = append(p.got, seq)
		report(seq, uplink.Outcome{Verdict: uplink.Ack})
	}
	return nil
}

func (p *picky) open(key string, open bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed[key] = !open
}

// tried returns how often a record was sent.
func (p *picky) tried(seq uint64) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.asked[seq]
}

func keyed(n int) pipeline.Message {
	return pipeline.Message{Topic: "t", Key: fmt.Sprint("k", n%4), Value: pipeline.Int(int64(n))}
}

// loose starts a runner of an order over n records with four keys: record 1 has k1, 4 has k0.
func loose(t *testing.T, p *picky, order uplink.Order, n int, set func(*uplink.RunnerConfig)) *line {
	f := &far{send: p.send}
	l := runWith(t, f, 0, func(cfg *uplink.RunnerConfig) {
		cfg.Env.Promise.Order = order
		if set != nil {
			set(cfg)
		}
	})
	for i := range n {
		l.log.Append(keyed(i + 1))
	}
	return l
}

func TestARecordThatIsRefusedForNowHoldsOnlyWhatTheOrderSays(t *testing.T) {
	for _, row := range []struct {
		order uplink.Order
		got   int // records that arrive while key k1 is closed
	}{
		{uplink.OrderKey, 75}, {uplink.OrderNone, 75},
	} {
		t.Run(string(row.order), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &picky{closed: map[string]bool{"k1": true}, asked: map[uint64]int{}}
				l := loose(t, p, row.order, 100, nil)
				sleep(10 * time.Minute)
				s := l.Status()
				if s.Acked != uint64(row.got) || s.Held != 25 || s.HeldFor != errFar.Error() || s.State != uplink.Sending || s.Error != "" {
					t.Errorf("Status = %+v, want %d acked, 25 held and the reason, in a session that sends", s, row.got)
				}
				if s.Attempts < 3 || s.Attempts > 40 {
					t.Errorf("%d attempts in 10 min, want pauses that double", s.Attempts)
				}
				for i := range 20 { // k1 among them: five
					l.log.Append(keyed(i + 101))
				}
				synctest.Wait()
				if s := l.Status(); s.Acked != 90 || s.Held != 30 {
					t.Errorf("Status = %+v, want 90 acked and 30 held", s)
				}
				if n := p.tried(101); row.order == uplink.OrderKey && n != 0 {
					t.Errorf("record 101 was tried %d times behind a held one of its key, want not at all", n)
				}
				p.open("k1", true)
				sleep(6 * time.Minute)
				l.check(t, 120)
				s = l.Status()
				if s.Held != 0 || s.HeldFor != "" || s.Attempts != 0 || s.Acked != 120 {
					t.Errorf("Status = %+v, want nothing held any more", s)
				}
				p.inOrderByKey(t, 120)
				if n := strings.Count(l.text(), "refused for now"); n != 1 {
					t.Errorf("%d lines about held records, want 1:\n%s", n, l.text())
				}
			})
		})
	}
}

// inOrderByKey wants each record once, and with order: key those of a key in sequence.
func (p *picky) inOrderByKey(t *testing.T, n int) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if got := slices.Sorted(slices.Values(p.got)); !slices.Equal(got, span(1, uint64(n))) {
		t.Errorf("%d records arrived, want each of %d once", len(got), n)
	}
}

func TestTheRecordsOfAHeldKeyArriveInSequence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &picky{closed: map[string]bool{}, asked: map[uint64]int{}}
		p.closed["k1"] = true
		l := loose(t, p, uplink.OrderKey, 1, nil) // the first one is refused alone
		synctest.Wait()
		for i := range 399 {
			l.log.Append(keyed(i + 2))
		}
		for range 10 {
			sleep(20 * time.Second)
			p.open("k1", true)
			sleep(100 * time.Millisecond)
			p.open("k1", false)
		}
		p.open("k1", true)
		sleep(6 * time.Minute)
		l.check(t, 400)
		last := map[uint64]uint64{}
		for _, seq := range p.got {
			if seq < last[seq%4] {
				t.Fatalf("record %d arrived after %d of the same key", seq, last[seq%4])
			}
			last[seq%4] = seq
		}
		p.inOrderByKey(t, 400)
	})
}

var sized = keyed(1000)

func TestHeldRecordsAreBounded(t *testing.T) {
	for _, row := range []struct {
		name           string
		order          uplink.Order
		records, bytes int
		most           int
	}{
		{"by records, by key", uplink.OrderKey, 40, 1 << 20, 40},
		{"by records, each by itself", uplink.OrderNone, 40, 1 << 20, 40},
		{"by bytes", uplink.OrderKey, 1000, 40 * len(pipeline.Encode(nil, &sized)), 40},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &picky{closed: map[string]bool{"k1": true}, asked: map[uint64]int{}}
				l := loose(t, p, row.order, 2000, func(cfg *uplink.RunnerConfig) { cfg.MaxRecords, cfg.MaxBytes = row.records, row.bytes })
				sleep(30 * time.Minute)
				// What was in flight when the bound was reached comes on top.
				if s := l.Status(); s.Held < row.most || s.Held > 2*row.most || s.Acked < 50 || s.Acked > 600 {
					t.Errorf("Status = %+v, want about %d held and the lane waiting", s, row.most)
				}
				p.open("k1", true)
				sleep(20 * time.Minute)
				l.check(t, 2000)
				p.inOrderByKey(t, 2000)
			})
		})
	}
}

func TestARecordInDoubtEndsTheSessionWhateverTheOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &far{}
		f.send = func(n int, recs []uplink.Record, report func(uint64, uplink.Outcome)) error {
			if n > 1 {
				return ackAll(n, recs, report)
			}
			report(recs[0].ID.Seq, uplink.Outcome{Err: errFar})
			return nil
		}
		l := runWith(t, f, 5, func(cfg *uplink.RunnerConfig) { cfg.Env.Promise.Order = uplink.OrderNone })
		synctest.Wait()
		if s := l.Status(); s.State != uplink.Waiting || s.Error != errFar.Error() {
			t.Errorf("Status = %+v, want waiting", s)
		}
		sleep(2 * time.Second)
		l.check(t, 5)
	})
}

func TestWhatIsHeldComesAgainInTheNextSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &picky{closed: map[string]bool{"k1": true}, asked: map[uint64]int{}}
		var down atomic.Bool
		f := &far{send: func(n int, recs []uplink.Record, report func(uint64, uplink.Outcome)) error {
			if down.Load() {
				return errFar
			}
			return p.send(n, recs, report)
		}}
		l := runWith(t, f, 0, func(cfg *uplink.RunnerConfig) { cfg.Env.Promise.Order = uplink.OrderKey })
		for i := range 40 {
			l.log.Append(keyed(i + 1))
		}
		sleep(time.Minute)
		down.Store(true)
		sleep(10 * time.Minute)
		if s := l.Status(); s.Held != 0 || s.State != uplink.Waiting {
			t.Errorf("Status = %+v, want nothing held without a session", s)
		}
		p.open("k1", true)
		down.Store(false)
		sleep(10 * time.Minute)
		l.check(t, 40)
		p.inOrderByKey(t, 40)
	})
}

func TestARefusedRecordAmongHeldOnesIsFoundAndTheOthersGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &picky{closed: map[string]bool{"k1": true}, asked: map[uint64]int{}}
		blind := refusing([]uint64{50}, nil)
		f := &far{send: func(n int, recs []uplink.Record, report func(uint64, uplink.Outcome)) error {
			if slices.Contains(seqs(recs), 50) {
				return blind(n, recs, report)
			}
			return p.send(n, recs, report)
		}}
		l := runWith(t, f, 0, func(cfg *uplink.RunnerConfig) { cfg.Env.Promise.Order = uplink.OrderKey })
		for i := range 100 {
			l.log.Append(keyed(i + 1))
		}
		sleep(10 * time.Minute)
		if s := l.Status(); s.Acked != 74 || s.Dropped != 1 || s.Held != 25 {
			t.Errorf("Status = %+v, want 74 acked, 1 dropped, 25 held", s)
		}
		p.open("k1", true)
		sleep(10 * time.Minute)
		l.check(t, 100)
	})
}
