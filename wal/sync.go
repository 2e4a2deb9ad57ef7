package wal

import "context"

// Sync waits until all outcomes that were given before it, and their dead letters, are on stable storage. It costs a commit.
// The error is ErrStopped, ErrClosed or the context's; the outcomes may be there all the same.
func (c *Cursor) Sync(ctx context.Context) error {
	done := make(chan error, 1)
	// A commit takes what the cursors know after it has taken what waits, so the one with this has it all.
	if err := c.l.queueChange(func(*txn) {}, true, done); err != nil {
		return err
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Refused reports whether every record behind from, up to to, is a dead letter of this cursor that the log still has.
func (c *Cursor) Refused(from, to uint64) bool {
	c.mu.Lock()
	fresh := map[uint64]bool{}
	for i := range c.letters {
		fresh[c.letters[i].Seq] = !c.letters[i].gone
	}
	owner := ownerOf(c.uplink)
	c.mu.Unlock()
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	for seq := from + 1; seq <= to; seq++ {
		id := letterID{owner, c.name, seq}
		if _, kept := c.l.st.letterIDs[id]; !kept && !fresh[seq] && !c.l.waitingLetters[id] {
			return false
		}
	}
	return true
}
