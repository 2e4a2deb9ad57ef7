package uplinktest

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"edgegateway/pipeline"
	"edgegateway/test/rig"
)

// commitVariable tells the child at which commit it kills itself.
const commitVariable = "EDGE_UPLINKTEST_COMMIT"

// Tally is what came of a run of kills.
type Tally struct{ Kills, Sent, Lost, Doubled int }

// Kills runs gateways in processes of their own and kills them, every second one in the moment between the far side's commit
// and our knowledge of it, for which the driver in the child must call KillAtCommit. It reads back what is stored, wants its
// order kept, and leaves it to the caller to judge the figures. The test must run s with Run as well, for the child's sake.
func Kills(t *testing.T, s Suite, server *rig.Server, place string, kills int) Tally {
	t.Helper()
	b := &bench{T: t, suite: s, server: server, place: place, addr: server.Addr, log: NewLog()}
	if s.Prepare != nil {
		s.Prepare(t, server.Addr, place)
	}
	dir := filepath.Join(t.TempDir(), "log")
	acked := 0
	for i := range kills {
		if i%2 == 0 {
			t.Setenv(commitVariable, strconv.Itoa(1+rand.IntN(20)))
			c := b.child(dir)
			select {
			case <-c.done:
			case <-time.After(patient):
				t.Fatal("the gateway does not come to the commit at which it is to be killed")
			}
			acked = max(acked, c.kill())
			continue
		}
		t.Setenv(commitVariable, "")
		c := b.child(dir)
		c.waitPast(acked)
		time.Sleep(time.Duration(rand.IntN(700)) * time.Millisecond)
		acked = c.kill()
	}
	t.Setenv(commitVariable, "")
	total := b.child(dir).settle(acked)
	return tally(t, s.Read(t, server.Addr, place), kills, total)
}

// tally counts what is missing and what is there twice, and wants what comes for the first time in order.
func tally(t *testing.T, stored []Stored, kills, sent int) Tally {
	t.Helper()
	out := Tally{Kills: kills, Sent: sent}
	number := make(map[string]int, sent)
	for n := 1; n <= sent; n++ {
		number[pipeline.RecordID{Gateway: gateway, Stream: stream, Epoch: epoch, Seq: uint64(n)}.String()] = n
	}
	seen := make(map[int]bool, sent)
	last := 0
	for _, s := range stored {
		n := number[s.ID]
		if seen[n] {
			out.Doubled++
			continue
		}
		if n <= last {
			t.Errorf("record %s comes after number %d", s.ID, last)
		}
		seen[n] = true
		last = max(last, n)
	}
	for n := 1; n <= sent; n++ {
		if !seen[n] {
			out.Lost++
			if out.Lost <= 100 {
				t.Logf("record %d is lost", n)
			}
		}
	}
	return out
}

// KillAtCommit returns what a driver calls after each commit at the far side. In a child that Kills has told so, one of the
// calls kills the process.
func KillAtCommit() func() {
	left, err := strconv.Atoi(os.Getenv(commitVariable))
	if err != nil || !IsChild() {
		return nil
	}
	return func() {
		if left--; left == 0 {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // it is not always at once
		}
	}
}
