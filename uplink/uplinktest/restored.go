package uplinktest

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"edgegateway/pipeline"
	"edgegateway/uplink"
	"edgegateway/wal"
)

// RunRestored puts an old image of the gateway's disk back: the directory of a real log is copied, the gateway goes on for a while,
// and the copy takes the place of what there is. It must be detected, nothing may be sent, lost or counted as delivered until an
// operator has chosen, and then the choice is followed. Sources do not wait for an operator, nor for a line that is down when
// the gateway starts: their new records must not be taken for those that the far side has by the same numbers, also where the
// gateway was started again before there was a line.
func RunRestored(t *testing.T, s Suite) {
	if IsChild() {
		return
	}
	server := s.Server(t)
	for _, c := range []struct {
		name   string
		choice uplink.Choice
		late   bool // sources are quicker than the line
		again  int  // records that come again, as the operator was told
	}{
		{"resume", uplink.Resume, false, 0},
		{"restart", uplink.Restart, false, 50},
		{"resume with records that are newer", uplink.Resume, true, 0},
		{"restart with records that are newer", uplink.Restart, true, 50},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, s, server, "restored-"+strings.ReplaceAll(c.name, " ", "-"))
			dir := b.oldImage()
			l := b.life(dir)
			if c.late {
				l.append(10_001, 10_200)
				l.end()
				l = b.life(dir)
				l.append(10_201, 10_400)
			}
			l.run()
			l.wantDetected(300)
			l.end()
			l = b.life(dir) // whoever sees an error starts the gateway again first
			l.run()
			l.wantDetected(300)
			if n := len(s.Read(t, server.Addr, b.place)); n != 500 {
				t.Errorf("%d records are at the far side before anybody has chosen, want 500", n)
			}
			l.choice.Store(&c.choice)
			if !waitStatus(l.runner, func(s uplink.Status) bool { return s.State == uplink.Sending }) {
				t.Fatalf("Status = %+v after the choice, want sending", l.runner.Status())
			}
			l.append(20_001, 20_200)
			l.settle()
			l.end()
			l = b.life(dir) // and it is over
			l.run()
			l.append(20_201, 20_210)
			l.settle()
			l.end()
			want := map[int]int{}
			for n := 1; n <= 500; n++ {
				want[n] = 1
			}
			for n := 301; n < 301+c.again; n++ {
				want[n]++
			}
			if c.late && c.choice == uplink.Restart { // with resume they count as delivered, which is what it says
				for n := 10_001; n <= 10_400; n++ {
					want[n] = 1
				}
			}
			for n := 20_001; n <= 20_210; n++ {
				want[n] = 1
			}
			wantValues(t, s.Read(t, server.Addr, b.place), want)
			say("restored %s, %s: detected, sent again %d as chosen, lost 0", s.Name, c.name, c.again)
		})
	}
}

// RunRestoredByID does the same where the far side has no cursor and knows records by their ids. The gateway is started twice before
// there is a line.
func RunRestoredByID(t *testing.T, s Suite) {
	if IsChild() {
		return
	}
	b := newBench(t, s, s.Server(t), "restored-by-id")
	dir := b.oldImage()
	l := b.life(dir)
	l.append(10_001, 10_100)
	l.end()
	l = b.life(dir)
	l.append(10_101, 10_200)
	for range 2 { // whoever sees an error starts the gateway again first
		l.run()
		l.wantDetected(300)
		l.end()
		l = b.life(dir)
	}
	l.run()
	if n := len(s.Read(t, b.addr, b.place)); n != 500 {
		t.Errorf("%d records are at the far side before anybody has chosen, want 500", n)
	}
	resume := uplink.Resume
	l.choice.Store(&resume)
	l.settle()
	l.append(20_001, 20_210)
	l.settle()
	l.end()
	want := map[int]int{}
	for n := 1; n <= 500; n++ {
		want[n] = 1
	}
	for n := 10_151; n <= 10_200; n++ { // those before count as delivered, which is what resume says
		want[n] = 1
	}
	for n := 20_001; n <= 20_210; n++ {
		want[n] = 1
	}
	wantValues(t, s.Read(t, b.addr, b.place), want)
	say("restored %s: detected, lost 0 but what was chosen", s.Name)
}

// oldImage returns the directory of a log that was put back: it knows of 350 records, the last 50 of them not sent, and the far
// side has 500.
func (b *bench) oldImage() string {
	b.Helper()
	b.mark = &note{}
	dir, image := filepath.Join(b.TempDir(), "log"), filepath.Join(b.TempDir(), "image")
	l := b.life(dir)
	l.run()
	l.append(1, 300)
	l.settle()
	l.stop()
	l.append(301, 350)
	l.end()
	copyDir(b.T, image, dir)
	l = b.life(dir)
	l.run()
	l.append(351, 500)
	l.settle()
	l.end()
	if err := os.RemoveAll(dir); err != nil {
		b.Fatal(err)
	}
	copyDir(b.T, dir, image)
	return dir
}

// note is a mark that outlives the runners of a test.
type note struct {
	at  uplink.FarCursor
	set bool
}

func (n *note) Load() (uplink.FarCursor, bool)  { return n.at, n.set }
func (n *note) Store(at uplink.FarCursor) error { n.at, n.set = at, true; return nil }
func (n *note) Clear() error                    { n.set = false; return nil }

// life is a gateway of a real log and a runner in this process.
type life struct {
	*bench

	log    *wal.Log
	cursor *wal.Cursor
	runner *uplink.Runner
	choice atomic.Pointer[uplink.Choice]
	stop   func()
}

func (b *bench) life(dir string) *life {
	b.Helper()
	log, err := wal.Open(dir, wal.Options{NewEpoch: epoch})
	if err != nil {
		b.Fatal(err)
	}
	cursor, err := log.Cursor("far", stream, wal.Oldest)
	if err != nil {
		b.Fatal(err)
	}
	l := &life{bench: b, log: log, cursor: cursor, stop: func() {}}
	cfg := b.config()
	cfg.Cursor, cfg.Mark = cursor, b.mark
	cfg.Choice = func() uplink.Choice {
		if c := l.choice.Swap(nil); c != nil {
			return *c
		}
		return ""
	}
	l.runner = uplink.New(cfg)
	return l
}

func (l *life) run() { l.stop = l.start(l.runner) }

func (l *life) append(from, to int) {
	l.Helper()
	var batch wal.Batch
	for n := from; n <= to; n++ {
		m := message(n)
		batch.Entries = append(batch.Entries, wal.Entry{Stream: stream, Time: m.Time, Data: pipeline.Encode(nil, &m)})
	}
	batch.Urgent = true
	stored := make(chan error, 1)
	err := l.log.Append(context.Background(), batch, func(err error) { stored <- err })
	if err == nil {
		err = <-stored
	}
	if err != nil {
		l.Fatal(err)
	}
}

func (l *life) settle() {
	l.Helper()
	for deadline := time.Now().Add(patient); l.cursor.Lag().Records > 0; time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			l.Fatalf("%d records are not settled; %+v", l.cursor.Lag().Records, l.runner.Status())
		}
	}
}

func (l *life) end() {
	l.Helper()
	l.stop()
	l.cursor.Close()
	if err := l.log.Close(); err != nil {
		l.Fatal(err)
	}
}

// wantDetected wants the runner to say what has happened, again and again, and to leave the cursor where it is.
func (l *life) wantDetected(at uint64) {
	l.Helper()
	const words = "an old copy of the gateway's disk was put back"
	var last time.Time
	for range 3 {
		if !waitStatus(l.runner, func(s uplink.Status) bool {
			return s.Config && strings.Contains(s.Error, words) && s.NextTry.After(last)
		}) {
			l.Fatalf("Status = %+v, want an error with %q", l.runner.Status(), words)
		}
		last = l.runner.Status().NextTry
	}
	l.Logf("in plain words: %s", l.runner.Status().Error)
	if seq, _ := l.cursor.Position(); seq != at {
		l.Errorf("the cursor stands at %d, want %d", seq, at)
	}
}

func copyDir(t *testing.T, to, from string) {
	t.Helper()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
}

// wantValues wants each message as often as want says.
func wantValues(t *testing.T, stored []Stored, want map[int]int) {
	t.Helper()
	got := map[int]int{}
	for _, s := range stored {
		var m struct{ Value int }
		if err := json.Unmarshal([]byte(s.Payload), &m); err != nil {
			t.Fatalf("%s: %v", s.Payload, err)
		}
		got[m.Value]++
	}
	wrong := 0
	for n := range 20_211 {
		if got[n] != want[n] {
			if wrong++; wrong == 1 {
				t.Errorf("message %d is there %d times, want %d", n, got[n], want[n])
			}
		}
	}
	if wrong > 1 {
		t.Errorf("and so are %d more", wrong-1)
	}
}
