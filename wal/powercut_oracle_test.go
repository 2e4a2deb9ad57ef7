package wal_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"edgegateway/wal"
)

// item is a batch that a producer has handed over.
type item struct {
	id    string
	start int // mark before Append
	acked int // mark in the callback
	batch wal.Batch
}

// outcome is what an uplink has said of a record.
type outcome struct {
	start, end int // marks around the call; end 0: it has not returned
	dropped    bool
}

// uplinkHistory is what one cursor was told.
type uplinkHistory struct {
	uplink, stream string
	opened         int    // mark after it was durable
	from           uint64 // where it began
	released       span   // of the call that released it
	outcomes       map[uint64]outcome
	settled        uint64 // position that was seen after a restart, and must not be lost after settledAt
	settledAt      int

	// Of a split. The second cursor has its own name until it takes the first one's, which goes then.
	first *uplinkHistory // the cursor that this one is the second of; nil where there is none, or it was gone before this run
	until uint64         // the record that this one ends at, where it is the first one
	took  span           // of the call that gave the second one the name of the first one
	gone  bool           // it was succeeded before this run
}

// owner is the name in which its dead letters are.
func (u *uplinkHistory) owner() string {
	name, _, _ := wal.ParseSplit(u.uplink)
	return name
}

// secondOf returns the second cursor of a split.
func (h *history) secondOf(u *uplinkHistory) *uplinkHistory {
	for _, s := range h.ups {
		if s.first == u {
			return s
		}
	}
	return nil
}

// nameOf returns the name that a cursor has where these cursors are, after event hi; "" where it has gone, or is not there yet.
func (h *history) nameOf(u *uplinkHistory, at map[string]uint64, hi int) string {
	if u.gone {
		return ""
	}
	if u.first != nil {
		if name := u.uplink + " on " + u.stream; has(at, name) {
			return name // it has not taken the other one yet
		}
		if !u.mayHaveTaken(hi) {
			return ""
		}
	}
	if h.succeeded(u, at, hi) {
		return ""
	}
	return u.owner() + " on " + u.stream
}

// succeeded tells whether the second cursor of a split has the place of the first one.
func (h *history) succeeded(u *uplinkHistory, at map[string]uint64, hi int) bool {
	s := h.secondOf(u)
	return s != nil && s.mayHaveTaken(hi) && !has(at, s.uplink+" on "+s.stream)
}

func (u *uplinkHistory) mayHaveTaken(hi int) bool { return u.took.start > 0 && u.took.start <= hi }

func has(at map[string]uint64, name string) bool { _, ok := at[name]; return ok }

// span has the marks around a call; end 0: it has not returned, or has not done it.
type span struct{ start, end int }

// refusal is a batch that was refused.
type refusal struct {
	start, end int // marks around it
	records    uint64
}

// sighting is a record that somebody has read.
type sighting struct {
	at  int
	seq uint64
}

// history is all that was told to a log and all that it has answered, with the marks of when.
type history struct {
	mu    sync.Mutex
	order []*item // as they were acknowledged, and so as they lie in the log
	ups   []*uplinkHistory
	seen  map[string][]sighting // by stream
	epoch int                   // mark after the log was there
	prefs []*prefix             // by number of items; made when it is looked for
	index map[string]int        // id of an item → its place in order
	fin   []wal.DropRange       // when the run was over

	refusals  []refusal
	refused   uint64 // records that had been refused when the log was opened
	settledAt int    // mark after that
}

// refusedBetween counts the records that had been refused before one mark, or began to be until then.
func (h *history) refusedBetween(end, start int) (n uint64) {
	n = h.refused
	for _, r := range h.refusals {
		if r.end < end && r.start <= start {
			n += r.records
		}
	}
	return n
}

// prefix is what a log holds after the first items.
type prefix struct {
	records map[string][][]byte
	state   map[string]string
}

// restarted gives what was seen when the log was opened again the mark from which on it must not be lost.
func (h *history) restarted(at int) {
	h.settledAt = at
	for _, it := range h.order {
		if it.acked == restarted {
			it.acked = at
		}
	}
	for _, u := range h.ups {
		u.settledAt = at
		if u.opened == restarted {
			u.opened = at
		}
		if u.released.end == restarted {
			u.released.end = at
		}
		if u.released.start == restarted {
			u.released.start = at
		}
		for seq, o := range u.outcomes {
			if o.end == restarted {
				o.end = at
				u.outcomes[seq] = o
			}
		}
	}
}

func (h *history) prefix(n int) *prefix {
	if len(h.prefs) == 0 {
		h.prefs = []*prefix{{records: map[string][][]byte{}, state: map[string]string{}}}
		h.index = map[string]int{}
		for i, it := range h.order {
			h.index[it.id] = i
		}
	}
	for len(h.prefs) <= n {
		last := h.prefs[len(h.prefs)-1]
		p := &prefix{records: maps.Clone(last.records), state: maps.Clone(last.state)}
		b := h.order[len(h.prefs)-1].batch
		for _, e := range b.Entries {
			p.records[e.Stream] = append(p.records[e.Stream], e.Data)
		}
		for _, c := range b.State {
			if p.state[c.Key] = string(c.Value); c.Value == nil {
				delete(p.state, c.Key)
			}
		}
		h.prefs = append(h.prefs, p)
	}
	return h.prefs[n]
}

// view is what a log shows after a cut.
type view struct {
	items   int                        // of the order
	open    map[string]map[uint64]bool // by cursor: the records that it still has before it
	cursors map[string]uint64
	names   map[*uplinkHistory]string // "" for a cursor that is not there
	refused uint64
}

// goneOn is the key of what is written to a log after the cut.
const goneOn = "gone on"

// examine opens a log as a cut has left it, and returns what is wrong with it. The cut fell after event hi, and before
// event lo: what was acknowledged before lo has to be there, and nothing that began after hi.
func (h *history) examine(dir string, o wal.Options, lo, hi int) (v view, wrong []string) {
	fault := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	l, err := wal.Open(dir, o)
	if err != nil {
		fault("does not open: %v", err)
		return v, wrong
	}
	defer func() {
		if err := l.Close(); err != nil {
			fault("does not close: %v", err)
		}
	}()
	wal.KeepOpen(l)
	p0 := h.prefix(0)
	state := map[string]string{}
	l.State("", func(k string, v []byte) bool { state[k] = string(v); return true })
	delete(state, goneOn)
	if id, ok := state["last"]; ok {
		i, known := h.index[id]
		if !known {
			fault("invented: item %q", id)
			return v, wrong
		}
		v.items = i + 1
	}
	promised, _ := slices.BinarySearchFunc(h.order, lo, func(it *item, lo int) int { return it.acked - lo })
	if v.items < promised {
		fault("lost: %d items of %d acknowledged", v.items, promised)
	}
	durable := 0 // outcomes that ended before are in the same commit
	if v.items > 0 {
		if durable = h.order[v.items-1].start; durable > hi {
			fault("invented: item %d began after the cut", v.items)
		}
	}
	p := p0
	if v.items > 0 {
		p = h.prefix(v.items)
	}
	if !maps.Equal(state, p.state) {
		fault("state is not that of item %d", v.items)
	}
	if h.epoch > 0 && h.epoch < lo && l.Epoch() != 7 {
		fault("lost: the log began anew")
	}
	stats := l.Stats()
	v.refused = stats.Refused
	least := h.refusedBetween(durable, durable)
	if lo <= h.settledAt {
		least = 0
	}
	if most := h.refusedBetween(never, hi); v.refused < least || v.refused > most {
		fault("%d records refused, want %d to %d", v.refused, least, most)
	}
	ranges := h.examineStreams(&stats, p, lo, fault)
	h.examineCursors(l, &v, p, ranges, lo, hi, durable, fault)
	return v, wrong
}

// examineStreams compares the streams and their dropped ranges; it returns which records were dropped.
func (h *history) examineStreams(s *wal.Stats, p *prefix, lo int, fault func(string, ...any)) map[string]map[uint64]bool {
	n := map[string]uint64{}
	dropped := map[string]uint64{}
	for _, st := range s.Streams {
		n[st.Name], dropped[st.Name] = st.Records, st.Dropped
		var size uint64
		for _, d := range p.records[st.Name] {
			size += uint64(len(d))
		}
		if size != st.Bytes {
			fault("stream %s counts %d bytes, has %d", st.Name, st.Bytes, size)
		}
	}
	for name, recs := range p.records {
		if n[name] != uint64(len(recs)) {
			fault("stream %s has %d records, its state says %d", name, n[name], len(recs))
		}
	}
	for name, list := range h.seen {
		for _, r := range list {
			if r.at < lo && r.seq > n[name] {
				fault("lost: record %d of %s was read, the stream ends at %d", r.seq, name, n[name])
				break
			}
		}
	}
	out := map[string]map[uint64]bool{}
	for i, r := range s.Ranges {
		if r.Why == wal.DroppedMissing || r.Last > n[r.Stream] || i >= len(h.fin) || !sameRange(r, h.fin[i]) {
			fault("lost: range %s %d–%d (%s)", r.Stream, r.First, r.Last, r.Why)
		}
		if out[r.Stream] == nil {
			out[r.Stream] = map[uint64]bool{}
		}
		for seq := r.First; seq <= r.Last; seq++ {
			out[r.Stream][seq] = true
		}
		dropped[r.Stream] -= r.Last - r.First + 1
	}
	for name, d := range dropped {
		if d != 0 {
			fault("stream %s has dropped %d records that no range names", name, int64(d))
		}
	}
	return out
}

func sameRange(a, b wal.DropRange) bool {
	return a.Stream == b.Stream && a.First == b.First && a.Last == b.Last && a.Why == b.Why
}

func (h *history) examineCursors(
	l *wal.Log, v *view, p *prefix, ranges map[string]map[uint64]bool, lo, hi, durable int, fault func(string, ...any),
) {
	at := map[string]uint64{}
	for _, c := range l.Cursors() {
		at[c.Uplink+" on "+c.Stream] = c.Seq
	}
	letters := map[string]string{}
	l.DeadLetters(func(d wal.DeadLetter) bool {
		key := fmt.Sprintf("%s on %s: %d", d.Uplink, d.Stream, d.Seq)
		if _, twice := letters[key]; twice {
			fault("dead letter twice: %s", key)
		}
		letters[key] = string(d.Data)
		return true
	})
	missing := uint64(0)
	v.open, v.cursors, v.names = map[string]map[uint64]bool{}, at, map[*uplinkHistory]string{}
	for _, u := range h.ups {
		name := h.nameOf(u, at, hi)
		seq, known := at[name]
		if !known {
			gone := u.gone || u.released.start > 0 && u.released.start <= hi || h.succeeded(u, at, hi)
			if u.opened > 0 && u.opened < lo && !gone {
				fault("lost: the cursor of %s on %s", u.uplink, u.stream)
			}
			continue
		}
		v.names[u] = name
		if u.released.end > 0 && u.released.end < lo {
			fault("the cursor of %s was released and is there", name)
		}
		if u.took.end > 0 && u.took.end < lo && name != u.owner()+" on "+u.stream {
			fault("the cursor of %s has taken another name, and has its own", name)
		}
		end := uint64(len(p.records[u.stream]))
		if s := h.secondOf(u); s != nil && has(at, s.uplink+" on "+s.stream) {
			end = min(end, u.until)
		}
		open := h.examineRecords(l, name, u.stream, p, seq, end, fault)
		v.open[name] = open
		for n := uint64(1); n <= end; n++ {
			o, told := u.outcomes[n]
			switch raised := ranges[u.stream][n]; {
			case open[n]:
				if n <= u.from {
					fault("cursor of %s went back: it began after record %d", name, u.from)
				}
				if told && o.end > 0 && o.end < durable || n <= u.settled && u.settledAt < lo {
					fault("cursor of %s went back: record %d had its outcome before item %d was appended", name, n, v.items)
				}
				told = false // as far as the log knows
			case raised, n <= u.from:
				continue
			case !told || o.start > hi:
				fault("cursor of %s is past record %d, which has no outcome", name, n)
			}
			key := fmt.Sprintf("%s on %s: %d", u.owner(), u.stream, n)
			data, letter := letters[key]
			delete(letters, key)
			switch {
			case told && o.dropped && !letter:
				missing++
			case letter && !told:
				fault("dead letter of %s is there, the cursor knows of no outcome", key)
			case letter && data != string(p.records[u.stream][n-1]):
				fault("dead letter of %s has other data", key)
			}
		}
	}
	// Those that were counted as lost had no room.
	if lost := l.Stats().DeadLettersLost; missing > lost {
		fault("lost: %d dead letters, %d are counted", missing, lost)
	}
	for key := range letters {
		if !h.mayBeDead(key, hi) {
			fault("dead letter from nowhere: %s", key)
		}
	}
}

// mayBeDead tells whether a record that was dropped from the log had been refused before.
func (h *history) mayBeDead(key string, hi int) bool {
	for _, u := range h.ups {
		var n uint64
		rest, ok := strings.CutPrefix(key, u.owner()+" on "+u.stream+": ")
		if _, err := fmt.Sscan(rest, &n); ok && err == nil {
			if o, told := u.outcomes[n]; told && o.dropped && o.start <= hi {
				return true
			}
		}
	}
	return false
}

// examineRecords reads all that a cursor has before it, up to the record end.
func (h *history) examineRecords(
	l *wal.Log, name, stream string, p *prefix, from, end uint64, fault func(string, ...any),
) map[uint64]bool {
	open := map[uint64]bool{}
	uplink, _, _ := strings.Cut(name, " on ")
	c, err := l.Cursor(uplink, stream, wal.Oldest)
	if err != nil {
		fault("cursor of %s: %v", name, err)
		return open
	}
	c.Until(end)
	// It stays open: to close it would make a commit.
	want := p.records[stream]
	last := from
	for {
		recs, err := wal.TakeNow(c)
		if err != nil && !errors.Is(err, wal.ErrClosed) && !errors.Is(err, wal.ErrEnd) {
			fault("read %s after %d: %v", name, last, err)
			return open
		}
		if len(recs) == 0 {
			return open
		}
		for _, r := range recs {
			if r.Seq <= last || r.Seq > uint64(len(want)) {
				fault("record %d of %s came after %d, the stream has %d", r.Seq, stream, last, len(want))
				return open
			}
			if !bytes.Equal(r.Data, want[r.Seq-1]) {
				fault("record %d of %s has other contents", r.Seq, stream)
			}
			last = r.Seq
			open[last] = true
		}
	}
}
