package wal

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// An uplink may take a stream by two cursors, so that new records need not wait for a backlog. The first one ends at a record,
// and the second one begins behind it. Which record that is stands in the second one's name, so that no crash can part the two
// facts. Once the first one has passed it, the second one takes the first one's name and place, in one commit.

// splitMark stands in the name of a second cursor, between that of the uplink and the record. No name in a config has it.
const splitMark = "+after:"

// SplitName is the name of the second cursor of an uplink, which begins behind seq.
func SplitName(uplink string, seq uint64) string {
	return fmt.Sprintf("%s%s%d", uplink, splitMark, seq)
}

// ParseSplit takes the name of a cursor apart. second is false for the name of an uplink itself.
func ParseSplit(name string) (uplink string, after uint64, second bool) {
	uplink, number, ok := strings.Cut(name, splitMark)
	after, err := strconv.ParseUint(number, 10, 64)
	if !ok || err != nil {
		return name, 0, false
	}
	return uplink, after, true
}

// ownerOf returns the uplink whose cursor it is: dead letters are its, whichever of its cursors has met them.
func ownerOf(name string) string {
	uplink, _, _ := ParseSplit(name)
	return uplink
}

// Split ends what this cursor reads at the newest record there is now, and returns that record's sequence. The end is not stored:
// whoever splits stores it with the second cursor, or takes it back by Until(0).
func (c *Cursor) Split() uint64 {
	c.l.mu.Lock()
	tail := c.l.ctl.tails[c.stream].seq
	c.l.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.until = max(tail, c.read) // what was read is under way
	return c.until
}

// Until has Read end with the record seq: once all up to it have their outcome it returns ErrEnd. 0 means no end.
func (c *Cursor) Until(seq uint64) {
	c.mu.Lock()
	c.until = seq
	c.mu.Unlock()
	c.poke()
}

// atEndLocked tells whether there is nothing more to read for this cursor.
func (c *Cursor) atEndLocked() bool { return c.until > 0 && c.read >= c.until }

// endLocked returns ErrEnd where nothing is without its outcome, and otherwise has the next outcome wake Read.
func (c *Cursor) endLocked(read int) error {
	if read == 0 && c.win.done >= c.until {
		return ErrEnd
	}
	c.waiting = true
	return nil
}

// Succeed ends a split: the second cursor, which began behind seq, takes the name of the first one, which goes. It waits until
// that is durable. The second one stays open and reads on; the first one must be closed and have passed seq, or nothing is
// done.
func (l *Log) Succeed(uplink, stream string, seq uint64) error {
	second := SplitName(uplink, seq)
	var id uint32
	var failed error
	err := l.change(func(t *txn) {
		failed = nil
		n, ok := l.st.numbers[stream]
		i, old, known := t.findCursor(uplink, n)
		var there bool
		_, id, there = t.findCursor(second, n)
		switch {
		case !ok || !known || !there:
			failed = errors.New("no such cursors")
		case l.isOpen(old):
			failed = errors.New("the first one is open")
		case t.ctl.cursors[i].seq < seq:
			failed = fmt.Errorf("the first one has passed record %d only", t.ctl.cursors[i].seq)
		default:
			t.ctl.cursors = slices.Delete(t.ctl.cursors, i, i+1)
			t.set(cursorKey(old), nil)
			name := cursorName{uplink, n}
			t.set(cursorKey(id), name.encode())
		}
	})
	if err = errors.Join(err, failed); err != nil {
		return fmt.Errorf("end the split of %s on %s after record %d: %w", uplink, stream, seq, err)
	}
	l.mu.Lock()
	c := l.open[id]
	l.mu.Unlock()
	if c != nil {
		c.mu.Lock()
		c.uplink = uplink
		c.mu.Unlock()
	}
	return nil
}

// splitEnds returns where the first cursor of each split ends, by its number.
func splitEnds(cursors map[uint32]cursorName) map[uint32]uint64 {
	var out map[uint32]uint64
	for _, second := range cursors {
		uplink, after, ok := ParseSplit(second.uplink)
		if !ok {
			continue
		}
		for id, first := range cursors {
			if first == (cursorName{uplink, second.stream}) {
				if out == nil {
					out = map[uint32]uint64{}
				}
				out[id] = after
			}
		}
	}
	return out
}

// end returns seq, or the record that a cursor ends at where that comes before.
func (s *store) end(cursor uint32, seq uint64) uint64 {
	if until, ok := s.until[cursor]; ok {
		return min(until, seq)
	}
	return seq
}

// stretch is the records behind one, up to another.
type stretch struct{ after, last uint64 }

// addStretch adds what a cursor has before it to what others have, which is in order and without overlap.
func addStretch(list []stretch, s stretch) []stretch {
	if s.last <= s.after {
		return list
	}
	var out []stretch
	for i, o := range list {
		switch {
		case o.last < s.after:
			out = append(out, o)
		case s.last < o.after:
			return append(append(out, s), list[i:]...)
		default:
			s = stretch{min(s.after, o.after), max(s.last, o.last)}
		}
	}
	return append(out, s)
}

// endSplits gives the first cursor of each split its end, and a lag that goes no further.
func endSplits(cursors []CursorInfo) {
	for _, second := range cursors {
		uplink, after, ok := ParseSplit(second.Uplink)
		if !ok {
			continue
		}
		i := slices.IndexFunc(cursors, func(c CursorInfo) bool { return c.Uplink == uplink && c.Stream == second.Stream })
		if i < 0 {
			continue
		}
		c := &cursors[i]
		c.Until = after
		left := after - min(after, c.Seq)
		if c.Lag.Records > 0 {
			c.Lag.Bytes = uint64(float64(c.Lag.Bytes) / float64(c.Lag.Records) * float64(left))
		}
		c.Lag.Records = left
	}
}
