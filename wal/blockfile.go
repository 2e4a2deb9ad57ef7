package wal

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
)

// maxRawBlock bounds the block of a file; the rest is for an older version's.
const maxRawBlock = maxBody + 4<<10

// blockFile is a segment file as cursors read it. A sealed one is read by its pages and not by bbolt: by file reads,
// without recursion and within bounds. So its pages need no check before, a bad sector is an error and not a fault, and
// the kernel sees that it is read in order. Of the active one bbolt finds the block, and the file only serves to ask for
// it ahead.
type blockFile struct {
	f     *os.File
	ahead readAhead
	pages pageReader
	cache [3 * maxDepth]cachedPage
	buf   []byte
}

// cachedPage is the page that was read last at its depth of the tree: the next block is nearly always found by the same.
type cachedPage struct {
	id uint64
	b  []byte
}

func openBlockFile(path string, sealed bool) (*blockFile, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	b := &blockFile{f: f, ahead: readAhead{f: f}, pages: pageReader{f: f}}
	if sealed {
		if b.pages.meta, err = readMeta(f); err != nil {
			_ = f.Close()
			return nil, err
		}
	}
	return b, nil
}

func (b *blockFile) close() { _ = b.f.Close() } // it was only read

// Where the pages of each tree begin in the cache.
const (
	rootTree  = 0
	queueTree = maxDepth
	tailTree  = 2 * maxDepth
)

// find returns the block that holds pos, or another one or nil where none does. It is the caller's where its codec is none;
// otherwise the next call overwrites it.
func (b *blockFile) find(pos uint64) ([]byte, error) {
	key := binary.BigEndian.AppendUint64([]byte(bucketQueue), pos)
	root := binary.LittleEndian.AppendUint64(make([]byte, 0, bucketHeader), b.pages.meta.root)[:bucketHeader]
	name, value, bucket, err := b.search(rootTree, root, []byte(bucketTail))
	if err == nil && bucket && string(name) == bucketTail {
		var raw []byte
		if _, raw, bucket, err = b.search(tailTree, value, key[1:]); err == nil && !bucket && covers(raw, pos) {
			return bytes.Clone(raw), nil
		}
	}
	if err != nil {
		return nil, err
	}
	name, value, bucket, err = b.search(rootTree, root, key)
	if err != nil || !bucket || !bytes.HasPrefix(name, []byte(bucketQueue)) {
		return nil, err
	}
	_, value, bucket, err = b.search(queueTree, value, key[1:])
	switch {
	case err != nil:
		return nil, err
	case bucket:
		return b.large(value)
	}
	return bytes.Clone(value), nil // of version 1
}

// search returns the last pair of a bucket whose key is not greater than key, nil where there is none. tree is where its
// pages are in the cache.
func (b *blockFile) search(tree int, bucket, key []byte) (k, v []byte, isBucket bool, err error) {
	page, err := b.top(tree, bucket)
	for depth := 1; err == nil && depth < maxDepth; depth++ {
		var i int
		if i, err = searchPage(page, key); err != nil || i < 0 {
			return nil, nil, false, err
		}
		if binary.LittleEndian.Uint16(page[8:]) == leafPage {
			return leafElem(page, i)
		}
		var child uint64
		if _, child, err = branchElem(page, i); err == nil {
			page, err = b.page(tree+depth, child)
		}
	}
	if err == nil {
		err = fmt.Errorf("%w: not a tree of pages", ErrDamaged)
	}
	return nil, nil, false, err
}

// top returns the top page of a bucket, given its value in the tree above.
func (b *blockFile) top(tree int, value []byte) ([]byte, error) {
	if len(value) < bucketHeader {
		return nil, fmt.Errorf("%w: bucket is cut off", ErrDamaged)
	}
	if root := binary.LittleEndian.Uint64(value); root != 0 {
		return b.page(tree, root)
	}
	return b.pages.bucket(value)
}

// page returns a page of a tree. It is good until the next one of its place in the cache.
func (b *blockFile) page(place int, id uint64) ([]byte, error) {
	if c := &b.cache[place]; c.id == id && id != 0 {
		return c.b, nil
	}
	b.ahead.ask(int64(id)*pageSize, pageSize)
	p, err := b.pages.page(id)
	if err != nil {
		return nil, err
	}
	if flags := binary.LittleEndian.Uint16(p[8:]); flags != leafPage && flags != branchPage {
		return nil, fmt.Errorf("%w: page %d is neither branch nor leaf", ErrDamaged, id)
	}
	b.cache[place] = cachedPage{id, p}
	return p, nil
}

// large returns the block that lies alone in a bucket of its own.
func (b *blockFile) large(bucket []byte) ([]byte, error) {
	if len(bucket) < bucketHeader {
		return nil, fmt.Errorf("%w: bucket is cut off", ErrDamaged)
	}
	id := binary.LittleEndian.Uint64(bucket)
	if id == 0 {
		top, err := b.pages.bucket(bucket)
		if err != nil {
			return nil, err
		}
		_, value, _, err := leafElem(top, 0)
		return bytes.Clone(value), err
	}
	at := int64(id) * pageSize
	// The page is read together with what it most likely continues in; how long it is stands in its first pair.
	b.ahead.ask(at, aheadStep)
	if len(b.buf) < pageSize {
		b.buf = make([]byte, pageSize)
	}
	head := b.buf[:pageSize]
	if id < 2 || id >= b.pages.meta.high {
		return nil, fmt.Errorf("%w: page %d is outside the file", ErrDamaged, id)
	}
	if err := readFull(b.f, head, at); err != nil {
		return nil, err
	}
	p := newTreePage(id, head)
	over := uint64(binary.LittleEndian.Uint32(head[12:]))
	if binary.LittleEndian.Uint64(head) != id || p.flags != leafPage || p.count != 1 || id+over >= b.pages.meta.high {
		return nil, fmt.Errorf("%w: page %d does not hold a block", ErrDamaged, id)
	}
	p.size = (over + 1) * pageSize
	key, _, _, err := p.leafElem(0)
	if err != nil {
		return nil, err
	}
	from := pageHeader + elemSize + len(key)
	n := int(p.fill) - from
	if string(key) != blockKey || n < firstHeader || n > maxRawBlock || from+firstHeader > pageSize {
		return nil, fmt.Errorf("%w: page %d does not hold a block", ErrDamaged, id)
	}
	var out []byte
	if head[from+1] == codecRaw {
		out = make([]byte, n)
		copy(out, head[from:])
	} else {
		if len(b.buf) < from+n {
			b.buf = append(make([]byte, 0, from+n), head...)[:from+n]
		}
		out = b.buf[from : from+n]
	}
	if rest := from + n - pageSize; rest > 0 {
		b.ahead.ask(at, int64(from+n))
		if err := readFull(b.f, out[n-rest:], at+pageSize); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// searchPage returns the index of the last pair of a page whose key is not greater than key, -1 where there is none.
func searchPage(page, key []byte) (int, error) {
	if len(page) < pageHeader {
		return -1, fmt.Errorf("%w: page is cut off", ErrDamaged)
	}
	leaf := binary.LittleEndian.Uint16(page[8:]) == leafPage
	lo, hi := 0, int(binary.LittleEndian.Uint16(page[10:]))
	for lo < hi {
		m := (lo + hi) / 2
		var k []byte
		var err error
		if leaf {
			k, _, _, err = leafElem(page, m)
		} else {
			k, _, err = branchElem(page, m)
		}
		if err != nil {
			return -1, err
		}
		if bytes.Compare(k, key) <= 0 {
			lo = m + 1
		} else {
			hi = m
		}
	}
	return lo - 1, nil
}

func branchElem(page []byte, i int) (key []byte, child uint64, err error) {
	p := treePage{b: page}
	return p.branchElem(i)
}
