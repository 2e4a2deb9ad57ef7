package wal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// VerifyMode says how much of a log Open looks at.
type VerifyMode string

// The modes.
const (
	VerifyNewest VerifyMode = "newest" // the pages of the newest segment, and what each of the others says of itself
	VerifyFull   VerifyMode = "full"   // every page, block and record of every segment
)

// VerifyReport is what Verify found.
type VerifyReport struct {
	Dir      string
	Holder   int // process that has the log open; 0 where none does
	Epoch    uint64
	Bytes    int64 // that were looked at
	Records  uint64
	Segments []SegmentCheck
	Problems []Problem // of the log as a whole
}

// SegmentCheck is what Verify found in one segment.
type SegmentCheck struct {
	SegmentInfo
	Blocks   int
	Records  uint64
	Problems []Problem

	strange int // of the problems: they are not of the segment itself, but of how it follows the one before
}

// Problem is one thing that is wrong.
type Problem struct {
	First, Last uint64 // positions of the records it is about; 0 where it is not about records
	Text        string
}

// String is the problem in a line.
func (p Problem) String() string {
	if p.First == 0 {
		return p.Text
	}
	if p.First == p.Last {
		return fmt.Sprintf("record %d: %s", p.First, p.Text)
	}
	return fmt.Sprintf("records %d to %d: %s", p.First, p.Last, p.Text)
}

// Count returns the number of problems.
func (r *VerifyReport) Count() int {
	n := len(r.Problems)
	for i := range r.Segments {
		n += len(r.Segments[i].Problems)
	}
	return n
}

// Err is nil where nothing is wrong, and ErrDamaged with the first problem otherwise.
func (r *VerifyReport) Err() error {
	for i := range r.Segments {
		if s := &r.Segments[i]; len(s.Problems) > 0 {
			return fmt.Errorf("%w: %s: %s%s", ErrDamaged, s.Name, s.Problems[0], others(r.Count()-1))
		}
	}
	if len(r.Problems) > 0 {
		return fmt.Errorf("%w: %s%s", ErrDamaged, r.Problems[0], others(r.Count()-1))
	}
	return nil
}

func others(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(" (and %d more)", n)
}

// Verify reads all of a log directory and lists what is wrong with it: pages, checksums, records, state, and whether
// segments, positions and sequences follow each other without a gap that is not counted. It changes and locks nothing, and
// may look at a log that a gateway writes to. progress, which may be nil, is told the bytes done and in total. The error
// is the operating system's or ErrVersion; what is wrong with the log is in the report alone (see VerifyReport.Err).
func Verify(dir string, progress func(done, total int64)) (VerifyReport, error) {
	var r VerifyReport
	var err error
	// Segments may be freed and begun between listing and reading; a few tries always find a quiet moment.
	for range 50 {
		r, err = verifyDir(dir, progress)
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, errChanged) {
			break
		}
	}
	if err != nil {
		return r, fmt.Errorf("verify log %s: %w", dir, err)
	}
	return r, nil
}

func verifyDir(dir string, progress func(done, total int64)) (VerifyReport, error) {
	r := VerifyReport{Dir: dir, Holder: holder(dir)}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return r, err
	}
	if err := refusePending(entries); err != nil {
		return r, err
	}
	numbers, err := segmentNumbers(entries)
	switch {
	case err != nil:
		r.Problems = append(r.Problems, Problem{Text: plain(err)})
		return r, nil
	case len(numbers) == 0:
		return r, errors.New("no log is here (no .seg files)")
	}
	p := newProgress(progress)
	for _, n := range numbers {
		if fi, err := os.Stat(filepath.Join(dir, segmentName(n))); err == nil {
			p.total += fi.Size()
		}
	}
	var u unpacker
	c := chain{first: true}
	for _, n := range numbers {
		s, err := verifySegment(filepath.Join(dir, segmentName(n)), n, &c, &u, p)
		if err != nil {
			return r, err
		}
		r.Segments = append(r.Segments, s)
		r.Bytes, r.Records = r.Bytes+s.Bytes, r.Records+s.Records
	}
	if _, err := os.Stat(filepath.Join(dir, segmentName(numbers[len(numbers)-1]+1))); err == nil {
		return r, errChanged
	}
	r.Epoch = c.prev.header.epoch
	problems, _ := c.unexplained()
	r.Problems = append(r.Problems, problems...)
	return r, nil
}

// plain is the text of an error without the words that all of them begin with.
func plain(err error) string {
	text := err.Error()
	for {
		rest, ok := strings.CutPrefix(text, ErrDamaged.Error()+": ")
		if !ok {
			return text
		}
		text = rest
	}
}

// plainOf is the same without the path before it.
func plainOf(err error, path string) string {
	return plain(errors.New(strings.TrimPrefix(err.Error(), path+": ")))
}

// segmentVerifier looks at one segment.
type segmentVerifier struct {
	path    string
	number  uint64
	c       *chain
	u       *unpacker
	p       *progress
	out     SegmentCheck
	sum     summary
	next    uint64 // position that has to come; 0 until the header was read
	found   []Problem
	follows error // what is wrong with how it follows the segment before
	failed  error // what is no damage
	again   bool  // it is not the first try
}

func (v *segmentVerifier) problem(first, last uint64, err error) {
	v.found = append(v.found, Problem{First: first, Last: last, Text: plain(err)})
}

// verifySegment reads all of a segment. One that is being written is read while the commits come: what was looked at once
// stays where it is, so the next try goes on from there.
func verifySegment(path string, number uint64, c *chain, u *unpacker, p *progress) (SegmentCheck, error) {
	v := segmentVerifier{path: path, number: number, c: c, u: u, p: p}
	v.out.Name = segmentName(number)
	f, err := os.Open(path)
	if err != nil {
		return v.out, err
	}
	defer func() { _ = f.Close() }()
	fi, err := f.Stat()
	if err != nil {
		return v.out, err
	}
	base := p.done
	for try := 0; ; try++ {
		before, err := readMeta(f)
		v.found, v.again = nil, try > 0
		p.to(base)
		if err != nil {
			v.problem(0, 0, err)
		} else {
			v.once(f, before)
		}
		if v.failed != nil {
			return v.out, v.failed
		}
		after, err := readMeta(f)
		if len(v.found) == 0 || err != nil || after.txid == before.txid || try == 1000 {
			break
		}
	}
	p.to(base + fi.Size())
	if len(v.found) > 0 && !isStill(path, f) {
		return v.out, errChanged // it was freed meanwhile, and may have become another segment
	}
	if v.follows != nil {
		v.problem(0, 0, v.follows)
		v.out.strange = 1
	}
	v.out.Problems = v.found
	c.first, c.prev, c.broken = false, v.sum, len(v.found) > 0
	return v.out, nil
}

// isStill tells whether an open file still bears its name.
func isStill(path string, f *os.File) bool {
	now, err := os.Stat(path)
	if err != nil {
		return false
	}
	then, err := f.Stat()
	return err == nil && os.SameFile(now, then)
}

// once looks at the segment as one commit has left it.
func (v *segmentVerifier) once(f *os.File, m pageMeta) {
	s, err := readPages(f, m, true)
	switch {
	case errors.Is(err, ErrVersion):
		v.failed = fmt.Errorf("%s: %w", v.path, err)
		return
	case err != nil:
		v.problem(0, 0, err)
		if s.header.base == 0 {
			return // without a header nothing can be said of what is in it
		}
	case s.header.hollow: // the state is the newest segment's, and this is never that
	default:
		if _, err := loadStore(&s); err != nil {
			v.problem(0, 0, err)
		}
	}
	v.sum = s
	v.out.SegmentInfo = SegmentInfo{
		Name: v.out.Name, First: s.header.base, Last: s.control.last, Bytes: s.bytes, Created: time.Unix(0, s.header.created),
	}
	if s.control.newest != 0 {
		v.out.Newest = time.Unix(0, s.control.newest)
	}
	if v.next == 0 {
		v.begin()
	}
	whole := len(v.found) == 0
	if err := checkFile(v.path); err != nil {
		v.problem(0, 0, errors.New(plainOf(err, v.path)))
	}
	v.readBlocks(f, m)
	if whole {
		v.end()
	}
}

// begin compares what the header says with where the segment before has ended.
func (v *segmentVerifier) begin() {
	h := &v.sum.header
	v.next = h.base
	c := v.c
	if !c.broken {
		if err := follows(&c.prev, &v.sum, c.first, v.number); err != nil {
			v.follows = err
			c.broken = true
		}
	}
	if c.first || c.broken {
		c.seqs, c.filled = append([]uint64(nil), h.first...), 0
		return
	}
	for stream, seq := range h.first {
		c.move(uint32(stream), seq, seq)
	}
}

// readBlocks goes through the blocks from the next position on.
func (v *segmentVerifier) readBlocks(f *os.File, m pageMeta) {
	r := pageReader{f: f, meta: m}
	torn := func(page uint64, cause error) error {
		v.problem(0, 0, fmt.Errorf("page %d: %s", page, plain(cause)))
		return nil
	}
	tops, _ := r.topBuckets(torn) // torn pages are noted
	base := v.p.done
	read := int64(0)
	_ = r.blocks(tops, v.next, func(b foundBlock) error {
		read += int64(len(b.raw))
		v.p.to(base + min(read, int64(m.high)*pageSize))
		v.block(b)
		return nil
	}, torn)
}

// block looks at one block and its records.
func (v *segmentVerifier) block(f foundBlock) {
	b, err := decodeBlock(f.raw, v.u)
	switch {
	case f.key < v.next && (err != nil || b.last < v.next):
		return // it was looked at before
	case err == nil && b.first != f.key:
		err = fmt.Errorf("its block says that it begins at %d", b.first)
	}
	if err != nil {
		v.problem(f.key, f.key, err)
		return
	}
	from := v.next
	switch {
	case b.first > from:
		v.problem(from, b.first-1, errors.New("are missing"))
		v.c.broken = true
		from = b.first
	case b.first < from && !v.again:
		v.problem(b.first, from-1, errors.New("are there twice"))
		v.c.broken = true
	}
	v.next = b.last + 1
	v.out.Blocks++
	if isFiller(b) {
		v.c.filled += b.last - from + 1
		return
	}
	v.out.Records += b.last - from + 1
	if err := eachRecord(b, func(stream uint32, r Record) error {
		// Small blocks that were looked at may have become one with others since.
		if r.pos >= from {
			v.c.move(stream, r.Seq-1, r.Seq)
		}
		return nil
	}); err != nil {
		v.problem(b.first, b.last, err)
	}
	v.c.broken = false
}

// end compares where the blocks have ended with what the control record says.
func (v *segmentVerifier) end() {
	c := &v.sum.control
	if v.sum.header.hollow {
		// Its records are gone because nobody needed them: the streams are where it says.
		if v.next != v.sum.header.base {
			v.problem(v.sum.header.base, v.next-1, errors.New("are in a segment that says it has none"))
		}
		v.next = c.last + 1
		for stream, t := range c.tails {
			v.c.move(uint32(stream), v.c.seq(uint32(stream)), t.seq)
		}
		return
	}
	if v.next != c.last+1 {
		if v.next <= c.last {
			v.problem(v.next, c.last, errors.New("are missing"))
		} else {
			v.problem(c.last+1, v.next-1, errors.New("are beyond the end of the log"))
		}
		return
	}
	for stream, t := range c.tails {
		v.c.move(uint32(stream), t.seq, t.seq)
	}
}

// chain is where one segment has left off, for the next one.
type chain struct {
	first  bool
	prev   summary
	seqs   []uint64 // newest sequence by stream
	filled uint64   // lost positions that fillers stand for and that no jump of a sequence has used yet
	jumps  []jump   // that no filler explains
	broken bool     // something before is wrong, so what comes next need not follow
}

// jump is a gap in the sequences of a stream.
type jump struct {
	stream      uint32
	first, last uint64
}

// seq returns the newest sequence of a stream.
func (c *chain) seq(stream uint32) uint64 {
	if int(stream) < len(c.seqs) {
		return c.seqs[stream]
	}
	return 0
}

// move brings a stream from before to seq, and notes what is missing up to before.
func (c *chain) move(stream uint32, before, seq uint64) {
	for int(stream) >= len(c.seqs) {
		c.seqs = append(c.seqs, 0)
	}
	have := c.seqs[stream]
	switch {
	case before == have || c.broken && before > have:
	case before > have && before-have <= c.filled:
		c.filled -= before - have
	default:
		c.jumps = append(c.jumps, jump{stream: stream, first: have + 1, last: before})
	}
	c.seqs[stream] = seq
}

// unexplained returns the jumps that neither fillers nor counted ranges explain, as of the newest segment.
func (c *chain) unexplained() (out []Problem, gaps []jump) {
	st, err := loadStore(&c.prev)
	if err != nil || len(c.jumps) == 0 {
		return nil, nil
	}
	ranges := dropRanges(&st)
	for _, j := range c.jumps {
		if int(j.stream) >= len(st.names) {
			continue // the newest control record knows of no such stream; that is a problem of its own
		}
		name := "stream " + st.names[j.stream]
		if j.last+1 <= j.first {
			out = append(out, Problem{Text: fmt.Sprintf("%s goes back from sequence %d to %d", name, j.first-1, j.last+1)})
			continue
		}
		left := j.last - j.first + 1
		for _, r := range ranges {
			if r.Stream == st.names[j.stream] && r.First <= j.last && r.Last >= j.first {
				left -= min(r.Last, j.last) - max(r.First, j.first) + 1
			}
		}
		if left <= c.filled {
			c.filled -= left
		} else if len(ranges) < maxRanges { // the oldest ranges may be forgotten
			out = append(out, Problem{Text: fmt.Sprintf("%s has no records %d to %d, and nothing counts them as lost", name, j.first, j.last)})
			gaps = append(gaps, j)
		}
	}
	return out, gaps
}

// progress counts bytes for somebody who waits.
type progress struct {
	tell        func(done, total int64)
	done, total int64
	told        int64
}

func newProgress(tell func(done, total int64)) *progress { return &progress{tell: tell} }

// to says that so many bytes are done. It tells a step of a percent at most.
func (p *progress) to(done int64) {
	p.done = done
	if p.tell != nil && (done-p.told >= max(p.total/100, pageSize) || done >= p.total || done < p.told) {
		p.told = done
		p.tell(min(done, p.total), p.total)
	}
}
