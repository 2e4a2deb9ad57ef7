package wal

import (
	"cmp"
	"slices"
)

// This file puts the segments of a salvaged log in order and counts what is missing between them.

// assemble goes through the segments in order, keeps the sound ones and plans what replaces the others.
func (s *salvage) assemble() {
	s.seqs = make([]uint64, len(s.ctl.tails))
	begun := false
	for n := s.low; n <= s.high; {
		if f := s.sound[n]; f != nil {
			s.reach(f.header.first, begun)
			for i, t := range f.sum.control.tails {
				s.seqs[i] = max(s.seqs[i], t.seq)
			}
			s.lastPos, begun = f.sum.control.last, true
			n++
			continue
		}
		to := n
		for to < s.high && s.sound[to+1] == nil {
			to++
		}
		g := group{s: s, from: n, to: to, before: s.sound[n-1], after: s.sound[to+1], begun: begun}
		begun = g.plan() || begun
		n = to + 1
	}
}

// reach notes what is missing up to where a segment says that its streams begin.
func (s *salvage) reach(first []uint64, begun bool) {
	for i, seq := range first {
		if seq > s.seqs[i] && begun {
			s.gaps = append(s.gaps, jump{uint32(i), s.seqs[i] + 1, seq})
		}
		s.seqs[i] = max(s.seqs[i], seq)
	}
}

// conclude makes the control record and the state of the salvaged log, with the ranges that were lost.
func (s *salvage) conclude() {
	s.r.Last = max(s.lastPos, s.ctl.last)
	if !s.endKnown {
		s.r.Skipped = s.skip()
	}
	s.ctl.last, s.ctl.newest = s.lastPos, 0
	for i := range s.ctl.tails {
		t := &s.ctl.tails[i]
		end := max(t.seq, s.seqs[i]) + s.r.Skipped
		if end > s.seqs[i] {
			s.gaps = append(s.gaps, jump{uint32(i), s.seqs[i] + 1, end})
		}
		t.seq = end
	}
	ranges := dropRanges(&s.st)
	for _, g := range joined(s.gaps) {
		name := s.st.names[g.stream]
		for _, part := range s.missed(g, name, ranges) {
			r := DropRange{Stream: name, First: part.first, Last: part.last, When: s.now, Why: DroppedDamaged}
			s.r.Lost = append(s.r.Lost, r)
			s.ctl.tails[g.stream].dropped += part.last - part.first + 1
			s.ctl.ranges++
			_ = s.st.apply(Change{Key: numberedKey(keyRange, s.ctl.ranges), Value: encodeRange(g.stream, &r)}) // it is one
		}
	}
	for len(s.st.ranges) > maxRanges {
		_ = s.st.apply(Change{Key: numberedKey(keyRange, s.st.ranges[0])})
	}
	s.moveCursors()
}

// missed returns what of a gap is a loss: what every cursor has passed was lost for nobody, and what was counted once is not
// counted again.
func (s *salvage) missed(g jump, name string, ranges []DropRange) (parts []jump) {
	waiting, ok := s.waiting[g.stream]
	if !ok {
		return without(g, name, ranges)
	}
	for _, w := range waiting {
		parts = append(parts, without(jump{g.stream, max(g.first, w.after+1), min(g.last, w.last)}, name, ranges)...)
	}
	return parts
}

// moveCursors holds the cursors within the log. One that is guessed begins at the oldest record. One of an older commit may
// stand before that, too: what was freed since had been passed, but what was taken away had not, so Open counts it.
func (s *salvage) moveCursors() {
	base, first := s.beginning()
	for i := range s.ctl.cursors {
		p := &s.ctl.cursors[i]
		stream := s.st.cursors[p.id].stream
		if int(stream) < len(first) && p.seq < first[stream] && s.r.NoCursors {
			p.runs = shiftRuns(p.runs, first[stream]-p.seq)
			p.seq, p.pos = first[stream], max(p.pos, base-1)
		}
		p.pos = min(p.pos, s.ctl.last)
	}
}

// beginning returns position and sequences with which the salvaged log begins.
func (s *salvage) beginning() (base uint64, first []uint64) {
	base = s.lastPos + 1
	for _, p := range s.plans {
		if p.header.base <= base {
			base, first = p.header.base, p.header.first
		}
	}
	for _, f := range s.sound {
		if f.header.base < base || f.header.base == base && first == nil {
			base, first = f.header.base, f.header.first
		}
	}
	return base, first
}

// skip returns how many sequences may have been given to records beyond the newest commit that can be read.
func (s *salvage) skip() uint64 {
	var n uint64
	for i := max(s.from, s.low); i <= s.high; i++ {
		size := uint64(unknownEnd)
		for _, f := range s.files {
			if f.number == i {
				size = max(size, uint64(f.size))
			}
		}
		n += size
	}
	return n
}

// joined merges gaps that touch, by stream.
func joined(gaps []jump) []jump {
	slices.SortFunc(gaps, func(a, b jump) int { return cmp.Or(cmp.Compare(a.stream, b.stream), cmp.Compare(a.first, b.first)) })
	var out []jump
	for _, g := range gaps {
		if n := len(out) - 1; n >= 0 && out[n].stream == g.stream && g.first <= out[n].last+1 {
			out[n].last = max(out[n].last, g.last)
		} else {
			out = append(out, g)
		}
	}
	return out
}

// without returns what of a gap no range counts.
func without(g jump, name string, ranges []DropRange) []jump {
	parts := []jump{g}
	for _, r := range ranges {
		if r.Stream != name {
			continue
		}
		var next []jump
		for _, p := range parts {
			if r.Last < p.first || r.First > p.last {
				next = append(next, p)
				continue
			}
			if r.First > p.first {
				next = append(next, jump{p.stream, p.first, r.First - 1})
			}
			if r.Last < p.last {
				next = append(next, jump{p.stream, r.Last + 1, p.last})
			}
		}
		parts = next
	}
	return slices.DeleteFunc(parts, func(p jump) bool { return p.first > p.last })
}
