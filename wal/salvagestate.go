package wal

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
)

// This file takes cursors and state from what is left of a damaged log.

// choose takes cursors and state from the newest commit that can be read.
func (s *salvage) choose() error {
	var from *salvageFile
	var at root
	var pairs map[string][]byte
	for _, f := range s.newestFirst() {
		if f.sound {
			sum, err := readSummary(f.path, true)
			if err != nil {
				return err // it was sound a moment ago
			}
			from, at, pairs = f, root{header: sum.header, control: sum.control}, sum.state
			s.endKnown = f.number == s.high && s.bothMetas(f)
			break
		}
		if i := slices.IndexFunc(f.roots, func(r root) bool { return r.header.uuid == s.uuid && r.header.number == f.number }); i >= 0 {
			from, at = f, f.roots[i]
			s.endKnown = f.number == s.high && !at.carved && f.metas == 2
			break
		}
	}
	if from == nil {
		s.r.NoCursors = true
		s.st = s.merge(nil, nil)
		s.guess()
	} else {
		s.ctl, s.from = at.control, from.number
		s.ctl.tails, s.ctl.cursors = slices.Clone(s.ctl.tails), slices.Clone(s.ctl.cursors)
		whole := from.sound
		if !whole {
			var err error
			if pairs, whole, err = from.looseState(at); err != nil {
				return err
			}
		}
		st, err := loadStore(&summary{header: at.header, control: at.control, state: pairs})
		if whole && err == nil {
			s.st = st
		} else {
			s.r.StateIncomplete = true
			s.st = s.merge(from, pairs)
		}
	}
	s.r.CursorsAt = s.ctl.last
	s.name()
	s.lowest, s.waiting = map[uint32]uint64{}, map[uint32][]stretch{}
	for i := range s.ctl.cursors {
		p := &s.ctl.cursors[i]
		n := s.st.cursors[p.id].stream
		if low, ok := s.lowest[n]; !ok || p.seq < low {
			s.lowest[n] = p.seq
		}
		s.waiting[n] = addStretch(s.waiting[n], stretch{p.seq, s.st.end(p.id, math.MaxUint64)})
	}
	return nil
}

func (s *salvage) newestFirst() []*salvageFile {
	var out []*salvageFile
	for _, f := range s.files {
		if f.number != 0 {
			out = append(out, f)
		}
	}
	slices.SortStableFunc(out, func(a, b *salvageFile) int { return cmp.Compare(b.number, a.number) })
	return out
}

func (s *salvage) bothMetas(f *salvageFile) bool {
	file, err := os.Open(f.path)
	if err != nil {
		return false
	}
	defer func() { _ = file.Close() }()
	return len(metas(file)) == 2
}

// merge makes a state of what is whole: each key as of the newest commit that has it. Names never change, so those of
// streams and cursors are right whatever commit they come from.
func (s *salvage) merge(from *salvageFile, pairs map[string][]byte) store {
	all := maps.Clone(pairs)
	if all == nil {
		all = map[string][]byte{}
	}
	add := func(more map[string][]byte, kinds string) {
		for k, v := range more {
			if _, known := all[k]; !known && k != "" && strings.IndexByte(kinds, k[0]) >= 0 {
				all[k] = v
			}
		}
	}
	const lasting = string(keyUser) + string(keyStream) + string(keyCursor) + string(keyTold)
	for _, f := range s.newestFirst() {
		if from != nil && f.number > from.number {
			continue
		}
		if f.sound {
			if sum, err := readSummary(f.path, true); err == nil {
				add(sum.state, lasting)
			}
			continue
		}
		for _, r := range f.roots {
			if more, _, err := f.looseState(r); err == nil && r.header.uuid == s.uuid {
				kinds := lasting
				if f == from {
					kinds += string(keyLetter) + string(keyRange)
				}
				add(more, kinds)
			}
		}
	}
	st := newStore()
	for _, k := range slices.Sorted(maps.Keys(all)) {
		if st.bytes+pairSize(k, all[k]) <= maxState {
			_ = st.apply(Change{Key: k, Value: all[k]}) // a pair that is not one is as good as lost
		}
	}
	return st
}

// guess makes a control record where none can be read: each cursor that has a name begins at the oldest record.
func (s *salvage) guess() {
	for id := range s.st.cursors {
		s.ctl.cursors = append(s.ctl.cursors, cursorPos{id: id})
		s.ctl.nextCursor = max(s.ctl.nextCursor, id+1)
	}
	slices.SortFunc(s.ctl.cursors, func(a, b cursorPos) int { return cmp.Compare(a.id, b.id) })
	s.ctl.tails = make([]tail, len(s.st.names))
	for _, n := range s.st.letters {
		s.ctl.letters = max(s.ctl.letters, n)
	}
	for _, n := range s.st.ranges {
		s.ctl.ranges = max(s.ctl.ranges, n)
	}
}

// name makes names, ends of streams and cursors agree: a stream whose name was lost gets one that says so, and a cursor
// that nobody can name is nobody's.
func (s *salvage) name() {
	streams := max(len(s.ctl.tails), len(s.st.names))
	for _, f := range s.files {
		if f.sound {
			streams = max(streams, len(f.sum.control.tails))
		}
		for i := range f.found {
			for _, sp := range f.found[i].spans {
				streams = max(streams, int(sp.stream)+1)
			}
		}
	}
	for len(s.ctl.tails) < streams {
		s.ctl.tails = append(s.ctl.tails, tail{})
	}
	for n := range streams {
		if n >= len(s.st.names) || s.st.names[n] == "" {
			s.problem(fmt.Sprintf("the name of stream %d is lost", n))
			name := fmt.Sprintf("unnamed %d", n)
			value := binary.AppendUvarint(nil, uint64(n))
			_ = s.st.apply(Change{Key: string(keyStream) + name, Value: value}) // it is one
		}
	}
	s.ctl.cursors = slices.DeleteFunc(s.ctl.cursors, func(p cursorPos) bool {
		name, ok := s.st.cursors[p.id]
		if ok && int(name.stream) < streams {
			return false
		}
		s.problem(fmt.Sprintf("cursor %d has lost its name", p.id))
		return true
	})
}
