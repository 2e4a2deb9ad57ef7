package blockcut_test

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"edgegateway/wal"
)

// newest is the key of the state that holds the number of the newest item.
const newest = "newest"

// item is a batch that a producer has handed over.
type item struct {
	id    string
	start int // mark before Append
	acked int // mark in the callback; never, where that had an error
	batch wal.Batch
}

// outcome is what an uplink has said of a record.
type outcome struct {
	start, end int // marks around the call
	refused    bool
}

// uplink is what one cursor was told.
type uplink struct {
	name, stream string
	opened       int // mark after it was durable
	outcomes     map[uint64]outcome
}

func (u *uplink) String() string { return u.name + " on " + u.stream }

// sighting is a record that somebody has read.
type sighting struct {
	at  int // mark
	seq uint64
}

// history is all that was told to a log and all that it has answered, with the marks of when.
type history struct {
	why    wal.DropReason
	epoch  int // mark after the log was there
	closed int // mark after it was closed

	mu    sync.Mutex // guards the fields below while the scene lasts; afterwards nothing changes
	order []*item    // as they were answered, and so as they lie in the log
	ups   []*uplink
	seen  map[string][]sighting // by stream
	fin   []wal.DropRange       // when the scene was over

	holds []holding // by number of items; made when it is looked for
	index map[string]int
}

func (h *history) answered(it *item, err error, at int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err == nil {
		it.acked = at
	}
	h.order = append(h.order, it)
}

func (h *history) saw(stream string, seq uint64, at int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seen[stream] = append(h.seen[stream], sighting{at, seq})
}

func (h *history) outcome(u *uplink, seq uint64, o outcome) {
	h.mu.Lock()
	defer h.mu.Unlock()
	u.outcomes[seq] = o
}

// holding is what a log holds after the first items.
type holding struct {
	records map[string][][]byte
	bytes   map[string]uint64
	state   map[string]string
}

func (h *history) holding(n int) *holding {
	if h.index == nil {
		h.index = map[string]int{}
		for i, it := range h.order {
			h.index[it.id] = i
		}
		h.holds = []holding{{map[string][][]byte{}, map[string]uint64{}, map[string]string{}}}
	}
	for len(h.holds) <= n {
		last := &h.holds[len(h.holds)-1]
		next := holding{maps.Clone(last.records), maps.Clone(last.bytes), maps.Clone(last.state)}
		b := h.order[len(h.holds)-1].batch
		for _, e := range b.Entries {
			next.records[e.Stream] = append(next.records[e.Stream], e.Data)
			next.bytes[e.Stream] += uint64(len(e.Data))
		}
		for _, c := range b.State {
			if next.state[c.Key] = string(c.Value); c.Value == nil {
				delete(next.state, c.Key)
			}
		}
		h.holds = append(h.holds, next)
	}
	return &h.holds[n]
}

// sentinel is the record that an examination appends to each stream: that the log still takes records, and where it ends.
var sentinel = []byte("a record from after the cut")

// examination looks at a log after a cut.
type examination struct {
	h       *history
	l       *wal.Log
	cut     int // the place of the cut in the line of events
	wrong   []string
	items   int // that the log holds
	durable int // outcomes that ended before this mark are in the newest commit
	holds   *holding
	extra   uint64 // sentinels of earlier examinations, in each stream
	dropped map[string]map[uint64]bool
	letters map[string]string
}

func (e *examination) fault(format string, args ...any) {
	if len(e.wrong) < 5 {
		e.wrong = append(e.wrong, fmt.Sprintf(format, args...))
	}
}

// examine opens the log in dir and returns what is wrong with it, given that the power was cut before an event. What was
// acknowledged before has to be there, and nothing that began after it.
func (h *history) examine(ctx context.Context, dir string, cut int) []string {
	e := &examination{h: h, cut: cut}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	var err error
	if e.l, err = wal.Open(dir, wal.Options{SegmentBytes: segmentBytes, MaxDelay: time.Millisecond, NewEpoch: firstEpoch + 1}); err != nil {
		return []string{fmt.Sprintf("does not open: %v", err)}
	}
	if e.findEnd() {
		stats := e.l.Stats()
		e.checkStreams(&stats)
		e.checkRanges(&stats)
		e.checkCursors(ctx, &stats)
	}
	if err := e.l.Close(); err != nil {
		e.fault("does not close: %v", err)
	}
	return e.wrong
}

// findEnd finds out which items the log holds.
func (e *examination) findEnd() bool {
	state := map[string]string{}
	e.l.State("", func(k string, v []byte) bool { state[k] = string(v); return true })
	h := e.h
	e.holds = h.holding(0)
	if id, ok := state[newest]; ok {
		i, known := h.index[id]
		if !known {
			e.fault("invented: item %q", id)
			return false
		}
		e.items = i + 1
		e.holds = h.holding(e.items)
		if e.durable = h.order[i].start; e.durable >= e.cut {
			e.fault("invented: item %s was appended after the cut", id)
		}
	}
	promised := 0
	for promised < len(h.order) && h.order[promised].acked < e.cut {
		promised++
	}
	if e.items < promised {
		e.fault("lost: %d items are there of %d acknowledged", e.items, promised)
	}
	if !maps.Equal(state, e.holds.state) {
		e.fault("state is not that of item %d", e.items)
	}
	if h.epoch < e.cut && e.l.Epoch() != firstEpoch {
		e.fault("lost: the log began anew")
	}
	if h.closed < e.cut {
		e.durable = h.closed
	}
	return true
}

func (e *examination) checkStreams(s *wal.Stats) {
	seen := map[string]uint64{}
	for i := range s.Streams {
		st := &s.Streams[i]
		want := uint64(len(e.holds.records[st.Name]))
		if i == 0 && st.Records >= want {
			e.extra = st.Records - want
		}
		if st.Records != want+e.extra || st.Bytes != e.holds.bytes[st.Name]+e.extra*uint64(len(sentinel)) {
			e.fault("stream %s has %d records and %d bytes, its state says %d and %d, and %d of ours",
				st.Name, st.Records, st.Bytes, want, e.holds.bytes[st.Name], e.extra)
		}
		seen[st.Name] = want
	}
	for name, recs := range e.holds.records {
		if _, ok := seen[name]; !ok {
			e.fault("stream %s is missing, it had %d records", name, len(recs))
		}
	}
	for name, list := range e.h.seen {
		for _, r := range list {
			if r.at < e.cut && r.seq > seen[name] {
				e.fault("lost: record %d of %s was read, the stream ends at %d", r.seq, name, seen[name])
				break
			}
		}
	}
}

// checkRanges compares the dropped ranges with those of the scene, and notes what was dropped.
func (e *examination) checkRanges(s *wal.Stats) {
	e.dropped = map[string]map[uint64]bool{}
	counted := map[string]uint64{}
	for i, r := range s.Ranges {
		if i >= len(e.h.fin) {
			e.fault("invented: range %s %d–%d (%s)", r.Stream, r.First, r.Last, r.Why)
			return
		}
		want := e.h.fin[i]
		if r.Stream != want.Stream || r.First != want.First || r.Last != want.Last || r.Why != want.Why || r.Why != e.h.why {
			e.fault("range %s %d–%d (%s) was %s %d–%d (%s)",
				r.Stream, r.First, r.Last, r.Why, want.Stream, want.First, want.Last, want.Why)
		}
		if e.dropped[r.Stream] == nil {
			e.dropped[r.Stream] = map[uint64]bool{}
		}
		for seq := r.First; seq <= r.Last; seq++ {
			e.dropped[r.Stream][seq] = true
		}
		counted[r.Stream] += r.Last - r.First + 1
	}
	for i := range s.Streams {
		if st := &s.Streams[i]; st.Dropped != counted[st.Name] {
			e.fault("stream %s counts %d dropped records, its ranges have %d", st.Name, st.Dropped, counted[st.Name])
		}
	}
}

func (e *examination) checkCursors(ctx context.Context, s *wal.Stats) {
	e.letters = map[string]string{}
	e.l.DeadLetters(func(d wal.DeadLetter) bool {
		key := fmt.Sprintf("%s on %s: %d", d.Uplink, d.Stream, d.Seq)
		if _, twice := e.letters[key]; twice {
			e.fault("dead letter twice: %s", key)
		}
		e.letters[key] = string(d.Data)
		return true
	})
	at := map[string]uint64{}
	for _, c := range e.l.Cursors() {
		at[c.Uplink+" on "+c.Stream] = c.Seq
	}
	if err := e.goOn(ctx, s); err != nil {
		e.fault("does not take records: %v", err)
		return
	}
	missing := uint64(0)
	for _, u := range e.h.ups {
		seq, known := at[u.String()]
		if known {
			missing += e.checkCursor(u, e.before(ctx, u, seq))
		} else if u.opened < e.cut {
			e.fault("lost: the cursor of %s", u)
		}
	}
	if missing > s.DeadLettersLost {
		e.fault("lost: %d dead letters, %d are counted", missing, s.DeadLettersLost)
	}
	for key := range e.letters {
		if !e.mayBeDead(key) {
			e.fault("dead letter from nowhere: %s", key)
		}
	}
}

// goOn appends the sentinel to each stream.
func (e *examination) goOn(ctx context.Context, s *wal.Stats) error {
	b := wal.Batch{Urgent: true}
	for i := range s.Streams {
		b.Entries = append(b.Entries, wal.Entry{Stream: s.Streams[i].Name, Time: time.Now(), Data: sentinel})
	}
	done := make(chan error, 1)
	if err := e.l.Append(ctx, b, func(err error) { done <- err }); err != nil {
		return err
	}
	return <-done
}

// before reads all that a cursor has before it, up to the sentinel, and returns the sequences.
func (e *examination) before(ctx context.Context, u *uplink, last uint64) map[uint64]bool {
	out := map[uint64]bool{}
	c, err := e.l.Cursor(u.name, u.stream, wal.Oldest)
	if err != nil {
		e.fault("cursor of %s: %v", u, err)
		return out
	}
	want := e.holds.records[u.stream]
	for end := uint64(len(want)) + e.extra + 1; last < end; {
		recs, err := c.Read(ctx, 0, 0)
		if err != nil {
			e.fault("read %s after %d: %v", u, last, err)
			return out
		}
		for _, r := range recs {
			expected := sentinel
			if r.Seq <= uint64(len(want)) {
				expected = want[r.Seq-1]
				out[r.Seq] = true
			}
			switch {
			case r.Seq <= last || r.Seq > end:
				e.fault("record %d of %s came after %d, the stream has %d", r.Seq, u, last, end)
				return out
			case !bytes.Equal(r.Data, expected):
				e.fault("record %d of %s has other contents", r.Seq, u)
			}
			last = r.Seq
		}
	}
	return out
}

// checkCursor compares what a cursor has before it with what it was told, and returns how many dead letters are missing.
func (e *examination) checkCursor(u *uplink, before map[uint64]bool) (missing uint64) {
	for n := uint64(1); n <= uint64(len(e.holds.records[u.stream])); n++ {
		o, told := u.outcomes[n]
		switch {
		case before[n]:
			if told && o.end < e.durable {
				e.fault("cursor of %s went back: record %d had its outcome before item %d was appended", u, n, e.items)
			}
			told = false // as far as the log knows
		case e.dropped[u.stream][n]:
			continue
		case !told || o.start >= e.cut:
			e.fault("cursor of %s is past record %d, which has no outcome", u, n)
		}
		key := fmt.Sprintf("%s: %d", u, n)
		data, letter := e.letters[key]
		delete(e.letters, key)
		switch {
		case letter && (!told || !o.refused):
			e.fault("dead letter of %s is there, the cursor knows of no refusal", key)
		case letter && data != string(e.holds.records[u.stream][n-1]):
			e.fault("dead letter of %s has other data", key)
		case !letter && told && o.refused:
			missing++
		}
	}
	return missing
}

// mayBeDead tells whether a record that was dropped from the log had been refused before.
func (e *examination) mayBeDead(key string) bool {
	i := slices.IndexFunc(e.h.ups, func(u *uplink) bool { return strings.HasPrefix(key, u.String()+": ") })
	if i < 0 {
		return false
	}
	var n uint64
	if _, err := fmt.Sscan(key[strings.LastIndex(key, " ")+1:], &n); err != nil {
		return false
	}
	o, told := e.h.ups[i].outcomes[n]
	return told && o.refused && o.start < e.cut
}
