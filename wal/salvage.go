package wal

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// SalvageOptions of Salvage.
type SalvageOptions struct {
	Options      // as for Open
	DryRun  bool // only say what would be done
}

// SalvageReport says what Salvage has found and done.
type SalvageReport struct {
	Dir       string
	Problems  []string // what was wrong; empty where the log is sound and nothing was done
	Damaged   []string // files that were replaced or put aside
	Kept      []string // the same files under the names they have now
	Recovered uint64   // records of damaged files that are in the log again
	Lost      []DropRange
	Ambiguous int // places for which there were two different blocks; they count as lost

	// CursorsAt is the position as of which cursors and state are; Last is where the log has ended, as far as is known.
	CursorsAt, Last uint64
	// StateIncomplete says that some pairs of the state were lost, or are older than the rest.
	StateIncomplete bool
	// Skipped is how many sequences each stream has left out, because the end of the log could not be read: the far side
	// may have got records under them.
	Skipped uint64
	// NoCursors says that where the cursors stood could not be read: each begins again at the oldest record.
	NoCursors bool
}

// LostRecords returns how many records were lost for somebody, without those that may never have been.
func (r *SalvageReport) LostRecords() uint64 {
	var n uint64
	for _, l := range r.Lost {
		n += l.Last - l.First + 1
	}
	return n - min(n, r.skippedInLost())
}

func (r *SalvageReport) skippedInLost() uint64 {
	seen := map[string]bool{}
	for _, l := range r.Lost {
		seen[l.Stream] = true
	}
	return uint64(len(seen)) * r.Skipped
}

// unknownEnd is how many sequences are left out for each file whose end cannot be read, or more where it has more bytes:
// a record takes a byte at least, also where it is packed.
const unknownEnd = 16 << 20

// Salvage brings a damaged log into a state that Open takes: it recovers each record whose bytes are whole, also from the
// raw pages of damaged files, and counts what is lost as ranges. Sound segments stay as they are; the others are replaced
// and kept beside it, as *.bad. Sequences and epoch stay, so far keys stay valid; no cursor goes past a record that has no
// outcome. A cut at any moment leaves the log as it was, or salvaged (docs/adr/0012-salvage.md). A sound log is not
// touched. It returns ErrLocked, ErrVersion, ErrFull where there is no room for the new files, and ErrDamaged where
// nothing tells what the files belong to.
func Salvage(dir string, o SalvageOptions, progress func(done, total int64)) (SalvageReport, error) {
	r := SalvageReport{Dir: dir}
	opts, err := o.withDefaults()
	if err != nil {
		return r, fmt.Errorf("salvage log %s: %w", dir, err)
	}
	if _, err := os.Stat(dir); err != nil {
		return r, fmt.Errorf("salvage log: %w", err)
	}
	lock, err := lockDir(dir)
	if err != nil {
		return r, err
	}
	defer unlockDir(lock)
	s := salvage{dir: dir, o: opts, dryRun: o.DryRun, r: &r, p: newProgress(progress)}
	if err := s.run(); err != nil {
		if isNoSpace(err) {
			err = fmt.Errorf("%w: %w", ErrFull, err)
		}
		return r, fmt.Errorf("salvage log %s: %w", dir, err)
	}
	return r, nil
}

// salvage is one salvage at work.
type salvage struct {
	dir    string
	o      Options
	dryRun bool
	r      *SalvageReport
	p      *progress
	u      unpacker
	now    time.Time

	files []*salvageFile
	sound map[uint64]*salvageFile // by number
	uuid  [16]byte
	epoch uint64
	low   uint64 // numbers of the first and the last segment
	high  uint64

	ctl      control // of the newest commit that can be read
	st       store
	from     uint64 // number of the segment that it is in
	endKnown bool
	lowest   map[uint32]uint64 // by stream with cursors: up to where all of them have passed

	seqs    []uint64 // newest sequence by stream, where the chain has come to
	gaps    []jump   // what is missing in it
	plans   []segmentPlan
	lastPos uint64
}

func (s *salvage) run() error {
	s.now = time.Now()
	if err := finishSalvage(s.dir, &s.o); err != nil {
		return err
	}
	sound, err := s.look()
	if err != nil || sound {
		return err
	}
	if err := s.identify(); err != nil {
		return err
	}
	if err := s.choose(); err != nil {
		return err
	}
	s.assemble()
	s.conclude()
	if s.dryRun {
		return nil
	}
	return s.rebuild()
}

// look verifies all files and carves those that are not sound. It returns true where there is nothing to do.
func (s *salvage) look() (bool, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return false, err
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".seg") || !e.Type().IsRegular() {
			continue
		}
		fi, err := e.Info()
		if err != nil {
			return false, err
		}
		f := &salvageFile{path: filepath.Join(s.dir, e.Name()), name: e.Name(), size: fi.Size()}
		if n, ok := segmentNumber(e.Name()); ok {
			f.number = n
		}
		s.files = append(s.files, f)
		s.p.total += 2 * f.size
	}
	if len(s.files) == 0 {
		return false, errors.New("no log is here (no .seg files)")
	}
	slices.SortFunc(s.files, func(a, b *salvageFile) int {
		return cmp.Or(cmp.Compare(a.number, b.number), strings.Compare(a.name, b.name))
	})
	c := chain{first: true}
	for _, f := range s.files {
		if f.number == 0 {
			s.problem(f.name + " is not the name of a segment")
			continue
		}
		v, err := verifySegment(f.path, f.number, &c, &s.u, s.p)
		if err != nil {
			return false, err
		}
		f.check, f.sum = v, c.prev
		f.sum.state = nil // of many files it would be much; it is read again where it is needed
		for _, p := range v.Problems {
			s.problem(f.name + ": " + p.String())
		}
		f.sound = len(v.Problems) == v.strange
	}
	if len(s.r.Problems) == 0 { // a damaged segment explains them
		problems, jumps := c.unexplained()
		for _, p := range problems {
			s.problem(p.String())
		}
		s.gaps = jumps
	}
	return len(s.r.Problems) == 0, nil
}

func (s *salvage) problem(text string) { s.r.Problems = append(s.r.Problems, text) }

// identify finds out which file is which segment of this log, and which of them can stay.
func (s *salvage) identify() error {
	uuids := map[[16]byte]int{}
	for _, f := range s.files {
		if f.sound {
			f.headed, f.header = true, f.sum.header
		} else if err := f.carve(&s.u, s.p); err != nil {
			return err
		}
		if f.headed {
			uuids[f.header.uuid]++
		}
	}
	if len(uuids) == 0 {
		// What no meta page leads to is believed where there is nothing better, and the number is that of the name.
		for _, f := range s.files {
			s.believeCarved(f)
			if f.headed {
				uuids[f.header.uuid]++
			}
		}
	}
	best := 0
	for _, f := range slices.Backward(s.files) {
		if n := uuids[f.header.uuid]; f.headed && n > best {
			best, s.uuid, s.epoch = n, f.header.uuid, f.header.epoch
		}
	}
	if best == 0 {
		return fmt.Errorf("%w: no file says to which log it belongs; the log cannot be salvaged", ErrDamaged)
	}
	s.sound = map[uint64]*salvageFile{}
	var headed []uint64
	for _, f := range s.files {
		s.believeCarved(f)
		switch {
		case f.headed && (f.header.uuid != s.uuid || f.header.epoch != s.epoch):
			f.number, f.sound, f.found, f.roots = 0, false, nil, nil // of another log
		case !f.headed:
		case f.sound && f.header.number == f.number && s.sound[f.number] == nil:
			s.sound[f.number] = f
			headed = append(headed, f.number)
		default:
			// A file under a name that is not its own is read like a damaged one, because it has to be replaced too.
			if f.sound {
				f.sound = false
				if err := f.carve(&s.u, s.p); err != nil {
					return err
				}
			}
			f.number = f.header.number
			headed = append(headed, f.number)
		}
	}
	s.low, s.high = slices.Min(headed), slices.Max(headed)
	if s.high-s.low > uint64(len(s.files))*64+1024 {
		return fmt.Errorf("%w: segments %d to %d cannot all belong to this log; move the odd file away", ErrDamaged, s.low, s.high)
	}
	s.number(headed)
	s.link()
	return nil
}

// believeCarved takes the header of a state without meta page, where it says the same number as the name.
func (s *salvage) believeCarved(f *salvageFile) {
	for _, r := range f.roots {
		if !f.headed && r.header.number == f.number {
			f.headed, f.header = true, r.header
		}
	}
}

// number gives the files that do not say what they are the number of their name, where nobody else has it and it is near.
func (s *salvage) number(headed []uint64) {
	taken := map[uint64]bool{}
	for _, n := range headed {
		taken[n] = true
	}
	own := map[*salvageFile]bool{}
	for again := true; again; {
		again = false
		for _, f := range s.files {
			if f.headed || f.number == 0 || taken[f.number] || f.number+1 < s.low || f.number > s.high+1 {
				continue
			}
			taken[f.number], own[f], again = true, true, true
			s.low, s.high = min(s.low, f.number), max(s.high, f.number)
		}
	}
	for _, f := range s.files {
		if f.headed || own[f] {
			continue
		}
		f.number = 0
		// Somebody else has the number of its name. What no meta page leads to may say which one it had.
		i := slices.IndexFunc(f.roots, func(r root) bool { return r.header.uuid == s.uuid })
		if i < 0 {
			continue
		}
		if n := f.roots[i].header.number; !taken[n] && n+1 >= s.low && n <= s.high+1 {
			f.number, f.headed, f.header, taken[n] = n, true, f.roots[i].header, true
			s.low, s.high = min(s.low, n), max(s.high, n)
		}
	}
}

// link takes a sound file for a damaged one where the next one begins elsewhere: it has lost its last commits, or it is an
// old copy.
func (s *salvage) link() {
	var prev *salvageFile
	for n := s.low; n <= s.high; n++ {
		f := s.sound[n]
		if f == nil {
			continue
		}
		if prev != nil {
			end := prev.sum.control.last + 1
			if end > f.header.base || end < f.header.base && prev.number+1 == n {
				prev.sound = false
				delete(s.sound, prev.number)
				_ = prev.carve(&s.u, s.p) // it was read a moment ago; what cannot be read now is lost
			}
		}
		prev = f
	}
}

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
	s.lowest = map[uint32]uint64{}
	for i := range s.ctl.cursors {
		p := &s.ctl.cursors[i]
		n := s.st.cursors[p.id].stream
		if low, ok := s.lowest[n]; !ok || p.seq < low {
			s.lowest[n] = p.seq
		}
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
		// What every cursor has passed was lost for nobody, and what was counted once is not counted again.
		for _, part := range without(jump{g.stream, max(g.first, s.lowest[g.stream]+1), g.last}, name, ranges) {
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
