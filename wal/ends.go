package wal

import "sort"

// streamEnd is a point in a stream that is known exactly: the end of a commit, or of a segment.
type streamEnd struct {
	seq   uint64 // of the newest record
	pos   uint64 // in the lane
	bytes uint64 // of the data of all records up to it
}

// maxEnds bounds the ends of a stream. Where there are more, every second one goes: between two ends, and before the
// first, records count with their mean size.
const maxEnds = 256

type streamEnds []streamEnd

// ends are those of each stream, by number.
type ends []streamEnds

func (m ends) of(stream uint32) streamEnds {
	if int(stream) < len(m) {
		return m[stream]
	}
	return nil
}

// note adds the ends of all streams as a commit leaves them.
func (m *ends) note(c *control) {
	for len(*m) < len(c.tails) {
		*m = append(*m, nil)
	}
	for i, t := range c.tails {
		s := &(*m)[i]
		if n := len(*s); t.seq == 0 || n > 0 && (*s)[n-1].seq >= t.seq {
			continue
		}
		if len(*s) >= maxEnds {
			kept := (*s)[:0]
			for j := 1; j < len(*s); j += 2 {
				kept = append(kept, (*s)[j])
			}
			*s = kept
		}
		*s = append(*s, streamEnd{t.seq, c.last, t.bytes})
	}
}

// around returns the ends before and after a place in the stream.
func (s streamEnds) around(end tail, after func(streamEnd) bool) (lo, hi streamEnd) {
	i := sort.Search(len(s), func(i int) bool { return after(s[i]) })
	if i > 0 {
		lo = s[i-1]
	}
	if i < len(s) {
		return lo, s[i]
	}
	return lo, streamEnd{seq: end.seq, bytes: end.bytes}
}

// bytesAt returns the bytes of all records up to seq.
func (s streamEnds) bytesAt(seq uint64, end tail) uint64 {
	lo, hi := s.around(end, func(m streamEnd) bool { return m.seq >= seq })
	if hi.seq <= lo.seq || seq >= hi.seq {
		return hi.bytes
	}
	return lo.bytes + uint64(float64(hi.bytes-lo.bytes)*float64(seq-lo.seq)/float64(hi.seq-lo.seq))
}

// at returns the end of the record seq, with a position before which nothing beyond it lies.
func (s streamEnds) at(seq uint64, end tail) streamEnd {
	lo, hi := s.around(end, func(m streamEnd) bool { return m.seq >= seq })
	if seq >= hi.seq {
		return streamEnd{seq: seq, pos: max(lo.pos, hi.pos), bytes: hi.bytes}
	}
	return streamEnd{seq: seq, pos: lo.pos, bytes: s.bytesAt(seq, end)}
}

// bytesOf returns the bytes of a stretch of records.
func (s streamEnds) bytesOf(r stretch, end tail) uint64 {
	return min(end.bytes, s.bytesAt(r.last, end)) - min(end.bytes, s.bytesAt(r.after, end))
}

// seqAt returns the first record with which a stream has so many bytes, and a position before which nothing beyond it lies.
func (s streamEnds) seqAt(bytes uint64, end tail) streamEnd {
	lo, hi := s.around(end, func(m streamEnd) bool { return m.bytes >= bytes })
	if hi.bytes <= lo.bytes || bytes >= hi.bytes {
		return streamEnd{seq: hi.seq, pos: max(lo.pos, hi.pos), bytes: hi.bytes}
	}
	d := float64(hi.seq-lo.seq) * float64(bytes-lo.bytes) / float64(hi.bytes-lo.bytes)
	return streamEnd{seq: min(hi.seq, lo.seq+uint64(d)+1), pos: lo.pos, bytes: bytes}
}

// lagLocked returns what a cursor at seq has before it.
func (l *Log) lagLocked(stream uint32, seq uint64) Lag {
	end := l.ctl.tails[stream]
	if end.seq <= seq {
		return Lag{}
	}
	return Lag{Records: end.seq - seq, Bytes: end.bytes - min(end.bytes, l.ends.of(stream).bytesAt(seq, end))}
}
