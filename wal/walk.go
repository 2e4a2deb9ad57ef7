package wal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// This file goes through the trees of a segment by its pages and past what is damaged, for those who want to know what
// is left: Verify, Salvage and Export. It neither locks nor maps nor recurses.

// visitor is called with what a walk meets.
type visitor struct {
	// pair gets a pair of a leaf and where its value lies in the file.
	pair func(key, value []byte, off int64, bucket bool) error
	// torn gets a page that the tree names and that cannot be read.
	torn func(page uint64, cause error) error
}

// walk goes through the tree below a page, in order, from the key from on (nil: from the first). A page that is met
// twice is torn: it belongs to another place. An error of the visitor's ends the walk.
func (r *pageReader) walk(root uint64, from []byte, v visitor) error {
	type frame struct {
		page treePage
		next int
	}
	var stack []frame
	seen := map[uint64]bool{}
	id := root
	for {
		p, err := r.treePage(id, seen)
		switch {
		case err != nil:
			if err := v.torn(id, err); err != nil {
				return err
			}
		case p.flags == leafPage:
			if err := leafPairs(p, int64(id)*pageSize, v); err != nil {
				return err
			}
		case len(stack) == maxDepth:
			return v.torn(id, fmt.Errorf("%w: tree of more than %d levels", ErrDamaged, maxDepth))
		default:
			stack = append(stack, frame{page: p})
		}
		for {
			if len(stack) == 0 {
				return nil
			}
			top := &stack[len(stack)-1]
			if top.next >= top.page.count {
				stack = stack[:len(stack)-1]
				continue
			}
			child, last, err := childFrom(&top.page, top.next, from)
			top.next = last
			if err == nil {
				id = child
				break
			}
			if err := v.torn(top.page.id, err); err != nil {
				return err
			}
			stack = stack[:len(stack)-1]
		}
	}
}

// childFrom returns the first child of p, from the next one on, that may hold keys of at least from, and the index after it.
func childFrom(p *treePage, next int, from []byte) (child uint64, after int, err error) {
	for {
		_, child, err := p.branchElem(next)
		if err != nil {
			return 0, p.count, err
		}
		next++
		if from == nil || next >= p.count {
			return child, next, nil
		}
		key, _, err := p.branchElem(next)
		if err != nil || string(key) > string(from) {
			return child, next, nil // a bad key is found when its turn comes
		}
	}
}

// treePage reads a page of a tree with what it continues in.
func (r *pageReader) treePage(id uint64, seen map[uint64]bool) (treePage, error) {
	if seen[id] {
		return treePage{}, fmt.Errorf("%w: page %d belongs to two places", ErrDamaged, id)
	}
	seen[id] = true
	b, err := r.page(id)
	if err != nil {
		return treePage{}, err
	}
	p := newTreePage(id, b)
	if p.flags != leafPage && p.flags != branchPage {
		return p, fmt.Errorf("%w: page %d is neither branch nor leaf", ErrDamaged, id)
	}
	return p, nil
}

// leafPairs visits the pairs of a leaf whose first byte lies at base in the file. What comes after a bad pair in the page
// is not believed.
func leafPairs(p treePage, base int64, v visitor) error {
	for i := range p.count {
		key, value, flags, err := p.leafElem(i)
		if err != nil {
			return v.torn(p.id, err)
		}
		off := base + int64(p.fill) - int64(len(value))
		if err := v.pair(key, value, off, flags&bucketElem != 0); err != nil {
			return err
		}
	}
	return nil
}

// inBucket goes through a bucket, given its value in the tree above and where that lies.
func (r *pageReader) inBucket(value []byte, off int64, parent uint64, from []byte, v visitor) error {
	if len(value) < bucketHeader {
		return v.torn(parent, fmt.Errorf("%w: bucket is cut off", ErrDamaged))
	}
	if root := binary.LittleEndian.Uint64(value); root != 0 {
		return r.walk(root, from, v)
	}
	in := value[bucketHeader:]
	if len(in) < pageHeader {
		return v.torn(parent, fmt.Errorf("%w: bucket is cut off", ErrDamaged))
	}
	p := newTreePage(parent, in)
	if p.flags != leafPage {
		return v.torn(parent, fmt.Errorf("%w: bucket is cut off", ErrDamaged))
	}
	return leafPairs(p, off+bucketHeader, v)
}

// topBuckets returns the buckets of the root page: value and place of each.
func (r *pageReader) topBuckets(torn func(page uint64, cause error) error) (map[string]bucketAt, error) {
	out := map[string]bucketAt{}
	err := r.walk(r.meta.root, nil, visitor{
		pair: func(key, value []byte, off int64, bucket bool) error {
			if bucket {
				out[string(key)] = bucketAt{value, off}
			}
			return nil
		},
		torn: torn,
	})
	return out, err
}

// bucketAt is a bucket's value in its parent, and where it lies in the file.
type bucketAt struct {
	value []byte
	off   int64
}

// foundBlock is what the tree of blocks says under a key.
type foundBlock struct {
	key uint64 // position of its first record
	raw []byte // as it lies in the file; not checked
	off int64
}

// blocks goes through the blocks of a segment in order, from the one on that holds position from, given the buckets of its root.
func (r *pageReader) blocks(tops map[string]bucketAt, from uint64, found func(foundBlock) error, torn func(page uint64, cause error) error) error {
	var names []string
	for name := range tops {
		if rest, ok := strings.CutPrefix(name, bucketQueue); ok && (rest == "" || len(rest) == 8) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	low := binary.BigEndian.AppendUint64(nil, from)
	// What is named before the last name that is not beyond from ends before it.
	for len(names) > 1 && names[1] <= bucketQueue+string(low) {
		names = names[1:]
	}
	if _, ok := tops[bucketTail]; ok {
		names = append(names, bucketTail)
	}
	for _, name := range names {
		if err := r.blocksIn(tops[name], low, found, torn); err != nil {
			return err
		}
	}
	return nil
}

// blocksIn goes through the blocks of one bucket.
func (r *pageReader) blocksIn(q bucketAt, low []byte, found func(foundBlock) error, torn func(page uint64, cause error) error) error {
	return r.inBucket(q.value, q.off, r.meta.root, low, visitor{
		torn: torn,
		pair: func(key, value []byte, off int64, bucket bool) error {
			if len(key) != 8 {
				return torn(uint64(off)/pageSize, fmt.Errorf("%w: key of %d bytes among the blocks", ErrDamaged, len(key)))
			}
			f := foundBlock{key: binary.BigEndian.Uint64(key), raw: value, off: off}
			if !bucket {
				return found(f)
			}
			there := false
			err := r.inBucket(value, off, uint64(off)/pageSize, nil, visitor{
				torn: torn,
				pair: func(key, value []byte, off int64, _ bool) error {
					if string(key) != blockKey {
						return nil
					}
					there = true
					return found(foundBlock{key: f.key, raw: value, off: off})
				},
			})
			if err == nil && !there {
				err = torn(uint64(off)/pageSize, errNoBlock)
			}
			return err
		},
	})
}

var errNoBlock = errors.New("its block cannot be reached")

// maxStreams bounds the number of a stream, as the state does.
const maxStreams = 1 << 20

// eachRecord goes through all records of a block.
func eachRecord(b block, fn func(stream uint32, r Record) error) error {
	d := decoder{b: b.body}
	next := map[uint64]uint64{}
	n := d.count(2)
	for range n {
		s := d.uvarint()
		next[s] = d.uvarint()
	}
	if d.err != nil {
		return fmt.Errorf("%w: stream table of the block at %d", ErrDamaged, b.first)
	}
	if n == 0 {
		return nil // it stands for records that were lost
	}
	at := b.time
	for pos := b.first; pos <= b.last; pos++ {
		s := d.uvarint()
		size := d.count(1)
		at += d.varint()
		data := d.take(size)
		seq, known := next[s]
		if d.err != nil || !known || s > maxStreams {
			return fmt.Errorf("%w: record at %d", ErrDamaged, pos)
		}
		next[s] = seq + 1
		if err := fn(uint32(s), Record{Seq: seq, Time: time.Unix(0, at), Data: data, pos: pos}); err != nil {
			return err
		}
	}
	if len(d.b) > 0 {
		return fmt.Errorf("%w: block at %d is longer than its records", ErrDamaged, b.first)
	}
	return nil
}

// isFiller tells whether a block stands for records that were lost: its table of streams is empty.
func isFiller(b block) bool { return len(b.body) > 0 && b.body[0] == 0 }

// fillers returns blocks that stand for the lost positions first..last. A reader finds none of its records in them and goes
// on, so the positions of a log have no gap even where its records have.
func fillers(p *packer, first, last uint64, at int64) []block {
	var out []block
	for first <= last {
		n := min(last-first+1, maxBlock)
		// A body is at least as long as it has records, which is checked when it is read. Zeroes pack well.
		raw := make([]byte, blockHeader+n)
		raw[0] = blockMagic
		binary.LittleEndian.PutUint32(raw[4:], uint32(n))
		binary.LittleEndian.PutUint64(raw[8:], first)
		binary.LittleEndian.PutUint64(raw[16:], uint64(at))
		binary.LittleEndian.PutUint32(raw[24:], uint32(n))
		binary.LittleEndian.PutUint32(raw[32:], uint32(n))
		p.reset()
		raw = bytes.Clone(p.pack(raw))
		binary.LittleEndian.PutUint32(raw[28:], blockSum(raw))
		out = append(out, block{first: first, last: first + n - 1, time: at, raw: raw})
		first += n
	}
	return out
}
