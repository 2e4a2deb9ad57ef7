package wal

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
)

// maxNest is how deep buckets lie in each other: the root, h c q s, and a large block of its own.
const maxNest = 3

// checkFile tells whether bbolt can be let loose on a file. bbolt believes what its pages say of each other: on a damaged
// one it panics in a goroutine of its own, or follows a cycle until the stack ends, and neither can be recovered from.
// So each page that can be reached is looked at once before, by reading, without recursion, and within bounds. What the
// values hold is not looked at: they have checksums. The caller knows that nobody writes to the file.
func checkFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	m, err := readMeta(f)
	if err == nil && fi.Size() < int64(m.high)*pageSize {
		err = fmt.Errorf("%w: file has %d bytes and should have %d", ErrDamaged, fi.Size(), int64(m.high)*pageSize)
	}
	if err == nil {
		c := treeCheck{r: pageReader{f: &readAhead{f: f}, meta: m}, seen: make([]bool, m.high)}
		err = c.run()
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// treeCheck goes through all trees of a file.
type treeCheck struct {
	r     pageReader
	seen  []bool
	roots []treeRoot // of buckets that are still to be gone through
}

type treeRoot struct {
	page uint64
	nest int
}

// level is a branch page on the way from the root of a tree down to where the check is.
type level struct {
	page      treePage
	next      int
	low, high []byte // keys below it are at least low and less than high; nil means no bound
}

func (c *treeCheck) run() error {
	c.roots = append(c.roots, treeRoot{page: c.r.meta.root})
	// The first one first: that is how they lie in the file, so it is read from its beginning to its end.
	for i := 0; i < len(c.roots); i++ {
		root := c.roots[i]
		if root.nest > maxNest {
			return fmt.Errorf("%w: buckets lie %d deep in each other", ErrDamaged, root.nest)
		}
		if err := c.tree(root); err != nil {
			return err
		}
	}
	return nil
}

// tree goes through the tree of one bucket and notes the buckets in it.
func (c *treeCheck) tree(root treeRoot) error {
	var stack []level
	id, low, high := root.page, []byte(nil), []byte(nil)
	for {
		p, err := c.page(id)
		if err != nil {
			return err
		}
		switch {
		case p.flags != branchPage:
			if err := c.leaf(p, low, high, root.nest); err != nil {
				return err
			}
		case len(stack) == maxDepth || p.count == 0:
			return fmt.Errorf("%w: page %d is not part of a tree", ErrDamaged, id)
		default:
			if err := p.checkBranch(); err != nil {
				return err
			}
			stack = append(stack, level{page: p, low: low, high: high})
		}
		for len(stack) > 0 && stack[len(stack)-1].next == stack[len(stack)-1].page.count {
			stack = stack[:len(stack)-1]
		}
		if len(stack) == 0 {
			return nil
		}
		if id, low, high, err = stack[len(stack)-1].descend(); err != nil {
			return err
		}
	}
}

// descend returns the next page below l, and the bounds of its keys.
func (l *level) descend() (id uint64, low, high []byte, err error) {
	low, id, err = l.page.branchElem(l.next)
	if err != nil {
		return 0, nil, nil, err
	}
	high = l.high
	if l.next+1 < l.page.count {
		if high, _, err = l.page.branchElem(l.next + 1); err != nil {
			return 0, nil, nil, err
		}
	}
	outside := l.next == 0 && bytes.Compare(low, l.low) < 0
	if len(low) == 0 || outside || high != nil && bytes.Compare(low, high) >= 0 {
		return 0, nil, nil, fmt.Errorf("%w: keys of page %d are out of order", ErrDamaged, l.page.id)
	}
	l.next++
	return id, low, high, nil
}

// page reads a page and takes it, and what it continues in, as seen.
func (c *treeCheck) page(id uint64) (treePage, error) {
	b, err := c.r.head(id)
	if err != nil {
		return treePage{}, err
	}
	p := newTreePage(id, b)
	if p.flags != branchPage && p.flags != leafPage {
		return p, fmt.Errorf("%w: page %d is neither branch nor leaf", ErrDamaged, id)
	}
	over := uint64(binary.LittleEndian.Uint32(b[12:]))
	if id+over >= c.r.meta.high || over*pageSize > maxOverflow {
		return p, fmt.Errorf("%w: page %d is longer than the file", ErrDamaged, id)
	}
	for i := id; i <= id+over; i++ {
		if c.seen[i] {
			return p, fmt.Errorf("%w: page %d belongs to two places", ErrDamaged, i)
		}
		c.seen[i] = true
	}
	// A page with one pair is a large block: its key is at the front, and what its value holds has a checksum.
	if over > 0 && (p.count != 1 || p.flags != leafPage) {
		if b, err = c.r.page(id); err != nil {
			return p, err
		}
		p = newTreePage(id, b)
	}
	p.size = (over + 1) * pageSize
	return p, nil
}

// leaf checks the pairs of a leaf page.
func (c *treeCheck) leaf(p treePage, low, high []byte, nest int) error {
	prev := low
	for i := range p.count {
		key, value, flags, err := p.leafElem(i)
		if err != nil {
			return err
		}
		order := bytes.Compare(prev, key)
		if len(key) == 0 || order > 0 || order == 0 && i > 0 || high != nil && bytes.Compare(key, high) >= 0 {
			return fmt.Errorf("%w: keys of page %d are out of order", ErrDamaged, p.id)
		}
		prev = key
		switch {
		case flags == 0:
			continue
		case flags != bucketElem || nest < 0 || len(value) < bucketHeader:
			return fmt.Errorf("%w: page %d holds something unknown", ErrDamaged, p.id)
		}
		if root := binary.LittleEndian.Uint64(value); root != 0 {
			c.roots = append(c.roots, treeRoot{root, nest + 1})
			continue
		}
		in := value[bucketHeader:]
		if len(in) < pageHeader || binary.LittleEndian.Uint16(in[8:]) != leafPage {
			return fmt.Errorf("%w: page %d holds a bucket that is cut off", ErrDamaged, p.id)
		}
		// There is no bucket in a bucket that lies in its parent's page.
		if err := c.leaf(newTreePage(p.id, in), nil, nil, -1); err != nil {
			return err
		}
	}
	return nil
}

// treePage is a page, or a bucket that lies in the page of its parent. b may be only the front of it.
type treePage struct {
	id    uint64
	b     []byte
	size  uint64
	flags uint16
	count int
	fill  uint64 // where the next pair begins: bbolt leaves no room between them, so none can be missing
}

func newTreePage(id uint64, b []byte) treePage {
	le := binary.LittleEndian
	count := int(le.Uint16(b[10:]))
	return treePage{
		id: id, b: b, size: uint64(len(b)), flags: le.Uint16(b[8:]), count: count, fill: uint64(pageHeader + count*elemSize),
	}
}

// checkBranch tells whether the keys of a branch page follow each other without room between them.
func (p *treePage) checkBranch() error {
	next := p.fill
	for i := range p.count {
		key, _, err := p.branchElem(i)
		if err != nil {
			return err
		}
		at := pageHeader + i*elemSize
		if uint64(at)+uint64(binary.LittleEndian.Uint32(p.b[at:])) != next {
			return fmt.Errorf("%w: the keys of page %d do not follow each other", ErrDamaged, p.id)
		}
		next += uint64(len(key))
	}
	return nil
}

func (p *treePage) branchElem(i int) (key []byte, child uint64, err error) {
	at := pageHeader + i*elemSize
	if at+elemSize > len(p.b) {
		return nil, 0, fmt.Errorf("%w: page %d is cut off", ErrDamaged, p.id)
	}
	le := binary.LittleEndian
	start := uint64(at) + uint64(le.Uint32(p.b[at:]))
	end := start + uint64(le.Uint32(p.b[at+4:]))
	if end > uint64(len(p.b)) {
		return nil, 0, fmt.Errorf("%w: a key lies outside page %d", ErrDamaged, p.id)
	}
	return p.b[start:end:end], le.Uint64(p.b[at+8:]), nil
}

// leafElem returns the next pair. The value is nil where it was not read, which is so for a large block only.
func (p *treePage) leafElem(i int) (key, value []byte, flags uint32, err error) {
	at := pageHeader + i*elemSize
	if at+elemSize > len(p.b) {
		return nil, nil, 0, fmt.Errorf("%w: page %d is cut off", ErrDamaged, p.id)
	}
	le := binary.LittleEndian
	flags = le.Uint32(p.b[at:])
	start := uint64(at) + uint64(le.Uint32(p.b[at+4:]))
	mid := start + uint64(le.Uint32(p.b[at+8:]))
	end := mid + uint64(le.Uint32(p.b[at+12:]))
	if start != p.fill || mid > uint64(len(p.b)) || end > p.size {
		return nil, nil, 0, fmt.Errorf("%w: the pairs of page %d do not follow each other", ErrDamaged, p.id)
	}
	p.fill = end
	if end <= uint64(len(p.b)) {
		value = p.b[mid:end:end]
	}
	return p.b[start:mid:mid], value, flags, nil
}
