package wal

import (
	"bytes"
	"cmp"
	"math"
	"slices"
)

// This file chooses which of the blocks that were found are the log's.

// group is a run of segments that are damaged or missing, between two that are sound.
type group struct {
	s             *salvage
	from, to      uint64
	before, after *salvageFile
	begun         bool // there is something before it in the salvaged log
}

// segmentPlan is what a new segment file will hold.
type segmentPlan struct {
	header header
	last   uint64
	tails  []uint64 // newest sequence by stream at its end
	newest int64
	pieces []candidate
}

// plan decides what of the group's blocks goes where. It returns false where nothing of it is needed.
func (g *group) plan() bool {
	s := g.s
	lo, hi := uint64(1), uint64(math.MaxUint64)
	headers := g.headers()
	switch h, ok := headers[g.from]; {
	case g.begun:
		lo = s.lastPos + 1
	case ok:
		lo = h.base
	}
	known := g.begun || headers[g.from].base > 0
	switch {
	case g.after != nil:
		hi = g.after.header.base - 1
	case s.endKnown:
		hi = s.ctl.last
	}
	chosen := g.pick(lo, hi)
	if !known {
		// Where the oldest file does not say where it begins, blocks of its former life cannot be told by their place. But
		// every cursor has passed them, or the file would not have been used again.
		i := slices.IndexFunc(chosen, func(c candidate) bool { return s.isNeeded(&c) })
		if i < 0 && g.after != nil && !s.lacks(g.after.header.first) {
			return false
		}
		if i < 0 {
			i = len(chosen)
		}
		chosen = chosen[i:]
	}
	end := hi
	if hi == math.MaxUint64 {
		end = s.ctl.last
		for _, h := range headers {
			end = max(end, h.base-1)
		}
		if n := len(chosen); n > 0 {
			end = max(end, chosen[n-1].last)
		}
		if s.lastPos > end {
			end = s.lastPos
		}
	}
	if !known {
		lo = end + 1
		if len(chosen) > 0 {
			lo = chosen[0].first
		}
		g.setFirst(chosen)
	} else if !g.begun {
		copy(s.seqs, headers[g.from].first)
	}
	g.split(lo, end, chosen, headers)
	return true
}

// headers returns the headers that are known, by number.
func (g *group) headers() map[uint64]header {
	out := map[uint64]header{}
	for _, f := range g.s.files {
		if f.headed && f.number >= g.from && f.number <= g.to && g.s.sound[f.number] == nil {
			out[f.number] = f.header
		}
	}
	return out
}

// pick chooses blocks for the positions lo to hi: the surest first. Where two that are as sure contradict each other,
// neither is taken.
func (g *group) pick(lo, hi uint64) []candidate {
	s := g.s
	var all []candidate
	seen := map[candidateID]int{}
	for _, f := range s.files {
		for _, c := range f.found {
			if c.first < lo || c.last > hi {
				continue
			}
			id := candidateID{c.first, c.last, c.sum}
			if i, ok := seen[id]; ok {
				if all[i].trust < c.trust {
					all[i] = c
				}
				continue
			}
			seen[id] = len(all)
			all = append(all, c)
		}
	}
	slices.SortFunc(all, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(b.trust, a.trust), cmp.Compare(a.first, b.first), cmp.Compare(a.last, b.last))
	})
	var chosen []candidate
	for i := 0; i < len(all); {
		j := i
		for j < len(all) && all[j].trust == all[i].trust {
			j++
		}
		level := slices.DeleteFunc(slices.Clone(all[i:j]), func(c candidate) bool {
			return overlaps(chosen, c) && !s.replaces(&chosen, c)
		})
		for k := 0; k < len(level); {
			e, end := k+1, level[k].last
			for e < len(level) && level[e].first <= end {
				end = max(end, level[e].last)
				e++
			}
			chosen = append(chosen, s.agreed(level[k:e])...)
			k = e
		}
		slices.SortFunc(chosen, func(a, b candidate) int { return cmp.Compare(a.first, b.first) })
		i = j
	}
	return chosen
}

// agreed chooses among blocks that overlap. Small blocks that have become a large one later hold the same records: then the
// largest is taken. Of blocks that contradict each other none is.
func (s *salvage) agreed(list []candidate) []candidate {
	if len(list) == 1 {
		return list
	}
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b candidate) int { return cmp.Compare(b.last-b.first, a.last-a.first) })
	var out []candidate
	bad := map[int]bool{}
	for _, c := range list {
		alone := true
		for i := range out {
			if out[i].first <= c.last && c.first <= out[i].last {
				alone = false
				bad[i] = bad[i] || !s.agree(&out[i], &c)
			}
		}
		if alone {
			out = append(out, c)
		}
	}
	var kept []candidate
	for i, c := range out {
		if bad[i] {
			s.r.Ambiguous++
		} else {
			kept = append(kept, c)
		}
	}
	return kept
}

// agree tells whether two blocks hold the same records where they overlap.
func (s *salvage) agree(a, b *candidate) bool {
	x, errX := a.read(&s.u)
	y, errY := b.read(&s.u)
	if errX != nil || errY != nil || a.filler != b.filler {
		return false
	}
	if a.filler {
		return true
	}
	p, errX := x.entries()
	q, errY := y.entries()
	if errX != nil || errY != nil {
		return false
	}
	for pos := max(a.first, b.first); pos <= min(a.last, b.last); pos++ {
		e, f := &p[pos-a.first], &q[pos-b.first]
		if e.stream != f.stream || e.seq != f.seq || e.time != f.time || !bytes.Equal(e.data, f.data) {
			return false
		}
	}
	return true
}

// replaces takes blocks out of chosen where c holds all of their records and more: small blocks became a large one with the
// records of the commit that came then.
func (s *salvage) replaces(chosen *[]candidate, c candidate) bool {
	for i := range *chosen {
		o := &(*chosen)[i]
		if o.first > c.last || c.first > o.last {
			continue
		}
		if o.first < c.first || o.last > c.last || o.last-o.first == c.last-c.first || !s.agree(o, &c) {
			return false
		}
	}
	*chosen = slices.DeleteFunc(*chosen, func(o candidate) bool { return o.first >= c.first && o.last <= c.last })
	return true
}

func overlaps(sorted []candidate, c candidate) bool {
	i, _ := slices.BinarySearchFunc(sorted, c.first, func(o candidate, first uint64) int { return cmp.Compare(o.last, first) })
	return i < len(sorted) && sorted[i].first <= c.last
}

// isNeeded tells whether a cursor has a record of the block before it.
func (s *salvage) isNeeded(c *candidate) bool {
	for _, sp := range c.spans {
		if low, ok := s.lowest[sp.stream]; ok && sp.last > low {
			return true
		}
	}
	return false
}

// setFirst says where the streams begin in a log whose oldest header is lost: where no cursor is left out.
func (g *group) setFirst(chosen []candidate) {
	s := g.s
	for i := range s.seqs {
		s.seqs[i] = s.ctl.tails[i].seq
		if g.after != nil && i < len(g.after.header.first) {
			s.seqs[i] = g.after.header.first[i]
		} else if g.after != nil {
			s.seqs[i] = 0
		}
	}
	done := map[uint32]bool{}
	for _, c := range chosen {
		for _, sp := range c.spans {
			if !done[sp.stream] {
				done[sp.stream] = true
				s.seqs[sp.stream] = sp.first - 1
			}
		}
	}
	for stream, low := range s.lowest {
		if !s.r.NoCursors { // or each begins at the oldest record anyway
			s.seqs[stream] = min(s.seqs[stream], low)
		}
	}
}

// lacks tells whether a cursor stands before where the streams begin.
func (s *salvage) lacks(first []uint64) bool {
	for stream, low := range s.lowest {
		if int(stream) < len(first) && low < first[stream] && !s.r.NoCursors {
			return true
		}
	}
	return false
}

// split distributes the blocks over the numbers of the group, at the places that are known.
func (g *group) split(lo, end uint64, chosen []candidate, headers map[uint64]header) {
	s := g.s
	next := lo
	for n := g.from; n <= g.to; n++ {
		var p segmentPlan
		p.header = header{uuid: s.uuid, epoch: s.epoch, number: n, base: next, created: headers[n].created, first: slices.Clone(s.seqs)}
		if p.header.created == 0 {
			p.header.created = nanos(s.now)
		}
		until, exact := end, n == g.to
		if h, ok := headers[n+1]; ok && n < g.to && h.base > next && h.base <= end+1 {
			until, exact = h.base-1, true
		}
		size := int64(0)
		for len(chosen) > 0 && chosen[0].first <= until && (exact || size < s.o.SegmentBytes) {
			c := chosen[0]
			chosen = chosen[1:]
			if c.last > until || !s.follow(&c) {
				continue
			}
			p.pieces = append(p.pieces, c)
			size += int64(c.size)
			next = c.last + 1
			p.newest = max(p.newest, c.newest)
		}
		if exact {
			next = max(next, until+1)
		}
		p.last, p.tails = next-1, slices.Clone(s.seqs)
		s.plans = append(s.plans, p)
	}
	s.lastPos = max(s.lastPos, next-1)
}

// follow goes on with a block, and returns false where its sequences cannot be what comes next.
func (s *salvage) follow(c *candidate) bool {
	for _, sp := range c.spans {
		if sp.first <= s.seqs[sp.stream] {
			return false
		}
	}
	for _, sp := range c.spans {
		if sp.first > s.seqs[sp.stream]+1 {
			s.gaps = append(s.gaps, jump{sp.stream, s.seqs[sp.stream] + 1, sp.first - 1})
		}
		s.seqs[sp.stream] = sp.last
		t := &s.ctl.tails[sp.stream]
		if sp.first > t.seq {
			t.bytes += sp.bytes
		}
		if !c.filler {
			s.r.Recovered += sp.last - sp.first + 1
		}
	}
	return true
}
