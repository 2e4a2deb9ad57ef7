package wal_test

import (
	"slices"
	"testing"

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
