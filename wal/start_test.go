package wal_test

import (
	"os"
	"testing"
	"time"

	"edgegateway/wal"
)

func TestANewCursorStartsBehindARecordOrAtATime(t *testing.T) {
	at := func(seconds int) wal.Since { return wal.Since(time.Unix(1.7e9+int64(seconds), 0)) }
	for _, row := range []struct {
		name  string
		start wal.Start
		first int // that is read; 501: nothing yet
	}{
		{"behind record 0", wal.After(0), 1},
		{"behind a record in the middle", wal.After(123), 124},
		{"behind the newest record", wal.After(500), 501},
		{"behind a record that is to come", wal.After(900), 501},
		{"at a time before the oldest record", at(-5000), 1},
		{"at the time of a record", at(250), 250},
		{"just after a record", wal.Since(time.Unix(1.7e9+250, 1)), 251},
		{"at the time of the newest record", at(500), 500},
		{"at a time after the newest record", at(501), 501},
	} {
		t.Run(row.name, func(t *testing.T) {
			dir := t.TempDir()
			o := wal.Options{SegmentBytes: small}
			l := open(t, dir, o)
			cursor(t, l, "holds", "s")
			for n := 1; n <= 500; n += 50 {
				must(t, put(t, l, batch("other", n, n+49, 500), batch("s", n, n+49, 500)))
			}
			c, err := l.Cursor("u", "s", row.start)
			must(t, err)
			if row.first == 501 {
				nothing(t, c)
			} else {
				expect(t, c, "s", row.first, 500, 500)
			}
			closeLog(t, l)
			l = open(t, dir, o)
			c = cursor(t, l, "u", "s") // known now, wherever it would begin
			must(t, put(t, l, batch("s", 501, 510, 500)))
			expect(t, c, "s", row.first, 510, 500)
		})
	}
}

func TestAStartBeforeWhatWasFreedIsTheOldestRecord(t *testing.T) {
	l := open(t, t.TempDir(), wal.Options{SegmentBytes: small})
	c := cursor(t, l, "first", "s")
	for n := 1; n <= 2000; n += 100 {
		must(t, put(t, l, batch("s", n, n+99, 1000)))
		c.Done(expect(t, c, "s", n, n+99, 1000)...)
	}
	eventually(t, "segments are freed", func() bool { return l.Stats().Segments < 3 })
	oldest := read(t, cursor(t, l, "oldest", "s"), 1)[0].Seq
	if oldest < 1000 {
		t.Fatalf("the oldest record is %d, so nothing was freed", oldest)
	}
	for name, start := range map[string]wal.Start{"after": wal.After(17), "since": wal.Since(time.Unix(1.7e9+17, 0))} {
		c, err := l.Cursor(name, "s", start)
		must(t, err)
		if got := read(t, c, 1)[0].Seq; got != oldest {
			t.Errorf("%s begins at %d, want %d", name, got, oldest)
		}
	}
}

// TestATimeFollowsTheOrderOfTheLog: a clock that jumped leaves times that neither rise nor can be searched by halves. What counts
// is the first record that was stored with the time or a later one, and all behind it.
func TestATimeFollowsTheOrderOfTheLog(t *testing.T) {
	l := open(t, t.TempDir(), wal.Options{})
	base := time.Unix(1.7e9, 0)
	var b wal.Batch
	for i, at := range []time.Duration{10, 11, -1e6, -1e6, 12, 9, 13} { // hours
		b.Entries = append(b.Entries, wal.Entry{Stream: "s", Time: base.Add(at * time.Hour), Data: data("s", i+1, 20)})
	}
	must(t, put(t, l, b))
	c, err := l.Cursor("u", "s", wal.Since(base.Add(10*time.Hour+time.Minute)))
	must(t, err)
	var got []uint64
	for len(got) < 6 {
		for _, r := range read(t, c, 10) {
			got = append(got, r.Seq)
		}
	}
	if got[0] != 2 || got[5] != 7 {
		t.Errorf("read %v, want 2 to 7", got)
	}
	if c, err = l.Cursor("u", "new", wal.Since(base)); err != nil {
		t.Fatal(err)
	}
	must(t, put(t, l, batch("new", 1, 3, 20)))
	expect(t, c, "new", 1, 3, 20)
}

// TestALookForATimePassesFilesThatWereOverBefore: the oldest files are made unreadable, so a look into one of them would fail.
func TestALookForATimePassesFilesThatWereOverBefore(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, wal.Options{SegmentBytes: small})
	cursor(t, l, "holds", "s")
	var at time.Time
	for n := 1; n <= 4000; n += 100 {
		b := batch("s", n, n+99, 500)
		if n == 3001 {
			time.Sleep(2 * time.Millisecond)
			at = time.Now()
		}
		for i := range b.Entries {
			b.Entries[i].Time = time.Now()
		}
		must(t, put(t, l, b))
	}
	files := segments(t, dir)
	if len(files) < 12 {
		t.Fatalf("%d segments, want many", len(files))
	}
	for _, f := range files[:len(files)/2] {
		info, err := os.Stat(f)
		must(t, err)
		must(t, os.WriteFile(f, make([]byte, info.Size()), 0o600))
	}
	c, err := l.Cursor("u", "s", wal.Since(at))
	must(t, err)
	if r := read(t, c, 1)[0]; r.Seq != 3001 {
		t.Errorf("begins at %d, want 3001", r.Seq)
	}
	if _, err := l.Cursor("v", "s", wal.Since(time.Unix(1.7e9, 0))); err == nil {
		t.Error("the damaged files can be read, so the test shows nothing")
	}
}
