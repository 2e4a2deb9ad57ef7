package wal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
)

// This file reads a bbolt file by its pages: without a lock, a map or a recursion, so that neither a damaged file nor
// one that is being written can stop or disturb anybody. Start-up and Inspect use it; the log itself reads by bbolt.

const (
	pageSize     = 4096
	pageHeader   = 16
	elemSize     = 16
	bucketHeader = 16
	boltMagic    = 0xED0CDAED
	boltVersion  = 2
	branchPage   = 0x01
	metaPage     = 0x04
	freelistPage = 0x10
	leafPage     = 0x02
	bucketElem   = 0x01
	maxDepth     = 12      // of a tree; 4096 B pages of ≥ 2 keys never come near it
	maxOverflow  = 8 << 20 // bytes of one page with its overflow
	maxPages     = 1 << 20 // of a file; a segment's bound is 544 MiB
)

// pageMeta is what a meta page says. freelist is left out: the log writes none.
type pageMeta struct {
	root uint64 // page of the root bucket
	high uint64 // first page beyond the used ones
	txid uint64
}

// pageReader is one state of a bbolt file.
type pageReader struct {
	f    io.ReaderAt
	meta pageMeta
}

// readMeta returns the newer one of the two meta pages that is whole.
func readMeta(f io.ReaderAt) (pageMeta, error) {
	var best pageMeta
	found := false
	var cause error
	for i := range int64(2) {
		got, err := readMetaAt(f, i)
		switch {
		case errors.Is(err, errNoMeta):
		case err != nil:
			cause = err
		case !found || got.txid > best.txid:
			best, found = got, true
		}
	}
	if !found {
		if cause != nil && !errors.Is(cause, io.EOF) {
			return best, cause
		}
		return best, fmt.Errorf("%w: neither of its two meta pages is whole", ErrDamaged)
	}
	if best.high < 4 || best.high > maxPages || best.root < 2 || best.root >= best.high {
		return best, fmt.Errorf("%w: its meta page points outside the file", ErrDamaged)
	}
	return best, nil
}

var errNoMeta = errors.New("not a whole meta page")

// readMetaAt reads one of the two meta pages.
func readMetaAt(f io.ReaderAt, i int64) (pageMeta, error) {
	var p [pageHeader + 64]byte
	if _, err := f.ReadAt(p[:], i*pageSize); err != nil {
		return pageMeta{}, err
	}
	m := p[pageHeader:]
	sum := fnv.New64a()
	_, _ = sum.Write(m[:56]) // a hash takes everything
	le := binary.LittleEndian
	if le.Uint32(m) != boltMagic || le.Uint32(m[4:]) != boltVersion || le.Uint32(m[8:]) != pageSize || le.Uint64(m[56:]) != sum.Sum64() {
		return pageMeta{}, errNoMeta
	}
	return pageMeta{root: le.Uint64(m[16:]), high: le.Uint64(m[40:]), txid: le.Uint64(m[48:])}, nil
}

// head returns a page without what it continues in.
func (r *pageReader) head(id uint64) ([]byte, error) {
	if id < 2 || id >= r.meta.high {
		return nil, fmt.Errorf("%w: page %d is outside the file", ErrDamaged, id)
	}
	b := make([]byte, pageSize)
	if err := readFull(r.f, b, int64(id)*pageSize); err != nil {
		return nil, err
	}
	if binary.LittleEndian.Uint64(b) != id {
		return nil, fmt.Errorf("%w: page %d bears the number %d", ErrDamaged, id, binary.LittleEndian.Uint64(b))
	}
	return b, nil
}

func (r *pageReader) page(id uint64) ([]byte, error) {
	b, err := r.head(id)
	if err != nil {
		return nil, err
	}
	over := uint64(binary.LittleEndian.Uint32(b[12:]))
	if over == 0 {
		return b, nil
	}
	if id+over >= r.meta.high || over*pageSize > maxOverflow {
		return nil, fmt.Errorf("%w: page %d is longer than the file", ErrDamaged, id)
	}
	b = append(b, make([]byte, over*pageSize)...)
	if err := readFull(r.f, b[pageSize:], int64(id+1)*pageSize); err != nil {
		return nil, err
	}
	return b, nil
}

func readFull(f io.ReaderAt, b []byte, off int64) error {
	_, err := f.ReadAt(b, off)
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: file ends before byte %d", ErrDamaged, off+int64(len(b)))
	}
	return err
}

// each calls fn for the pairs of a tree whose top page is b, in order.
func (r *pageReader) each(b []byte, fn func(key, value []byte, bucket bool) error) error {
	type frame struct {
		page []byte
		next int
	}
	stack := []frame{{page: b}}
	for budget := r.meta.high + 1; len(stack) > 0; {
		top := &stack[len(stack)-1]
		count := int(binary.LittleEndian.Uint16(top.page[10:]))
		flags := binary.LittleEndian.Uint16(top.page[8:])
		if flags == leafPage {
			for i := range count {
				key, value, bucket, err := leafElem(top.page, i)
				if err != nil {
					return err
				}
				if err := fn(key, value, bucket); err != nil {
					return err
				}
			}
		}
		if flags == leafPage || flags == branchPage && top.next == count {
			stack = stack[:len(stack)-1]
			continue
		}
		if flags != branchPage || len(stack) == maxDepth || budget == 0 {
			return fmt.Errorf("%w: not a tree of pages", ErrDamaged)
		}
		budget--
		at := pageHeader + top.next*elemSize
		if at+elemSize > len(top.page) {
			return fmt.Errorf("%w: branch page is cut off", ErrDamaged)
		}
		child, err := r.page(binary.LittleEndian.Uint64(top.page[at+8:]))
		if err != nil {
			return err
		}
		top.next++
		stack = append(stack, frame{page: child})
	}
	return nil
}

func leafElem(page []byte, i int) (key, value []byte, bucket bool, err error) {
	at := pageHeader + i*elemSize
	if at+elemSize > len(page) {
		return nil, nil, false, fmt.Errorf("%w: leaf page is cut off", ErrDamaged)
	}
	le := binary.LittleEndian
	start := uint64(at) + uint64(le.Uint32(page[at+4:]))
	k := start + uint64(le.Uint32(page[at+8:]))
	v := k + uint64(le.Uint32(page[at+12:]))
	if v > uint64(len(page)) {
		return nil, nil, false, fmt.Errorf("%w: pair lies outside its page", ErrDamaged)
	}
	return page[start:k:k], page[k:v:v], le.Uint32(page[at:])&bucketElem != 0, nil
}

// bucket returns the top page of a bucket, given its value in the tree above.
func (r *pageReader) bucket(value []byte) ([]byte, error) {
	if len(value) < bucketHeader {
		return nil, fmt.Errorf("%w: bucket is cut off", ErrDamaged)
	}
	if root := binary.LittleEndian.Uint64(value); root != 0 {
		return r.page(root)
	}
	if len(value) < bucketHeader+pageHeader {
		return nil, fmt.Errorf("%w: bucket is cut off", ErrDamaged)
	}
	return value[bucketHeader:], nil
}

// summary is what a segment file says of itself, without its blocks.
type summary struct {
	header  header
	control control
	bytes   int64             // used of the file
	state   map[string][]byte // bucket s; only where it was asked for
}

// readSummary reads the newest committed state of a segment file, also of one that is being written: where a commit
// came between, it reads again.
func readSummary(path string, withState bool) (summary, error) {
	f, err := os.Open(path)
	if err != nil {
		return summary{}, err
	}
	defer func() { _ = f.Close() }()
	for try := 0; ; try++ {
		before, err := readMeta(f)
		if err != nil {
			return summary{}, fmt.Errorf("%s: %w", path, err)
		}
		s, err := readPages(f, before, withState)
		after, metaErr := readMeta(f)
		// As long as the meta page is the same the pages below it are: a commit uses only pages that were free in
		// the state before it.
		if metaErr == nil && after.txid != before.txid && try < 1000 {
			continue
		}
		if err != nil {
			return s, fmt.Errorf("%s: %w", path, err)
		}
		return s, nil
	}
}

func readPages(f *os.File, m pageMeta, withState bool) (summary, error) {
	r := pageReader{f: f, meta: m}
	s := summary{bytes: int64(m.high) * pageSize}
	if fi, err := f.Stat(); err != nil {
		return s, err
	} else if fi.Size() < s.bytes {
		return s, fmt.Errorf("%w: file has %d bytes and should have %d", ErrDamaged, fi.Size(), s.bytes)
	}
	buckets := map[string][]byte{}
	root, err := r.page(m.root)
	if err != nil {
		return s, err
	}
	err = r.each(root, func(key, value []byte, bucket bool) error {
		if bucket {
			buckets[string(key)] = value
		}
		return nil
	})
	if err != nil {
		return s, err
	}
	pairs := func(name string) (map[string][]byte, error) {
		top, err := r.bucket(buckets[name])
		if err != nil {
			return nil, err
		}
		out := map[string][]byte{}
		err = r.each(top, func(key, value []byte, _ bool) error {
			v, err := unseal(key, value)
			out[string(key)] = v
			return err
		})
		return out, err
	}
	h, err := pairs(bucketHead)
	if err != nil {
		return s, err
	}
	if s.header, err = decodeHeader(h[bucketHead]); err != nil {
		return s, err
	}
	c, err := pairs(bucketControl)
	if err != nil {
		return s, err
	}
	if s.control, err = decodeControl(c[bucketControl], s.header.version); err != nil {
		return s, err
	}
	if withState {
		s.state, err = pairs(bucketState)
	}
	return s, err
}
