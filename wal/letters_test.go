package wal_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"edgegateway/wal"
)

// refuse gives the first n records of a stream up as dead letters.
func refuse(t *testing.T, l *wal.Log, n int) []wal.DeadLetter {
	t.Helper()
	c := cursor(t, l, "u", "s")
	must(t, put(t, l, batch("s", 1, n, 50)))
	for _, r := range read(t, c, n) {
		c.Drop(r, "no")
	}
	eventually(t, "dead letters", func() bool { return l.Stats().DeadLetters == n })
	return slices.Collect(l.DeadLetters)
}

func TestADeadLetterGoesInTheCommitThatSendsItAgain(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, wal.Options{})
	letters := refuse(t, l, 3)
	again := cursor(t, l, "u", "s!u")
	must(t, put(t, l, wal.Batch{
		Urgent: true, Entries: []wal.Entry{{Stream: "s!u", Data: letters[1].Data}}, Letters: []uint64{letters[1].Number},
	}))
	if got := read(t, again, 1); string(got[0].Data) != string(letters[1].Data) || got[0].Seq != 1 {
		t.Errorf("sent again: %d %q", got[0].Seq, got[0].Data)
	}
	// Once more, and twice in the same batch: what is gone is passed over.
	must(t, put(t, l, wal.Batch{Urgent: true, Letters: []uint64{letters[1].Number, letters[2].Number, letters[2].Number}}))
	closeLog(t, l)
	l = open(t, dir, wal.Options{})
	defer closeLog(t, l)
	left := slices.Collect(l.DeadLetters)
	if len(left) != 1 || left[0].Seq != 1 || l.Stats().DeadLettersLost != 0 {
		t.Errorf("left: %v, lost %d", left, l.Stats().DeadLettersLost)
	}
}

func TestPurgedDeadLettersAreGoneForGood(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, wal.Options{})
	letters := refuse(t, l, 4)
	n, err := l.Purge([]uint64{letters[0].Number, letters[0].Number, letters[3].Number, 99})
	if n != 2 || err != nil {
		t.Errorf("Purge = %d, %v, want 2", n, err)
	}
	if n, err := l.Purge([]uint64{letters[0].Number}); n != 0 || err != nil {
		t.Errorf("Purge of what is gone = %d, %v, want 0", n, err)
	}
	closeLog(t, l)
	if r, err := wal.Inspect(dir); err != nil || len(r.Letters) != 2 || r.Lost != 0 {
		t.Errorf("Inspect: %d letters, %d lost, %v", len(r.Letters), r.Lost, err)
	}
	l = open(t, dir, wal.Options{})
	defer closeLog(t, l)
	if left := slices.Collect(l.DeadLetters); len(left) != 2 || left[0].Seq != 2 || left[1].Seq != 3 {
		t.Errorf("left: %v", left)
	}
}

// On a full disk a dead letter waits for room, and what is durable of its cursor stops before it. Others go on.
func TestADeadLetterWaitsForRoom(t *testing.T) {
	for _, end := range []string{"room", "power cut", "stop"} {
		t.Run(end, func(t *testing.T) {
			var disk wal.Disk
			dir := t.TempDir()
			o := disk.Under(wal.Options{SegmentBytes: small})
			l := open(t, dir, o)
			c := cursor(t, l, "u", "s")
			must(t, put(t, l, batch("s", 1, 20, 2000)))
			recs := expect(t, c, "s", 1, 20, 2000)
			disk.Full.Store(true)
			c.Done(recs[:3]...)
			c.Refuse(recs[3], wal.Refusal{Reason: "no", Driver: "d", Attempts: 2})
			c.Done(recs[4:10]...)
			c.Drop(recs[14], "nor this") // out of order
			c.Done(recs[16:]...)
			eventually(t, "the letters wait", func() bool { return l.Stats().LettersWaiting == 2 })
			eventually(t, "cursor written up to the first", func() bool { return l.Cursors()[0].Seq == 3 })
			if s := l.Stats(); s.State != wal.StateFull || s.DeadLetters != 0 || s.DeadLettersLost != 0 {
				t.Errorf("state %s, %d kept, %d lost; want a full disk and neither", s.State, s.DeadLetters, s.DeadLettersLost)
			}
			if !c.Refused(3, 4) || c.Refused(3, 5) {
				t.Error("what waits is no dead letter, or another record is one")
			}
			// What is not about outcomes goes on, and Sync waits.
			other := cursor(t, l, "other", "s")
			other.Close()
			must(t, l.Release("other", "s"))
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if err := c.Sync(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Sync = %v while a letter waits", err)
			}
			want := []uint64{4, 11, 12, 13, 14, 15, 16} // without an outcome that is durable
			switch end {
			case "room":
				disk.Full.Store(false)
				eventually(t, "letters stored", func() bool { return l.Stats().DeadLetters == 2 })
				must(t, c.Sync(t.Context()))
				if s := l.Stats(); s.LettersWaiting != 0 || s.DeadLettersLost != 0 || s.State != wal.StateOK {
					t.Errorf("%d wait, %d lost, state %s", s.LettersWaiting, s.DeadLettersLost, s.State)
				}
				closeLog(t, l)
				want = []uint64{11, 12, 13, 14, 16}
			case "power cut":
				copied := t.TempDir()
				must(t, os.CopyFS(filepath.Join(copied, "log"), os.DirFS(dir)))
				disk.Full.Store(false)
				closeLog(t, l)
				dir = filepath.Join(copied, "log")
			case "stop":
				if err := l.Close(); err == nil {
					t.Error("Close says nothing of what found no room")
				}
			}
			l = open(t, dir, wal.Options{SegmentBytes: small})
			defer closeLog(t, l)
			c = cursor(t, l, "u", "s")
			got := read(t, c, len(want))
			for i := range got {
				if got[i].Seq != want[i] {
					t.Fatalf("record %d comes again, want %v", got[i].Seq, want)
				}
			}
			nothing(t, c)
			letters := slices.Collect(l.DeadLetters)
			if end != "room" {
				if len(letters) > 0 {
					t.Errorf("%d letters, want none stored", len(letters))
				}
				c.Refuse(got[0], wal.Refusal{Reason: "no", Driver: "d", Attempts: 2}) // as the far side does once more
				eventually(t, "letter stored", func() bool { return l.Stats().DeadLetters == 1 })
				letters = slices.Collect(l.DeadLetters)
			}
			if d := letters[0]; d.Seq != 4 || d.Reason != "no" || d.Driver != "d" || d.Attempts != 2 || len(d.Data) != 2000 {
				t.Errorf("letter %d %q of %d bytes", d.Seq, d.Reason, len(d.Data))
			}
		})
	}
}

// As many letters wait as are kept; beyond that the oldest go, counted, and hold up nothing.
func TestAsManyDeadLettersWaitAsAreKept(t *testing.T) {
	var disk wal.Disk
	l := open(t, t.TempDir(), disk.Under(wal.Options{SegmentBytes: small, MaxBytes: 1 << 20}))
	defer closeLog(t, l)
	c := cursor(t, l, "u", "s")
	must(t, put(t, l, batch("s", 1, 40, 10_000)))
	recs := expect(t, c, "s", 1, 40, 10_000)
	disk.Full.Store(true)
	for _, r := range recs {
		c.Drop(r, "no")
	}
	var waiting, lost int
	eventually(t, "the oldest go", func() bool {
		s := l.Stats()
		waiting, lost = s.LettersWaiting, int(s.DeadLettersLost)
		return waiting > 0 && waiting+lost == 40 && int(l.Cursors()[0].Seq) == lost
	})
	disk.Full.Store(false)
	eventually(t, "the others are stored", func() bool { return l.Stats().DeadLetters == waiting && l.Cursors()[0].Seq == 40 })
	if waiting < 2 || int(l.Stats().DeadLettersLost) != lost {
		t.Errorf("%d kept, %d lost, before %d", waiting, l.Stats().DeadLettersLost, lost)
	}
}
