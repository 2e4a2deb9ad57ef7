package uplink

// search is how a refused record is found: the records that were not taken go in halves, each with nothing else in flight.
//
//	refused: a b c d e f g h ─▶ a b c d taken ─▶ e f refused ─▶ e taken ─▶ f refused alone: a dead letter
type search struct {
	until uint64 // records up to this number are searched; 0 for none
	most  int    // how many of them go together next
}

// next returns how many records may go together when the last one sent has number last; 0 means that there is no search.
func (s *search) next(last uint64) int {
	if last >= s.until {
		*s = search{}
	}
	return s.most
}

// sent halves what goes next. Should this be refused, begin sets it again.
func (s *search) sent() {
	if s.until > 0 {
		s.most = (s.most + 1) / 2
	}
}

// beginLocked starts or narrows the search when a session ends with suspects.
func (f *flight) beginLocked() {
	if f.suspect == 0 {
		return
	}
	n := 0
	for _, seq := range f.unsettled {
		if seq <= f.suspect {
			n++
		}
	}
	f.aloft.each(func(a *aloft) {
		if a.seq <= f.suspect {
			n++
		}
	})
	f.r.search = search{until: f.suspect, most: max(1, (n+1)/2)}
}

// suspected notes a record of a refused batch. One that was alone in it is the culprit. The session is not ended by force: it
// runs out, unless the driver gives it up.
func (f *flight) suspected(p *aloft) {
	f.mu.Lock()
	f.solved = true
	t := f.refusedLocked(p)
	if p.alone && p.seq >= f.r.search.until {
		f.r.search = search{}
	}
	switch {
	case p.alone && f.resetter == nil:
		f.mu.Unlock()
		f.refuse(*p.rec, p.Err)
		f.release(p)
		return
	case p.alone: // whether the session can still move the far cursor is not known: the next one can
		t.final = reason(p.Err, "refused without a reason")
	default:
		if f.suspect == 0 && f.r.search.until == 0 {
			f.r.log.Info("batch refused, looking for the record", "seq", p.seq, "err", p.Err)
		}
		f.suspect = max(f.suspect, p.seq)
		f.unsettled = append(f.unsettled, p.seq)
	}
	f.haltLocked(nil)
	f.mu.Unlock()
}
