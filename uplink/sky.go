package uplink

import (
	"math"
	"sync"
)

// sky is what a flight has sent and has no report of, by sequence. Sequences follow each other nearly always, so records lie in pages,
// which are used again: a map of records would cost more than all else that the Runner does.
type sky struct {
	pages map[uint64]*page // by sequence / pageRecords
	near  *page            // the one used last, or nil
	count int
}

const pageRecords = 128

// page has room for the records of pageRecords sequences. It lives until each that went up is settled.
type page struct {
	number uint64
	open   int   // went up, and are not settled
	since  int64 // when the oldest of all that went up was sent, in nanoseconds since 1970
	slots  [pageRecords]aloft
}

var pages = sync.Pool{New: func() any { return &page{} }}

// put takes a record up.
func (s *sky) put(a aloft) *aloft {
	seq := a.seq
	p := s.page(seq)
	if p == nil {
		p = pages.Get().(*page)
		p.number, p.since = seq/pageRecords, a.since
		if s.pages == nil {
			s.pages = map[uint64]*page{}
		}
		s.pages[p.number], s.near = p, p
	}
	slot := &p.slots[seq%pageRecords]
	a.up = true
	*slot = a
	p.open++
	p.since = min(p.since, a.since)
	s.count++
	return slot
}

func (s *sky) page(seq uint64) *page {
	number := seq / pageRecords
	if s.near == nil || s.near.number != number {
		p := s.pages[number]
		if p == nil {
			return nil
		}
		s.near = p
	}
	return s.near
}

// take takes a record down and returns it, nil if it is not up. It is to be settled.
func (s *sky) take(seq uint64) *aloft {
	p := s.page(seq)
	if p == nil {
		return nil
	}
	slot := &p.slots[seq%pageRecords]
	if !slot.up {
		return nil
	}
	slot.up = false
	s.count--
	return slot
}

// settled says that nobody needs a record any more that take has returned.
func (s *sky) settled(a *aloft) {
	if a.unasked {
		return
	}
	p := s.page(a.seq)
	if p.open--; p.open > 0 {
		return
	}
	delete(s.pages, p.number)
	if s.near == p {
		s.near = nil
	}
	clear(p.slots[:])
	pages.Put(p)
}

// each calls do for all that is up.
func (s *sky) each(do func(*aloft)) {
	for _, p := range s.pages {
		for i := range p.slots {
			if p.slots[i].up {
				do(&p.slots[i])
			}
		}
	}
}

// oldest returns when the oldest of all that is up was sent, math.MaxInt64 for none. It looks into few pages only: this is asked while tens
// of thousands of records are up.
func (s *sky) oldest() int64 {
	first := int64(math.MaxInt64)
	for _, p := range s.pages {
		if p.since >= first {
			continue
		}
		for i := range p.slots {
			if p.slots[i].up {
				first = min(first, p.slots[i].since)
			}
		}
	}
	return first
}

// clear forgets all that is up. Nothing may wait to be settled.
func (s *sky) clear() { *s = sky{} }
