package uplinktest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"edgegateway/pipeline"
	"edgegateway/uplink"
)

// windowVariable tells the child to kill itself in the window: after so many Sends, when the far side has committed and the
// gateway's own cursor does not know.
const windowVariable = "EDGE_UPLINKTEST_WINDOW"

// KillCount is what KillGateway found.
type KillCount struct{ Kills, Sent, Lost, Doubled int }

// String returns the line of figures without its name.
func (k KillCount) String() string {
	return fmt.Sprintf("kills %d sent %d lost %d doubled %d", k.Kills, k.Sent, k.Lost, k.Doubled)
}

// KillGateway runs a gateway in a process of its own and kills it so many times, by turns at random and in the window between
// the far commit and the local cursor. It reads back and fails on a wrong order; what lost and doubled may be, the caller
// says. In the child it returns false when the child's life is over.
func KillGateway(t *testing.T, s Suite, kills int) (count KillCount, parent bool) {
	t.Helper()
	if args, ok := os.LookupEnv(childVariable); ok {
		part := strings.Split(args, "\n")
		if err := live(t.Context(), part[0], inWindow(s.Driver(part[1], part[2]))); err != nil {
			t.Fatal(err)
		}
		return count, false
	}
	server := s.Server(t)
	b := &bench{T: t, suite: s, server: server, place: "place-kills", addr: server.Addr, log: NewLog()}
	if s.Prepare != nil {
		s.Prepare(t, server.Addr, b.place)
	}
	dir := filepath.Join(t.TempDir(), "log")
	acked := 0
	for i := range kills {
		if i%2 == 0 {
			t.Setenv(windowVariable, fmt.Sprint(1+rand.N(40)))
			acked = b.child(dir).die(acked)
			t.Setenv(windowVariable, "")
			continue
		}
		c := b.child(dir)
		c.waitPast(acked)
		time.Sleep(rand.N(700 * time.Millisecond))
		acked = c.kill()
	}
	total := b.child(dir).settle(acked)
	count = KillCount{Kills: kills, Sent: total}
	count.Doubled, count.Lost = tally(t, s.Read(t, server.Addr, b.place), total)
	return count, true
}

// die waits until the child has killed itself and returns the last record that it said was on disk, at least acked.
func (c *child) die(acked int) int {
	c.t.Helper()
	select {
	case <-c.done:
	case <-time.After(patient):
		_ = c.cmd.Process.Kill()
		c.t.Fatal("the child does not come to the window")
	}
	if err := c.cmd.Wait(); err == nil || c.cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		c.t.Fatalf("the child ended with %v, want killed", err)
	}
	return max(c.acked, acked)
}

// tally counts the doubled and the lost, and fails where the first copies are not in order.
func tally(t *testing.T, stored []Stored, sent int) (doubled, lost int) {
	t.Helper()
	seen, last := make(map[string]bool, len(stored)), uint64(0)
	for _, s := range stored {
		if seen[s.ID] {
			doubled++
			continue
		}
		seen[s.ID] = true
		id := pipeline.RecordID{Gateway: gateway, Stream: stream, Epoch: epoch}
		_, err := fmt.Sscanf(s.ID[strings.LastIndexByte(s.ID, '/')+1:], "%d", &id.Seq)
		if err != nil || s.ID != id.String() || id.Seq <= last {
			t.Fatalf("record %s stands behind %d: out of order, or not ours", s.ID, last)
		}
		last = id.Seq
	}
	return doubled, sent - len(seen)
}

// inWindow returns the driver itself, or one that kills the process in the window.
func inWindow(d uplink.Driver) uplink.Driver {
	var sends int
	if _, err := fmt.Sscan(os.Getenv(windowVariable), &sends); err != nil {
		return d
	}
	return &windowDriver{d, sends}
}

type windowDriver struct {
	uplink.Driver
	sends int
}

func (d *windowDriver) Open(ctx context.Context, env uplink.Env) (uplink.Session, error) {
	s, err := d.Driver.Open(ctx, env)
	if err != nil {
		return nil, err
	}
	w := &windowSession{s, d}
	if r, ok := s.(uplink.Resumer); ok {
		return struct {
			*windowSession
			uplink.Resumer
		}{w, r}, nil
	}
	return w, nil
}

type windowSession struct {
	uplink.Session
	d *windowDriver
}

// Send implements uplink.Session for drivers that have confirmed all when they return.
func (s *windowSession) Send(ctx context.Context, recs []uplink.Record, report func(uint64, uplink.Outcome)) error {
	if s.d.sends--; s.d.sends > 0 {
		return s.Session.Send(ctx, recs, report)
	}
	confirmed := 0
	err := s.Session.Send(ctx, recs, func(uint64, uplink.Outcome) { confirmed++ })
	if err != nil || confirmed != len(recs) {
		return fmt.Errorf("%d of %d records confirmed in the window: %w", confirmed, len(recs), err)
	}
	return syscall.Kill(os.Getpid(), syscall.SIGKILL)
}
