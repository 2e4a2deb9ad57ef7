package wal

import "fmt"

// Space comes back from the front, because segments follow each other without a gap. A stream whose uplink is away would so
// keep on the disk what all the others store and deliver meanwhile. So a sealed segment in the middle that no cursor needs
// any more is replaced by a hollow one: the same header and the same end, and no records.

// hollowLeast is the size from which that is worth a new file.
const hollowLeast = 128 << 10

// hollowOut replaces the segments in the middle that no cursor needs. Where the disk has no room for that it is left.
func (l *Log) hollowOut() error {
	for i := 1; i < len(l.segs)-1; i++ {
		s := l.segs[i]
		if s.hollow || s.bytes < hollowLeast || l.needed(i) {
			continue
		}
		if err := l.hollow(i); err != nil && !isNoSpace(err) {
			return err
		}
	}
	return nil
}

func (l *Log) hollow(i int) error {
	old := l.segs[i]
	sum, err := readSummary(old.path, false)
	if err != nil {
		return err
	}
	h, c := sum.header, sum.control
	h.hollow, c.stateSum = true, 0 // the state is the newest segment's
	s, err := createSegment(l.dir, &l.o, spare{}, h, c, nil)
	if err != nil {
		return err
	}
	s.hollow, s.newest = true, old.newest
	if err := s.seal(); err != nil {
		return fmt.Errorf("seal hollow segment: %w", err)
	}
	l.mu.Lock()
	segs := append([]*segment(nil), l.segs...)
	segs[i] = s
	l.segs = segs
	l.countLocked(s.bytes)
	l.mu.Unlock()
	return old.close() // its file has lost its name
}

// oldestOf returns the place before the oldest record of a stream from which on all are there.
func (l *Log) oldestOf(stream uint32) (pos, seq uint64) {
	pos, seq = l.segs[0].base-1, 0
	if first := l.segs[0].first; int(stream) < len(first) {
		seq = first[stream]
	}
	for i, s := range l.segs {
		if !s.hollow {
			continue
		}
		if before, last := l.span(i, stream); last > before {
			pos, seq = l.segs[i+1].base-1, last
		}
	}
	return pos, seq
}
