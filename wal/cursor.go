package wal

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Cursor is how one uplink takes one stream from the log. One goroutine at a time may call Read and Rewind; outcomes may
// come from any goroutine, in any order.
type Cursor struct {
	l      *Log
	id     uint32
	stream uint32
	uplink string
	name   string // of the stream
	signal chan struct{}

	mu      sync.Mutex // guards the fields below
	win     window
	read    uint64 // sequence of the last record that Read went over
	scan    uint64 // position up to which the lane was searched for this stream
	block   blockReader
	seg     *segment // whose file is kept open while the cursor is in it
	turn    uint64   // grows when the place to read from jumps
	waiting bool     // Read waits for outcomes
	until   uint64   // sequence that Read does not go beyond; 0 for none
	letters []DeadLetter
	letterB int
	closed  bool
}

// Cursor opens the cursor of an uplink on a stream. start counts only where the log does not know the cursor; a new one
// is durable when Cursor returns, and from then on keeps records on the disk until Release. A cursor can be open once.
func (l *Log) Cursor(uplink, stream string, start Start) (*Cursor, error) {
	if uplink == "" || len(uplink) > maxName || stream == "" || len(stream) > maxName {
		return nil, fmt.Errorf("open cursor: names of uplink %q and stream %q must have 1 to %d bytes", uplink, stream, maxName)
	}
	for {
		c, err := l.openCursor(uplink, stream)
		if c != nil || err != nil {
			return c, err
		}
		if at, ok := start.(Since); ok {
			if start, err = l.since(stream, time.Time(at)); err != nil {
				return nil, fmt.Errorf("open cursor of %s on %s: %w", uplink, stream, err)
			}
		}
		// Several may come here at once; the first one makes it.
		err = l.change(func(t *txn) {
			n := t.stream(stream)
			if _, _, known := t.findCursor(uplink, n); known {
				return
			}
			at := start.place(t, n)
			p := cursorPos{id: t.ctl.nextCursor, pos: at.pos, seq: at.seq}
			t.ctl.nextCursor++
			t.ctl.cursors = append(t.ctl.cursors, p)
			name := cursorName{uplink, n}
			t.set(cursorKey(p.id), name.encode())
			if t.names == nil {
				t.names = map[uint32]cursorName{}
			}
			t.names[p.id] = name
		})
		if err != nil {
			return nil, fmt.Errorf("open cursor of %s on %s: %w", uplink, stream, err)
		}
	}
}

// openCursor opens a cursor that the log knows, and returns nil where it does not.
func (l *Log) openCursor(uplink, stream string) (*Cursor, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closing {
		return nil, ErrClosed
	}
	n, ok := l.st.numbers[stream]
	if !ok {
		return nil, nil
	}
	for i := range l.ctl.cursors {
		p := l.ctl.cursors[i]
		if l.st.cursors[p.id] != (cursorName{uplink, n}) {
			continue
		}
		var letters []DeadLetter
		if old := l.open[p.id]; old != nil {
			// A closed one may know more than the last commit.
			now, more, closed := old.snapshot()
			if !closed {
				old.giveBack(more)
				return nil, fmt.Errorf("cursor of %s on %s is open already", uplink, stream)
			}
			p, letters = now, more
		}
		c := &Cursor{l: l, id: p.id, stream: n, uplink: uplink, name: stream, signal: make(chan struct{}, 1)}
		c.win = newWindow(l.o.Window, p.seq, p.pos, p.runs)
		c.scan = max(p.pos, l.segs[0].base-1)
		c.win.advance()
		c.read = c.win.done
		c.giveBack(letters)
		l.open[p.id] = c
		return c, nil
	}
	return nil, nil
}

// Read returns the next records of the stream, in order: at least one, for which it waits until ctx ends, and at most
// maxRecords and about maxBytes of data (0: no bound of its own). It returns nothing beyond Options.Window records
// without outcome. Data must not be changed. The error is ErrDamaged, ErrClosed, ErrEnd, the context's, or ErrStopped when the
// log has stopped and all it holds was read.
func (c *Cursor) Read(ctx context.Context, maxRecords, maxBytes int) ([]Record, error) {
	return c.ReadInto(ctx, nil, maxRecords, maxBytes)
}

// ReadInto is Read that appends the records to room, which is empty.
func (c *Cursor) ReadInto(ctx context.Context, room []Record, maxRecords, maxBytes int) ([]Record, error) {
	if maxRecords <= 0 {
		maxRecords = c.l.o.Window
	}
	if maxBytes <= 0 {
		maxBytes = MaxCommit
	}
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		recs, err := c.take(room, maxRecords, maxBytes)
		if len(recs) > 0 || err != nil {
			return recs, err
		}
		select {
		case <-ctx.Done():
		case <-c.signal:
		}
	}
}

// take appends to out, which is empty, what can be had now.
func (c *Cursor) take(out []Record, maxRecords, maxBytes int) ([]Record, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	size := 0
	for len(out) < maxRecords && size < maxBytes {
		if c.closed {
			return out, ErrClosed
		}
		if c.atEndLocked() {
			return out, c.endLocked(len(out))
		}
		back := c.block
		rec, ok, err := c.block.next()
		if err != nil {
			return out, err
		}
		if !ok {
			c.scan = max(c.scan, c.block.pos)
			more, err := c.fetchLocked()
			if !more || err != nil {
				if len(out) > 0 {
					err = nil // it comes again with the next call
				}
				return out, err
			}
			continue
		}
		if rec.Seq <= c.read {
			c.scan = rec.pos
			continue
		}
		if rec.Seq > c.read+1 {
			// What is missing was lost, and counted, when the log was salvaged: the cursor passes it once all before has
			// its outcome.
			if c.win.done < c.read {
				c.block, c.waiting = back, true
				return out, nil
			}
			c.passLocked(rec.Seq-1, rec.pos-1)
		}
		if rec.Seq > c.win.done+uint64(c.l.o.Window) {
			c.block, c.waiting = back, true
			return out, nil
		}
		if len(out) > 0 && size+len(rec.Data) > maxBytes {
			c.block = back
			return out, nil
		}
		c.read, c.scan = rec.Seq, rec.pos
		if c.win.deliver(rec.Seq, rec.pos) {
			if cap(out) == 0 {
				out = make([]Record, 0, min(maxRecords, int(c.block.left)+1))
			}
			out = append(out, rec)
			size += len(rec.Data)
			continue
		}
		from := c.win.done
		if c.advanceLocked(); c.win.done != from {
			c.l.cursorMoved()
		}
	}
	return out, nil
}

// fetchLocked goes to the block after scan. It lets go of the mutex while it reads.
func (c *Cursor) fetchLocked() (bool, error) {
	pos, turn, held := c.scan+1, c.turn, c.seg
	c.seg = nil
	c.mu.Unlock()
	b, seg, ok, err := c.l.block(pos)
	if seg != held {
		if seg != nil {
			seg.hold()
		}
		if held != nil {
			held.drop()
		}
	}
	c.mu.Lock()
	c.seg = seg
	if c.closed && c.seg != nil {
		c.seg.drop()
		c.seg = nil
	}
	if err != nil {
		return false, err
	}
	if !ok {
		pos = b.first // what lay before it was freed
		c.mu.Unlock()
		c.l.mu.Lock()
		last, end := c.l.ctl.last, c.l.ctl.tails[c.stream].seq
		c.l.mu.Unlock()
		c.mu.Lock()
		if turn != c.turn || pos <= last {
			return pos <= last, nil
		}
		// All was read, and the stream has counted further: the last records were lost. See take.
		if end > c.read && c.win.done == c.read {
			c.passLocked(end, last)
		} else if end > c.read {
			c.waiting = true
		}
		return false, nil
	}
	if turn != c.turn {
		return true, nil // the place has changed meanwhile: look again
	}
	r, err := newBlockReader(b, c.stream)
	if err != nil {
		return false, err
	}
	c.block = r
	return true, nil
}

// passLocked moves the cursor over records that are not there any more.
func (c *Cursor) passLocked(seq, pos uint64) {
	c.win.raise(seq, pos)
	c.win.advance()
	c.read = max(seq, c.win.done)
	c.l.cursorMoved()
}

// Done gives records their final outcome: confirmed by the far side. Records that were not read by this cursor, or have
// their outcome already, are passed over. The cursor is written with the next commit, or within a second.
func (c *Cursor) Done(recs ...Record) {
	c.mu.Lock()
	from := c.win.done
	for i := range recs {
		c.win.mark(recs[i].Seq)
	}
	c.settleLocked(from)
}

// Drop is Refuse with nothing but a reason.
func (c *Cursor) Drop(r Record, reason string) { c.Refuse(r, Refusal{Reason: reason}) }

// Refuse gives a record its final outcome: refused for good. It is kept as a dead letter with what is known of the refusal,
// in the same commit as the cursor.
func (c *Cursor) Refuse(r Record, why Refusal) {
	why.Reason, why.Driver = why.Reason[:min(len(why.Reason), maxReason)], why.Driver[:min(len(why.Driver), maxName)]
	c.mu.Lock()
	from := c.win.done
	if !c.win.marked(r.Seq) && r.Seq <= c.win.high {
		d := DeadLetter{
			Uplink: ownerOf(c.uplink), Stream: c.name, Seq: r.Seq, Time: r.Time, Refused: time.Now(), Data: r.Data,
			Reason: why.Reason, Driver: why.Driver, Attempts: why.Attempts, cursor: c.id, pos: r.pos,
		}
		c.letters = append(c.letters, d)
		if c.letterB += len(d.Data) + letterOverhead; c.letterB > 2*maxLetters {
			c.letterB -= len(d.Data)
			d.gone, d.Data, d.Reason = true, nil, ""
			c.letters[len(c.letters)-1] = d
		}
		c.win.mark(r.Seq)
	}
	many := c.letterB > maxLetters
	c.settleLocked(from)
	if many {
		c.l.hurry.Store(true)
		c.l.wake()
	}
}

// settleLocked follows outcomes that came when the cursor stood at from, and lets go of the mutex.
func (c *Cursor) settleLocked(from uint64) {
	c.advanceLocked()
	wake := c.waiting && c.win.done != from
	if wake {
		c.waiting = false
	}
	c.mu.Unlock()
	c.l.cursorMoved()
	if wake {
		c.poke()
	}
}

// advanceLocked moves the cursor over what has its outcome. After a Rewind that may be more than was read again.
func (c *Cursor) advanceLocked() {
	c.win.advance()
	c.read = max(c.read, c.win.done)
}

// Rewind has the next Read begin again at the first record without outcome; it passes over those that have one.
func (c *Cursor) Rewind() {
	c.mu.Lock()
	c.jumpLocked()
	c.mu.Unlock()
	c.poke()
}

func (c *Cursor) jumpLocked() {
	c.read, c.scan = c.win.done, c.win.pos
	c.block = blockReader{}
	c.waiting = false
	c.turn++
}

// raise moves the cursor past records that were dropped from the log.
func (c *Cursor) raise(seq, pos uint64) {
	c.mu.Lock()
	if seq > c.win.done {
		c.win.raise(seq, pos)
		if c.read < seq {
			c.jumpLocked()
		}
		c.waiting = false
	}
	c.mu.Unlock()
	c.poke()
}

// Close ends the use of the cursor. Where it stands is kept.
func (c *Cursor) Close() {
	c.mu.Lock()
	c.closed = true
	if c.seg != nil {
		c.seg.drop()
		c.seg = nil
	}
	c.mu.Unlock()
	c.poke()
	c.l.cursorMoved()
}

func (c *Cursor) poke() {
	select {
	case c.signal <- struct{}{}:
	default:
	}
}

// snapshot returns where the cursor stands and takes its new dead letters.
func (c *Cursor) snapshot() (cursorPos, []DeadLetter, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	letters := c.letters
	c.letters, c.letterB = nil, 0
	return cursorPos{id: c.id, pos: c.posLocked(), seq: c.win.done, runs: c.win.runs()}, letters, c.closed
}

// posLocked is a position up to which each record of the stream has its outcome.
func (c *Cursor) posLocked() uint64 {
	if c.win.done == c.read {
		return max(c.win.pos, c.scan)
	}
	return c.win.pos
}

func (c *Cursor) giveBack(letters []DeadLetter) {
	c.mu.Lock()
	c.letters = append(letters, c.letters...)
	c.mu.Unlock()
}
