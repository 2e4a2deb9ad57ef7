package wal

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc64"
	"io"
	"os"
	"slices"
)

// This file finds what is left in a damaged segment file: first by its tree, past what is torn, then byte by byte. Large
// and small blocks lie in one piece in the file, whatever the pages around them say, and their checksum tells whether they
// are whole.

// trust is how sure it is that a block was committed under its number. A file also holds what no commit knows any more:
// older copies of a leaf, which are the same, and pages of a commit that a cut has ended before it counted, which are not.
type trust uint8

const (
	lone     trust = iota // lies somewhere in the file
	followed              // lies in a leaf with a block of a later commit behind it
	named                 // lies in a page that the tree names
	reached               // the tree leads to it
)

// candidate is a whole block in a damaged file.
type candidate struct {
	file        *salvageFile
	off         int64
	size        int
	first, last uint64
	sum         uint64 // over all of it
	trust       trust
	filler      bool
	newest      int64 // largest time of its records
	spans       []seqSpan
}

// seqSpan is what a block holds of one stream.
type seqSpan struct {
	stream      uint32
	first, last uint64
	bytes       uint64
}

// root is a state of a file, by the page that leads to all of it.
type root struct {
	meta    pageMeta
	header  header
	control control
	carved  bool // no meta page leads to it
}

// salvageFile is a file of the damaged log.
type salvageFile struct {
	path   string
	name   string
	number uint64 // of the segment; 0 where nobody knows
	size   int64
	check  SegmentCheck
	sum    summary // where sound
	sound  bool
	headed bool
	header header
	metas  int    // that are whole
	roots  []root // newest first; those of a damaged file are found by carve
	found  []candidate
}

// metas returns the meta pages that are whole, newest first.
func metas(f io.ReaderAt) []pageMeta {
	var out []pageMeta
	for i := range int64(2) {
		if m, err := readMetaAt(f, i); err == nil {
			out = append(out, m)
		}
	}
	slices.SortFunc(out, func(a, b pageMeta) int { return cmp.Compare(b.txid, a.txid) })
	return out
}

const (
	maxCarved  = 8       // states without a meta page that are kept of a file
	carveChunk = 1 << 20 // bytes that are searched at a time
)

// carve fills in what the file still holds.
func (s *salvageFile) carve(u *unpacker, p *progress) error {
	f, err := os.Open(s.path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	base := p.done
	c := carver{s: s, f: f, u: u, torn: map[uint64]bool{}, known: map[candidateID]int{}}
	all := metas(f)
	s.metas = len(all)
	for _, m := range all {
		m.high = min(m.high, uint64(s.size/pageSize)) // it may have been cut
		c.tree(m)
	}
	err = c.search(func(done int64) { p.to(base + done) })
	p.to(base + s.size)
	s.sortRoots()
	for _, r := range s.roots {
		if !s.headed && !r.carved {
			s.headed, s.header = true, r.header
		}
	}
	return err
}

// candidateID tells blocks from each other.
type candidateID struct{ first, last, sum uint64 }

type carver struct {
	s     *salvageFile
	f     *os.File
	u     *unpacker
	torn  map[uint64]bool
	known map[candidateID]int
}

// tree takes what a meta page leads to.
func (c *carver) tree(m pageMeta) {
	r := pageReader{f: c.f, meta: m}
	torn := func(page uint64, _ error) error { c.torn[page] = true; return nil }
	tops, _ := r.topBuckets(torn) // the visitor returns no errors, here and below
	if h, ctl, err := headAndControl(&r, tops); err == nil {
		c.s.roots = append(c.s.roots, root{meta: m, header: h, control: ctl})
	}
	_ = r.blocks(tops, 0, func(b foundBlock) error {
		c.take(b.raw, b.off, reached)
		return nil
	}, torn)
}

// headAndControl decodes the header and the control record of a state.
func headAndControl(r *pageReader, tops map[string]bucketAt) (h header, ctl control, err error) {
	single := func(name string) (value []byte, err error) {
		b, ok := tops[name]
		if !ok {
			return nil, fmt.Errorf("%w: bucket %s is missing", ErrDamaged, name)
		}
		err = r.inBucket(b.value, b.off, r.meta.root, nil, visitor{
			pair: func(key, v []byte, _ int64, _ bool) error {
				if string(key) != name {
					return nil
				}
				v, err := unseal(key, v)
				value = bytes.Clone(v)
				return err
			},
			torn: func(_ uint64, cause error) error { return cause },
		})
		return value, err
	}
	raw, err := single(bucketHead)
	if err != nil {
		return h, ctl, err
	}
	if h, err = decodeHeader(raw); err != nil {
		return h, ctl, err
	}
	if raw, err = single(bucketControl); err != nil {
		return h, ctl, err
	}
	ctl, err = decodeControl(raw, h.version)
	return h, ctl, err
}

// take notes a block where raw is one, and returns whether it is.
func (c *carver) take(raw []byte, off int64, t trust) bool {
	b, err := decodeBlock(raw, c.u)
	if err != nil || b.first == 0 {
		return false
	}
	id := candidateID{b.first, b.last, crc64.Checksum(raw, sumTable)}
	if i, ok := c.known[id]; ok {
		c.s.found[i].trust = max(c.s.found[i].trust, t)
		return true
	}
	n := candidate{
		file: c.s, off: off, size: len(raw), first: b.first, last: b.last, sum: id.sum, trust: t, filler: isFiller(b), newest: b.time,
	}
	if err := eachRecord(b, func(stream uint32, r Record) error {
		n.newest = max(n.newest, nanos(r.Time))
		i := slices.IndexFunc(n.spans, func(s seqSpan) bool { return s.stream == stream })
		if i < 0 {
			i = len(n.spans)
			n.spans = append(n.spans, seqSpan{stream: stream, first: r.Seq})
		}
		n.spans[i].last = r.Seq
		n.spans[i].bytes += uint64(len(r.Data))
		return nil
	}); err != nil {
		return false
	}
	c.known[id] = len(c.s.found)
	c.s.found = append(c.s.found, n)
	return true
}

// search goes through all bytes of the file.
func (c *carver) search(tell func(done int64)) error {
	buf := make([]byte, carveChunk+blockHeader)
	for at := int64(0); at < c.s.size; at += carveChunk {
		n, err := c.f.ReadAt(buf, at)
		if err != nil && !errors.Is(err, io.EOF) {
			n = c.readAround(buf, at)
		}
		for page := 0; page < min(n, carveChunk); page += pageSize {
			c.carveRoot(buf[page:min(page+pageSize, n)], at+int64(page))
		}
		for i := range min(n, carveChunk) {
			if b := buf[i]; (b == blockMagic || b == firstMagic) && i+firstHeader <= n {
				c.probe(buf[i:n], at+int64(i))
			}
		}
		tell(at)
	}
	return nil
}

// readAround reads page by page where a sector of the medium gives an error; what cannot be read is zero.
func (c *carver) readAround(buf []byte, at int64) int {
	clear(buf)
	for i := 0; i < len(buf); i += pageSize {
		_, _ = c.f.ReadAt(buf[i:min(i+pageSize, len(buf))], at+int64(i)) // zero is as good as damaged
	}
	return int(min(int64(len(buf)), c.s.size-at))
}

// probe looks whether a block begins at head.
func (c *carver) probe(head []byte, off int64) {
	le := binary.LittleEndian
	header, size, n := blockHeader, le.Uint32(head[24:]), le.Uint32(head[4:])
	if head[0] == firstMagic {
		header = firstHeader
	}
	if head[1] > codecZstd || head[2] != 0 || head[3] != 0 || n == 0 || n > maxBody || size > maxRawBlock || le.Uint64(head[8:]) == 0 ||
		off+int64(header)+int64(size) > c.s.size {
		return
	}
	raw := make([]byte, header+int(size))
	if copy(raw, head) < len(raw) {
		if _, err := c.f.ReadAt(raw, off); err != nil {
			return
		}
	}
	t := lone
	if c.torn[uint64(off)/pageSize] {
		t = named
	} else if c.isFollowed(off) {
		t = followed
	}
	c.take(raw, off, t)
}

// isFollowed tells whether the block at off is a value in a leaf, with a block behind it that cannot be of the same commit.
func (c *carver) isFollowed(off int64) bool {
	page := make([]byte, pageSize)
	if _, err := c.f.ReadAt(page, off/pageSize*pageSize); err != nil {
		return false
	}
	p := newTreePage(uint64(off)/pageSize, page)
	p.size = pageSize
	if p.flags != leafPage || binary.LittleEndian.Uint64(page) != p.id {
		return false
	}
	for i := range p.count {
		_, value, _, err := p.leafElem(i)
		if err != nil {
			return false
		}
		if off%pageSize != int64(p.fill)-int64(len(value)) {
			continue
		}
		// A commit cuts its records into blocks that are as full as can be, so a small one is the last one of its commit.
		b, err := decodeBlock(value, c.u)
		return err == nil && i+1 < p.count && len(b.body) < maxBlock/2
	}
	return false
}

// carveRoot takes a page that holds header and control of a segment.
func (c *carver) carveRoot(page []byte, off int64) {
	id := uint64(off) / pageSize
	le := binary.LittleEndian
	if len(page) < pageSize || le.Uint16(page[8:]) != leafPage || le.Uint64(page) != id || id < 2 {
		return
	}
	m := pageMeta{root: id, high: uint64(c.s.size) / pageSize}
	r := pageReader{f: c.f, meta: m}
	p := newTreePage(id, page)
	tops := map[string]bucketAt{}
	err := leafPairs(p, off, visitor{
		pair: func(key, value []byte, off int64, bucket bool) error {
			if bucket {
				tops[string(key)] = bucketAt{value, off}
			}
			return nil
		},
		torn: func(uint64, error) error { return nil },
	})
	if _, ok := tops[bucketControl]; err != nil || !ok {
		return
	}
	h, ctl, err := headAndControl(&r, tops)
	if err != nil {
		return
	}
	c.s.roots = append(c.s.roots, root{meta: m, header: h, control: ctl, carved: true})
	if len(c.s.roots) > 4*maxCarved {
		c.s.sortRoots()
	}
}

// sortRoots puts the newest state first, and forgets old ones. What a meta page leads to is newer than what none does: the
// other may never have been committed.
func (s *salvageFile) sortRoots() {
	slices.SortStableFunc(s.roots, func(a, b root) int {
		rank := func(r *root) int {
			if r.carved {
				return 0
			}
			return 1
		}
		return cmp.Or(cmp.Compare(rank(&b), rank(&a)), cmp.Compare(b.meta.txid, a.meta.txid),
			cmp.Compare(b.header.number, a.header.number), cmp.Compare(b.control.last, a.control.last),
			cmp.Compare(b.control.written, a.control.written))
	})
	s.roots = s.roots[:min(len(s.roots), maxCarved)]
}

// looseState returns the pairs of the state that are whole, and whether all are.
func (s *salvageFile) looseState(r root) (pairs map[string][]byte, whole bool, err error) {
	f, err := os.Open(s.path)
	if err != nil {
		return nil, false, err
	}
	defer func() { _ = f.Close() }()
	pr := pageReader{f: f, meta: r.meta}
	pr.meta.high = min(pr.meta.high, uint64(s.size/pageSize))
	whole = true
	torn := func(uint64, error) error { whole = false; return nil }
	tops, _ := pr.topBuckets(torn)
	pairs = map[string][]byte{}
	b, ok := tops[bucketState]
	if !ok {
		return pairs, false, nil
	}
	_ = pr.inBucket(b.value, b.off, r.meta.root, nil, visitor{
		torn: torn,
		pair: func(key, value []byte, _ int64, _ bool) error {
			if v, err := unseal(key, value); err == nil {
				pairs[string(key)] = bytes.Clone(v)
			} else {
				whole = false
			}
			return nil
		},
	})
	return pairs, whole, nil
}
