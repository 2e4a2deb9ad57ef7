package wal_test

import (
	"errors"
	"testing"

	"edgegateway/wal"
)

func TestACursorIsMovedToWhereTheFarSideStands(t *testing.T) {
	dir := t.TempDir()
	o := wal.Options{SegmentBytes: small}
	l := open(t, dir, o)
	c := cursor(t, l, "u", "s")
	must(t, put(t, l, batch("other", 1, 50, 100)))
	must(t, put(t, l, batch("s", 1, 100, 100)))
	c.Done(expect(t, c, "s", 1, 10, 100)...)

	must(t, c.Pass(40))
	must(t, c.Pass(20)) // it is past that already
	if err := c.Pass(101); err == nil {
		t.Error("Pass went beyond the newest record")
	}
	c.Done(expect(t, c, "s", 41, 60, 100)...)
	if seq, tail := c.Position(); seq != 60 || tail != 100 {
		t.Errorf("Position = %d, %d, want 60, 100", seq, tail)
	}
	must(t, c.Back(30))
	must(t, c.Back(90)) // it is not that far
	if seq, _ := c.Position(); seq != 30 {
		t.Errorf("Position = %d after Back, want 30", seq)
	}
	closeLog(t, l)

	l = open(t, dir, o)
	c = cursor(t, l, "u", "s")
	c.Done(expect(t, c, "s", 31, 100, 100)...)
	for n := 101; n <= 2000; n += 100 {
		must(t, put(t, l, batch("s", n, n+99, 1000)))
		c.Done(expect(t, c, "s", n, n+99, 1000)...)
	}
	eventually(t, "segments are freed", func() bool { return l.Stats().Segments < 3 })
	if err := c.Back(100); !errors.Is(err, wal.ErrGone) {
		t.Errorf("Back to what was freed = %v, want ErrGone", err)
	}
	seq, _ := c.Position()
	if seq != 2000 {
		t.Errorf("Position = %d after a refused Back, want 2000", seq)
	}
	must(t, put(t, l, batch("s", 2001, 2010, 10)))
	c.Done(expect(t, c, "s", 2001, 2010, 10)...)
	must(t, c.Back(2005))
	expect(t, c, "s", 2006, 2010, 10)
	closeLog(t, l)
}
