package wal

import (
	"cmp"
	"errors"
	"fmt"
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
	lowest   map[uint32]uint64    // by stream with cursors: up to where all of them have passed
	waiting  map[uint32][]stretch // by stream with cursors: what one of them has not passed

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
