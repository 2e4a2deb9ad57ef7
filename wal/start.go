package wal

import (
	"fmt"
	"time"
)

// Start says where a cursor begins that the log does not know yet: at an End, After a record, or Since a time.
type Start interface {
	// place returns where it is, in a commit that is being made.
	place(t *txn, stream uint32) place
}

// place is a place in a stream, behind the record seq. None of the later ones lies at pos or before.
type place struct{ pos, seq uint64 }

// End is an end of a stream.
type End uint8

// The ends.
const (
	Oldest End = iota // before the oldest record that is still there
	Newest            // after the newest record
)

func (e End) place(t *txn, stream uint32) place {
	if e == Newest {
		return place{t.ctl.last, t.ctl.tails[stream].seq}
	}
	pos, seq := t.l.oldestOf(stream)
	return place{pos, seq}
}

// After is the place behind the record with this sequence. Where the log has the next one no more it is Oldest, and where the
// stream is not as long it is Newest.
type After uint64

func (a After) place(t *txn, stream uint32) place {
	seq := uint64(a)
	if seq >= t.ctl.tails[stream].seq {
		return Newest.place(t, stream)
	}
	p := Oldest.place(t, stream)
	if seq <= p.seq {
		return p
	}
	// The cursor has to find its record, so it begins as near before it as is known.
	for _, s := range t.l.segs {
		if int(stream) < len(s.first) && s.first[stream] <= seq && s.base > p.pos {
			p.pos = s.base - 1
		}
	}
	if near, _ := t.l.ends.of(stream).around(t.ctl.tails[stream], func(e streamEnd) bool { return e.seq > seq }); near.pos > p.pos {
		p.pos = near.pos
	}
	p.seq = seq
	return p
}

// Since is a time. The place is before the first record, in the order in which the log stored them, whose own time is not
// earlier; all that come behind it are read, whatever their time. Where there is no such record it is behind the newest one, so
// a time that has not come yet is the same as Newest.
//
// The times of records are only as right as the clock of who made them, so files are not searched whose time was over: those
// that were sealed before the time, by the clock of this machine, and whose newest record was of before, by the clock that
// max_age goes by. A record that is dated years ahead by mistake is thus found only where it lies near the time in question.
type Since time.Time

// place is that of Oldest: Log.Cursor looks for the true one beforehand.
func (Since) place(t *txn, stream uint32) place { return Oldest.place(t, stream) }

// found is what a search for a Since has brought.
type found place

func (f found) place(t *txn, stream uint32) place {
	if p := Oldest.place(t, stream); p.seq >= f.seq {
		return p // what was found has gone since
	}
	return place(f)
}

// since looks for a time. It reads blocks, so it does not run on the committer.
func (l *Log) since(stream string, at time.Time) (Start, error) {
	l.mu.Lock()
	n, known := l.st.numbers[stream]
	if !known {
		l.mu.Unlock()
		return found{}, nil
	}
	end := found{pos: l.ctl.last, seq: l.ctl.tails[n].seq}
	pos := uint64(1)
	for i := 0; i+1 < len(l.segs) && l.segs[i+1].created < nanos(at) && l.segs[i].newest < nanos(at); i++ {
		pos = l.segs[i+1].base
	}
	l.mu.Unlock()
	for pos <= end.pos {
		b, _, ok, err := l.block(pos)
		if err != nil {
			return nil, fmt.Errorf("look for the first record since %s: %w", at.UTC().Format(time.RFC3339), err)
		}
		if !ok || b.first > end.pos {
			break
		}
		r, err := newBlockReader(b, n)
		for err == nil {
			var rec Record
			if rec, ok, err = r.next(); !ok {
				break
			}
			if !rec.Time.Before(at) {
				return found{pos: rec.pos - 1, seq: rec.Seq - 1}, nil
			}
		}
		if err != nil {
			return nil, err
		}
		if pos = l.skip(b.last+1, n); pos == 0 {
			break
		}
	}
	return end, nil
}

// skip returns pos, or the beginning of the first file from there on that has records of the stream; 0 where none has.
func (l *Log) skip(pos uint64, stream uint32) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.segs {
		if i+1 < len(l.segs) && l.segs[i+1].base <= pos {
			continue
		}
		if before, last := l.span(i, stream); last > before && !l.segs[i].hollow {
			return max(pos, l.segs[i].base)
		}
	}
	return 0
}
