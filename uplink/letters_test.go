package uplink_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"edgegateway/pipeline"
	"edgegateway/uplink"
	"edgegateway/uplink/uplinktest"
	"edgegateway/wal"
)

// place is a far side with a cursor, as exactly once needs it: it stores records and moves the cursor in one step. It refuses
// records that are poison. It survives the lives of the gateway.
type place struct {
	// wrong is the order that loses: the driver passes a refused record by itself, before the log has the letter.
	wrong bool
	// late has the driver say of a refused record that it is one after Send has returned.
	late bool
	// blind has the far side refuse a whole batch for one record, without saying which, and the session with it.
	blind bool
	// busy has it refuse poison for now, each time.
	busy bool

	mu     sync.Mutex // guards the fields below
	at     uplink.FarCursor
	got    []uint64
	resets int
	sends  int
	before func() bool // before the far cursor passes letters; false: the gateway dies here
	after  func() bool // the same, after
}

func (p *place) Open(context.Context, uplink.Env) (uplink.Session, error) {
	return &visit{p: p}, nil
}

type visit struct {
	p       *place
	running sync.WaitGroup
}

func (s *visit) Far() uplink.FarCursor {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	return s.p.at
}

func (s *visit) Reset(ctx context.Context, to uplink.FarCursor) error {
	s.p.mu.Lock()
	before, after := s.p.before, s.p.after
	s.p.mu.Unlock()
	if before != nil && !before() {
		<-ctx.Done()
		return ctx.Err()
	}
	s.p.mu.Lock()
	s.p.at = to
	s.p.resets++
	s.p.mu.Unlock()
	if after != nil && !after() {
		<-ctx.Done()
		return ctx.Err()
	}
	return nil
}

func (s *visit) Send(_ context.Context, recs []uplink.Record, report func(uint64, uplink.Outcome)) error {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	s.p.sends++
	if s.p.blind && slices.ContainsFunc(recs, func(r uplink.Record) bool { return r.Message.Topic == "poison" }) {
		for i := range recs {
			report(recs[i].ID.Seq, uplink.Outcome{Verdict: uplink.Suspect, Err: errFar})
		}
		return errFar
	}
	for i := range recs {
		seq, bad := recs[i].ID.Seq, recs[i].Message.Topic == "poison"
		if !bad || s.p.wrong {
			s.p.at = uplink.FarCursor{Epoch: recs[i].ID.Epoch, Seq: seq}
		}
		if !bad {
			s.p.got = append(s.p.got, seq)
			report(seq, uplink.Outcome{Verdict: uplink.Ack})
			continue
		}
		if s.p.busy {
			report(seq, uplink.Outcome{Err: errFar, Answered: true})
			return nil
		}
		refuse := func() { report(seq, uplink.Outcome{Verdict: uplink.Drop, Err: errFar}) }
		switch {
		case s.p.late:
			s.running.Go(func() { time.Sleep(time.Millisecond); refuse() })
		default:
			refuse()
		}
		if !s.p.wrong {
			return nil
		}
	}
	return nil
}

func (s *visit) Close() { s.running.Wait() }

// life runs a gateway on the log in dir until dead is closed or all records have an outcome. The log has n records, of which
// those in bad are poison and those in unread cannot be read.
type life struct {
	t    *testing.T
	dir  string
	log  *wal.Log
	cur  *wal.Cursor
	dead chan struct{}
	die  func() bool
	copy string // the directory as it was when the life ended
}

func born(t *testing.T, dir string) *life {
	t.Helper()
	log, err := wal.Open(dir, wal.Options{NewEpoch: 3})
	if err != nil {
		t.Fatal(err)
	}
	cur, err := log.Cursor("far", "line", wal.Oldest)
	if err != nil {
		t.Fatal(err)
	}
	l := &life{t: t, dir: dir, log: log, cur: cur, dead: make(chan struct{}), copy: filepath.Join(t.TempDir(), "copy")}
	l.die = sync.OnceValue(func() bool {
		// What a kill leaves at this moment: the files, with all that was written to them.
		if err := os.CopyFS(l.copy, os.DirFS(dir)); err != nil {
			t.Errorf("copy the log: %v", err)
		}
		close(l.dead)
		return false
	})
	return l
}

// broken is what cannot be read.
var broken = []byte{0xff}

func (l *life) fill(n int, bad, unread []uint64) {
	l.t.Helper()
	var b wal.Batch
	for seq := range uint64(n) {
		m := pipeline.Message{Topic: "t", Value: pipeline.Int(int64(seq + 1))}
		if slices.Contains(bad, seq+1) {
			m.Topic = "poison"
		}
		data := pipeline.Encode(nil, &m)
		if slices.Contains(unread, seq+1) {
			data = broken
		}
		b.Entries = append(b.Entries, wal.Entry{Stream: "line", Data: data})
	}
	b.Urgent = true
	stored := make(chan error, 1)
	if err := l.log.Append(l.t.Context(), b, func(err error) { stored <- err }); err != nil {
		l.t.Fatal(err)
	}
	if err := <-stored; err != nil {
		l.t.Fatal(err)
	}
}

// run sends until the life ends: dead, or with nothing left and the far cursor at the end.
func (l *life) run(p uplink.Driver, cursor uplink.Cursor) uplink.Status {
	l.t.Helper()
	_, tail := l.cur.Position()
	r := uplink.New(uplink.RunnerConfig{
		Driver: p, Cursor: cursor, Policy: uplink.Policy{RetryAttempts: 3}, Env: uplink.Env{Gateway: "gw1", Stream: "line", Epoch: 3, Uplink: "far", Driver: "faked"},
		Timing: uplink.Timing{RetryMin: 5 * time.Millisecond, RetryMax: 20 * time.Millisecond, ConfigMin: 5 * time.Millisecond, ConfigMax: 20 * time.Millisecond},
	})
	ctx, cancel := context.WithCancel(l.t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	deadline := time.Now().Add(20 * time.Second)
	for over := false; !over; {
		select {
		case <-l.dead:
			over = true
		case <-time.After(time.Millisecond):
			s, err := p.Open(ctx, uplink.Env{})
			over = err != nil || l.cur.Lag().Records == 0 && s.(uplink.Resumer).Far().Seq == tail
		}
		if time.Now().After(deadline) {
			l.t.Errorf("%d records have no outcome; %+v", l.cur.Lag().Records, r.Status())
			over = true
		}
	}
	time.Sleep(5 * time.Millisecond) // for what should not come any more
	cancel()
	if err := <-done; err != nil && !errors.Is(err, wal.ErrClosed) {
		l.t.Errorf("Run = %v", err)
	}
	if err := l.log.Close(); err != nil {
		l.t.Errorf("close the log: %v", err)
	}
	return r.Status()
}

// dying is a cursor that ends the life when a letter is given to it.
type dying struct {
	*wal.Cursor
	l *life
	// hand says that the log gets the letter first, and has no time to write it.
	hand bool
}

func (d *dying) Refuse(r wal.Record, why wal.Refusal) {
	if !d.hand {
		d.l.die()
	}
	d.Cursor.Refuse(r, why)
	d.l.die()
}

// Sync does not come back in a life that has ended.
func (d *dying) Sync(ctx context.Context) error {
	select {
	case <-d.l.dead:
		<-ctx.Done()
		return ctx.Err()
	default:
		return d.Cursor.Sync(ctx)
	}
}

func lettersOf(t *testing.T, dir string) []uint64 {
	t.Helper()
	r, err := wal.Inspect(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []uint64
	for _, d := range r.Letters {
		out = append(out, d.Seq)
		if d.Driver != "faked" || d.Reason == "" {
			t.Errorf("dead letter %+v, want its driver and its reason", d)
		}
		var m pipeline.Message
		var texts pipeline.Decoder
		if err := texts.Decode(&m, d.Data); !slices.Equal(d.Data, broken) && (err != nil || fmt.Sprint(m.Value) != fmt.Sprint(pipeline.Int(int64(d.Seq)))) {
			t.Errorf("dead letter %d has the data %x (%v), want all of the record", d.Seq, d.Data, err)
		}
	}
	slices.Sort(out)
	return out
}

func without(n uint64, gone ...[]uint64) []uint64 {
	return slices.DeleteFunc(span(1, n), func(seq uint64) bool { return slices.Contains(slices.Concat(gone...), seq) })
}

func TestAKillAroundADeadLetterLosesAndDoublesNothing(t *testing.T) {
	for _, scene := range []struct {
		name   string
		n      int
		bad    []uint64
		broken []uint64
	}{
		{"in the middle", 60, []uint64{20}, nil},
		{"the last", 30, []uint64{30}, nil},
		{"the first of all", 30, []uint64{1}, nil},
		{"cannot be read, and is the last", 30, nil, []uint64{30}},
		{"several in a row", 60, []uint64{20, 21}, []uint64{22, 23, 24}},
		{"all of them", 5, []uint64{2, 4}, []uint64{1, 3, 5}},
	} {
		for _, kill := range []string{"never", "before the log has it", "before it is written", "before the far cursor", "after the far cursor"} {
			for _, late := range []bool{false, true} {
				if late && scene.bad == nil {
					continue
				}
				t.Run(fmt.Sprintf("%s, killed %s, late %v", scene.name, kill, late), func(t *testing.T) {
					p := &place{late: late}
					l := born(t, filepath.Join(t.TempDir(), "log"))
					l.fill(scene.n, scene.bad, scene.broken)
					var cursor uplink.Cursor = l.cur
					switch kill {
					case "before the log has it":
						cursor = &dying{l.cur, l, false}
					case "before it is written":
						cursor = &dying{l.cur, l, true}
					case "before the far cursor":
						p.before = l.die
					case "after the far cursor":
						p.after = l.die
					}
					l.run(p, cursor)
					dir := l.dir
					p.mu.Lock()
					p.before, p.after = nil, nil
					p.mu.Unlock()
					if kill != "never" {
						select {
						case <-l.dead:
						default:
							t.Fatal("the life did not come to its end")
						}
						had := lettersOf(t, l.copy)
						want := kill == "before the far cursor" || kill == "after the far cursor"
						if (len(had) > 0) != want {
							t.Fatalf("the files hold the letters %v at the kill", had)
						}
						dir = l.copy
						l = born(t, dir)
						if s := l.run(p, l.cur); s.Error != "" {
							t.Errorf("the next life says %q", s.Error)
						}
					}
					if want := without(uint64(scene.n), scene.bad, scene.broken); !slices.Equal(p.got, want) {
						t.Errorf("the far side has %v, want %v", p.got, want)
					}
					letters := slices.Sorted(slices.Values(slices.Concat(scene.bad, scene.broken)))
					if got := lettersOf(t, dir); !slices.Equal(got, letters) {
						t.Errorf("dead letters %v, want %v", got, letters)
					}
					if want := (uplink.FarCursor{Epoch: 3, Seq: uint64(scene.n)}); p.at != want {
						t.Errorf("the far cursor is at %v, want %v", p.at, want)
					}
				})
			}
		}
	}
}

// The negative control: where the far cursor passes the record first, a kill before the log has the letter loses it.
func TestAFarCursorThatPassesARecordBeforeTheLogHasItsLetterLosesIt(t *testing.T) {
	p := &place{wrong: true}
	l := born(t, filepath.Join(t.TempDir(), "log"))
	l.fill(30, []uint64{12}, nil)
	l.run(p, &dying{l.cur, l, false})
	l = born(t, l.copy)
	l.run(p, l.cur)
	if got := lettersOf(t, l.dir); len(got) != 0 || slices.Contains(p.got, 12) {
		t.Errorf("dead letters %v, stored %v: want record 12 in neither, or the kills above prove nothing", got, p.got)
	}
}

func TestALetterThatWasPurgedBeforeTheFarCursorPassedItIsRefusedAgain(t *testing.T) {
	p := &place{}
	l := born(t, filepath.Join(t.TempDir(), "log"))
	l.fill(30, []uint64{12}, nil)
	p.before = l.die
	l.run(p, l.cur)
	p.before = nil
	l = born(t, l.copy)
	s := l.run(p, forgetful{l.cur})
	if want := without(30, []uint64{12}); !slices.Equal(p.got, want) || s.Dropped != 1 || !slices.Equal(lettersOf(t, l.dir), []uint64{12}) {
		t.Errorf("stored %v, %d refused again; want %v, 1", p.got, s.Dropped, want)
	}
}

// forgetful is a cursor whose dead letters were purged.
type forgetful struct{ *wal.Cursor }

func (forgetful) Refused(from, to uint64) bool { return from >= to }

func TestFailureToMoveTheFarCursorPastALetterIsMendedByTheNextSession(t *testing.T) {
	p := &place{}
	l := born(t, filepath.Join(t.TempDir(), "log"))
	l.fill(30, []uint64{12}, nil)
	fails := 3
	r := refusingReset{p, &fails}
	l.run(r, l.cur)
	if want := without(30, []uint64{12}); !slices.Equal(p.got, want) || fails != 0 || !slices.Equal(lettersOf(t, l.dir), []uint64{12}) {
		t.Errorf("stored %v, %d failures left; want %v, 0", p.got, fails, want)
	}
}

type refusingReset struct {
	*place
	fails *int
}

func (r refusingReset) Open(ctx context.Context, env uplink.Env) (uplink.Session, error) {
	s, err := r.place.Open(ctx, env)
	return &failingVisit{s.(*visit), r.fails}, err
}

type failingVisit struct {
	*visit
	fails *int
}

func (s *failingVisit) Reset(ctx context.Context, to uplink.FarCursor) error {
	s.p.mu.Lock()
	fails := *s.fails > 0
	if fails {
		*s.fails--
	}
	s.p.mu.Unlock()
	if fails {
		return errors.New(strings.Repeat("no ", 3))
	}
	return s.visit.Reset(ctx, to)
}

func TestARefusedRecordIsFoundInHalvesWhereTheFarSideKeepsACursor(t *testing.T) {
	p := &place{blind: true}
	l := born(t, filepath.Join(t.TempDir(), "log"))
	l.fill(1000, []uint64{300, 1000}, nil)
	l.run(p, l.cur)
	if want := without(1000, []uint64{300, 1000}); !slices.Equal(p.got, want) || !slices.Equal(lettersOf(t, l.dir), []uint64{300, 1000}) {
		t.Errorf("stored %d records and the letters %v, want %d and 300, 1000", len(p.got), lettersOf(t, l.dir), len(want))
	}
	if p.at.Seq != 1000 || p.sends > 26 {
		t.Errorf("the far cursor is at %v after %d tries, want 1000 and at most 26", p.at, p.sends)
	}
}

func TestARecordThatIsRefusedForNowTooOftenIsPassedByTheFarCursorToo(t *testing.T) {
	for _, last := range []bool{false, true} {
		p := &place{busy: true}
		bad := []uint64{12}
		if last {
			bad[0] = 30
		}
		l := born(t, filepath.Join(t.TempDir(), "log"))
		l.fill(30, bad, nil)
		l.run(p, l.cur)
		r, err := wal.Inspect(l.dir)
		if err != nil {
			t.Fatal(err)
		}
		if want := without(30, bad); !slices.Equal(p.got, want) || p.at.Seq != 30 || len(r.Letters) != 1 || r.Letters[0].Attempts != 3 {
			t.Errorf("stored %v, far cursor %v, letters %v; want %v, 30, one after 3 attempts", p.got, p.at, r.Letters, want)
		}
	}
}

// crowded is a log on a full disk: a dead letter finds no room until there is some.
type crowded struct {
	*uplinktest.Log
	room chan struct{}
}

func (c crowded) Sync(ctx context.Context) error {
	select {
	case <-c.room:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// With a far cursor nothing passes a record whose letter is not stored yet. The status says what it waits for, and a letter is not to
// go before the far cursor has passed it.
func TestADeadLetterWithoutRoomHoldsTheStreamInPlainWords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, log := &place{}, crowded{uplinktest.NewLog(), make(chan struct{})}
		for n := range 10 {
			m := sample
			if n == 3 {
				m.Topic = "poison"
			}
			log.Append(m)
		}
		r := uplink.New(uplink.RunnerConfig{
			Driver: p, Cursor: log, Env: uplink.Env{Gateway: "gw1", Stream: "line", Epoch: 3, Uplink: "far"},
		})
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() {
			if err := r.Run(ctx); err != nil {
				t.Errorf("Run = %v", err)
			}
		})
		sleep(time.Hour)
		if s := r.Status(); s.State != uplink.Sending || s.Held != 1 || !strings.Contains(s.HeldFor, "no room to keep it as a dead letter") {
			t.Errorf("status %+v, want one held for want of room", s)
		}
		if len(p.got) != 3 || p.at.Seq != 3 || r.Passed(4) {
			t.Errorf("stored %v, the far cursor at %v, passed %v; want nothing behind the letter", p.got, p.at, r.Passed(4))
		}
		close(log.room)
		sleep(time.Second)
		if s := r.Status(); s.Held != 0 || s.HeldFor != "" || len(p.got) != 9 || !r.Passed(4) {
			t.Errorf("status %+v, stored %v, passed %v; want all but the letter", s, p.got, r.Passed(4))
		}
		cancel()
		running.Wait()
	})
}

// trimmed is a log that drops a record just before it is read again as a dead letter.
type trimmed struct {
	*uplinktest.Log
	at      uint64
	rewinds int
}

func (l *trimmed) Rewind() {
	if l.rewinds++; l.rewinds == 2 { // the first is that of the session
		_ = l.Pass(l.at)
	}
	l.Log.Rewind()
}

func TestARecordThatTheLogDropsBeforeItIsADeadLetterHoldsNothing(t *testing.T) {
	const n, bad = 20, 12
	log := &trimmed{Log: uplinktest.NewLog(), at: bad}
	for seq := range n {
		m := pipeline.Message{Topic: "t", Value: pipeline.Int(int64(seq + 1))}
		if seq+1 == bad {
			m.Topic = "poison"
		}
		log.Append(m)
	}
	p := &place{}
	r := uplink.New(uplink.RunnerConfig{Driver: p, Cursor: log, Env: uplink.Env{Gateway: "gw1", Stream: "line", Epoch: 3, Uplink: "far"}})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	if !log.Wait(n, 20*time.Second) {
		t.Errorf("%d of %d records have an outcome; %+v", log.Settled(), n, r.Status())
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if want := without(n, []uint64{bad}); !slices.Equal(p.got, want) || len(log.Letters()) != 0 {
		t.Errorf("the far side has %v and the log the letters %v, want %v and none", p.got, log.Letters(), want)
	}
	if p.resets != 1 { // a session may wait for it
		t.Errorf("Reset was called %d times, want once", p.resets)
	}
}
