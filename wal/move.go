package wal

import "fmt"

// Position returns the sequence up to which each record has its final outcome, and that of the newest record of the stream,
// as of the last commit.
func (c *Cursor) Position() (seq, tail uint64) {
	c.l.mu.Lock()
	tail = c.l.ctl.tails[c.stream].seq
	c.l.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.win.done, tail
}

// Pass gives all records up to seq their final outcome, read or not, because the far side is known to have them. It returns an
// error where seq lies beyond the newest record.
func (c *Cursor) Pass(seq uint64) error {
	if _, tail := c.Position(); seq > tail {
		return fmt.Errorf("pass record %d of stream %s: the newest one is %d", seq, c.name, tail)
	}
	c.mu.Lock()
	if seq > c.win.done {
		c.win.raise(seq, c.win.pos)
		c.win.advance()
		if c.read < c.win.done {
			c.jumpLocked()
		}
	}
	c.mu.Unlock()
	c.l.cursorMoved()
	c.poke()
	return nil
}

// Back takes the outcomes of all records behind seq away, because the far side has lost them, and waits until that is durable.
// Read begins again at seq+1. It returns ErrGone where that record was freed, or seq where the cursor is not beyond it.
func (c *Cursor) Back(seq uint64) error {
	var found error
	c.mu.Lock()
	uplink := c.uplink
	c.mu.Unlock()
	err := c.l.change(func(t *txn) {
		found = nil
		l, p := c.l, t.ctl.cursor(c.id)
		before := func(s *segment) uint64 {
			if int(c.stream) < len(s.first) {
				return s.first[c.stream]
			}
			return 0
		}
		if p == nil || before(l.segs[0]) > seq {
			found = ErrGone
			return
		}
		i := len(l.segs) - 1
		for i > 0 && before(l.segs[i]) > seq {
			i--
		}
		for j := i; j < len(l.segs); j++ {
			if before, last := l.span(j, c.stream); l.segs[j].hollow && last > max(before, seq) {
				found = ErrGone
				return
			}
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if seq >= c.win.done {
			return
		}
		p.seq, p.pos, p.runs = seq, l.segs[i].base-1, nil
		c.win = newWindow(l.o.Window, p.seq, p.pos, nil)
		c.jumpLocked()
	})
	if err == nil {
		err = found
	}
	if err != nil {
		return fmt.Errorf("move the cursor of %s on %s back to %d: %w", uplink, c.name, seq, err)
	}
	c.poke()
	return nil
}
