package wal_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"edgegateway/wal"
)

func TestWhatSyncHasWaitedForIsInTheFiles(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, wal.Options{})
	c := cursor(t, l, "cloud", "s")
	must(t, put(t, l, batch("s", 1, 10, 100)))
	recs := expect(t, c, "s", 1, 10, 100)
	c.Done(recs[:3]...)
	c.Refuse(recs[3], wal.Refusal{Reason: "too large", Driver: "kafka", Attempts: 11})
	c.Drop(recs[4], "no driver said so")
	if !c.Refused(3, 5) || c.Refused(2, 5) || c.Refused(3, 6) || !c.Refused(5, 5) {
		t.Error("before the commit Refused does not tell the dead letters 4 and 5 from the rest")
	}
	must(t, c.Sync(t.Context()))
	if !c.Refused(3, 5) || c.Refused(2, 5) || c.Refused(3, 6) {
		t.Error("after the commit Refused does not tell the dead letters 4 and 5 from the rest")
	}
	// A look at the files is what a kill at this moment would leave.
	r, err := wal.Inspect(dir)
	must(t, err)
	if len(r.Letters) != 2 || r.Cursors[0].Seq != 5 {
		t.Fatalf("%d dead letters, cursor at %d; want 2 and 5", len(r.Letters), r.Cursors[0].Seq)
	}
	first, second := r.Letters[0], r.Letters[1]
	if first.Seq != 4 || first.Reason != "too large" || first.Driver != "kafka" || first.Attempts != 11 {
		t.Errorf("dead letter is %+v", first)
	}
	if second.Seq != 5 || second.Reason != "no driver said so" || second.Driver != "" || second.Attempts != 0 {
		t.Errorf("dead letter is %+v", second)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Sync(ctx); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("Sync without time = %v", err)
	}
	closeLog(t, l)
	if err := c.Sync(t.Context()); !errors.Is(err, wal.ErrClosed) {
		t.Errorf("Sync of a closed log = %v, want %v", err, wal.ErrClosed)
	}
	l = open(t, dir, wal.Options{})
	defer closeLog(t, l)
	if n := len(slices.Collect(l.DeadLetters)); n != 2 || !cursor(t, l, "cloud", "s").Refused(3, 5) {
		t.Errorf("%d dead letters after opening it again, want 2 that Refused knows", n)
	}
}
