package uplinktest

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"edgegateway/uplink"
	"edgegateway/wal"
)

// A child with this variable kills itself when it hears of so many confirmed records: the far side has stored them, and the
// cursor in the log does not know.
const windowVariable = "EDGE_UPLINKTEST_WINDOW"

// RunKills kills a gateway of log and runner in a process of its own, in turns at any moment and between the far side's
// commit and the cursor of the log, and reads back what arrived: none may be lost, and the order must be that of the log.
// It prints the figures and returns how many records are there twice, which is the caller's to judge. The child is the test
// that calls it, run again: there it is a life of the gateway, and returns when that is over. mode names what arrives, so two
// runs may share a broker. UPLINK_KILLS in the environment is the number of kills instead.
func RunKills(t *testing.T, s Suite, mode string, kills int) (doubled int) {
	t.Helper()
	if killed(t, s) {
		return 0
	}
	kills = fromEnvironment("UPLINK_KILLS", kills)
	v, _ := killAgain(t, s, mode, kills)
	say("kill %s: kills %d sent %d lost %d doubled %d", mode, kills, v.sent, v.lost, v.doubled)
	v.mustBe(t, v.doubled)
	return v.doubled
}

// RunControl does the same to a driver that lacks what keeps records from being there twice, and wants the kills to show it: the
// negative control of RunKills. name says what is lacking.
func RunControl(t *testing.T, s Suite, name string, kills int) {
	t.Helper()
	if killed(t, s) {
		return
	}
	v, _ := killAgain(t, s, name, kills)
	v.mustBe(t, v.doubled)
	caught(t, name, v.doubled > 0, fmt.Sprintf("kills %d sent %d lost %d doubled %d", kills, v.sent, v.lost, v.doubled))
}

// caught prints what has come of a negative control.
func caught(t *testing.T, name string, ok bool, figures string) {
	t.Helper()
	verdict := "caught"
	if !ok {
		verdict = "not caught"
		t.Errorf("%s: %s: the suite does not see what it is for", name, figures)
	}
	say("control %s: %s (%s)", name, verdict, figures)
}

func killAgain(t *testing.T, s Suite, mode string, kills int, variables ...string) (verdict, *lives) {
	t.Helper()
	b := newBench(t, s, s.Server(t), strings.NewReplacer(" ", "-", "_", "-").Replace(mode))
	dir := filepath.Join(t.TempDir(), "log")
	acked, was := 0, &lives{}
	for i := range kills {
		began := time.Now()
		if i%2 == 1 {
			acked = b.diesInWindow(was, dir, 1+rand.IntN(1500), variables...)
			t.Logf("kill %d, between the two commits, after %.1f s", i+1, time.Since(began).Seconds())
			continue
		}
		c := b.child(dir, variables...)
		c.waitPast(acked)
		time.Sleep(rand.N(500 * time.Millisecond))
		acked = c.kill()
		was.add(c)
		t.Logf("kill %d, at any moment, after %.1f s", i+1, time.Since(began).Seconds())
	}
	c := b.child(dir, variables...)
	c.waitPast(acked)
	total := c.settle(acked)
	was.add(c)
	stored := s.Read(t, b.addr, b.place)
	if len(variables) > 0 {
		inSequence(stored)
	}
	return s.judge(stored, 0, total, nil), was
}

func fromEnvironment(variable string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(variable)); err == nil {
		return n
	}
	return otherwise
}

// diesInWindow runs a life that ends between a commit at the far side and the log's cursor, and returns the last record that
// it said was on disk.
func (b *bench) diesInWindow(was *lives, dir string, after int, variables ...string) int {
	c := b.child(dir, append(variables, windowVariable+"="+strconv.Itoa(after))...)
	select {
	case <-c.done:
	case <-time.After(5 * patient): // a broker on a busy machine may be without a leader for a while
		b.Fatal("a life does not come to the window between the two commits")
	}
	if err := c.cmd.Wait(); err == nil || err.Error() != "signal: killed" {
		b.Fatalf("a life ended with %v, want killed by itself", err)
	}
	was.add(c)
	return c.acked
}

// mortal ends the process instead of passing on what was confirmed.
type mortal struct {
	*wal.Cursor
	left int
}

// mayDie returns the cursor of a child.
func mayDie(c *wal.Cursor) uplink.Cursor {
	n, err := strconv.Atoi(os.Getenv(windowVariable))
	if err != nil {
		return c
	}
	return &mortal{c, n}
}

// Done implements uplink.Cursor.
func (m *mortal) Done(recs ...wal.Record) {
	if m.left -= len(recs); m.left > 0 {
		m.Cursor.Done(recs...)
		return
	}
	die()
}

// die ends this process as kill -9 does.
func die() {
	self, err := os.FindProcess(os.Getpid())
	if err == nil {
		err = self.Kill()
	}
	panic(fmt.Sprintf("the process outlives its end: %v", err))
}
