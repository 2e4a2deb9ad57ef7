package wal

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"runtime/debug"
	"slices"

	"go.etcd.io/bbolt"
)

// Where blocks lie in a segment decides what a commit costs: bbolt writes each page again that is on the way from the root
// to a change. So
//
//   - a small block goes to bucket t, which holds no more than one page takes; when it is full its records become one block
//     of the queue. Up to 1 KiB bbolt keeps t inside the root page, which is written anyway.
//   - any other block has a bucket of its own, or bbolt, which keeps two keys in a leaf, would write it again with the next.
//   - these buckets are named in queue buckets of as many names as one page takes, so there is never a branch page above.
//
// A commit of one small record costs two to four pages, and one of a large block its own and three more.

const (
	bucketQueue = "q" // and the position of its first record; in version 1 there is one, without the position
	bucketTail  = "t"
	blockKey    = "b"

	plainBlock = 1500 // bytes up to which a block is small
	tailBytes  = pageSize - pageHeader
	pairBytes  = elemSize + 8 // what a block in t takes beside itself
	queueNames = 94           // blocks of a queue bucket: (4096 - 16) / (16 + 8 + 16) fill a page, less what bbolt leaves free
)

// layout says where the newest blocks of the active segment lie.
type layout struct {
	bucket []byte // the newest queue bucket
	names  int    // of blocks in it

	first uint64  // position of the first record in t
	tail  []entry // the records in t
	size  int     // of the page of t
}

// placement is what a commit does to the queue.
type placement struct {
	small     []block // to t
	emptyTail bool    // before that
	large     []block
}

// place decides where the entries of a commit go, the first of which has position base. It returns the layout after it.
func (y layout) place(pk *packer, base uint64, entries []entry, blocks []block) (placement, layout) {
	if len(blocks) == 0 {
		return placement{}, y
	}
	if len(blocks) > 1 || len(blocks[0].raw) > plainBlock {
		if len(y.tail) == 0 {
			return placement{large: blocks}, y
		}
		all := append(append(make([]entry, 0, len(y.tail)+len(entries)), y.tail...), entries...)
		p := placement{large: encodeBlocks(pk, y.first, all), emptyTail: true}
		y.tail, y.size = nil, 0
		return p, y
	}
	p := placement{small: blocks}
	need := pairBytes + len(blocks[0].raw)
	if len(y.tail) > 0 && y.size+need > tailBytes {
		p.large, p.emptyTail = encodeBlocks(pk, y.first, y.tail), true
		y.tail, y.size = nil, 0
	}
	if len(y.tail) == 0 {
		y.first = base
	}
	y.tail = append(slices.Clip(y.tail), entries...)
	y.size += need
	return p, y
}

// put makes p so in a transaction.
func (p *placement) put(tx *bbolt.Tx, y *layout) error {
	for _, b := range p.large {
		if err := putLarge(tx, y, b); err != nil {
			return err
		}
	}
	if p.emptyTail {
		if err := tx.DeleteBucket([]byte(bucketTail)); err != nil {
			return err
		}
	}
	if len(p.small) == 0 {
		return nil
	}
	t, err := tx.CreateBucketIfNotExists([]byte(bucketTail))
	if err != nil {
		return err
	}
	for _, b := range p.small {
		if err := t.Put(binary.BigEndian.AppendUint64(nil, b.first), b.raw); err != nil {
			return err
		}
	}
	return nil
}

func putLarge(tx *bbolt.Tx, y *layout, b block) error {
	key := binary.BigEndian.AppendUint64(nil, b.first)
	if y.bucket == nil || y.names >= queueNames {
		y.bucket, y.names = append([]byte(bucketQueue), key...), 0
	}
	q, err := tx.CreateBucketIfNotExists(y.bucket)
	if err != nil {
		return err
	}
	q.FillPercent = 1 // what comes next has a bucket of its own
	own, err := q.CreateBucket(key)
	if err != nil {
		return err
	}
	y.names++
	return own.Put([]byte(blockKey), b.raw)
}

// findBlock returns a copy of the block that holds pos, or of another one where none does.
func findBlock(tx *bbolt.Tx, pos uint64, file *blockFile) []byte {
	key := binary.BigEndian.AppendUint64(nil, pos)
	if t := tx.Bucket([]byte(bucketTail)); t != nil {
		if k, v := atOrBefore(t.Cursor(), key); k != nil && v != nil && covers(v, pos) {
			return bytes.Clone(v)
		}
	}
	name, v := atOrBefore(tx.Cursor(), append([]byte(bucketQueue), key...))
	if v != nil || !bytes.HasPrefix(name, []byte(bucketQueue)) {
		return nil
	}
	q := tx.Bucket(name)
	if q == nil {
		return nil
	}
	k, v := atOrBefore(q.Cursor(), key)
	if k == nil {
		return nil
	}
	if own := q.Bucket(k); v == nil && own != nil {
		file.ahead.ask(int64(own.Root())*pageSize, aheadStep)
	}
	return bytes.Clone(blockAt(q, k, v))
}

// blockAt returns the block under a key of a queue bucket, or nil.
func blockAt(q *bbolt.Bucket, key, value []byte) []byte {
	if value != nil {
		return value // of version 1
	}
	if own := q.Bucket(key); own != nil {
		return own.Get([]byte(blockKey))
	}
	return nil
}

// atOrBefore returns the last pair whose key is not greater than key.
func atOrBefore(c *bbolt.Cursor, key []byte) (k, v []byte) {
	switch k, v = c.Seek(key); {
	case k == nil:
		return c.Last()
	case !bytes.Equal(k, key):
		return c.Prev()
	}
	return k, v
}

// covers tells whether a block says that it holds pos. Its checksum is looked at later.
func covers(raw []byte, pos uint64) bool {
	if len(raw) < blockHeader {
		return false
	}
	n, first := binary.LittleEndian.Uint32(raw[4:]), binary.LittleEndian.Uint64(raw[8:])
	return pos >= first && pos-first < uint64(n)
}

// loadLayout finds where the newest blocks of a segment lie.
func loadLayout(db *bbolt.DB, u *unpacker) (y layout, err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", ErrDamaged, p)
		}
	}()
	err = db.View(func(tx *bbolt.Tx) error {
		// Nothing of the queue sorts behind a position that cannot be.
		if k, v := atOrBefore(tx.Cursor(), []byte(bucketQueue+"\xff\xff\xff\xff\xff\xff\xff\xff\xff")); v == nil &&
			len(k) == len(bucketQueue)+8 && bytes.HasPrefix(k, []byte(bucketQueue)) {
			y.bucket = bytes.Clone(k)
			c := tx.Bucket(k).Cursor()
			for k, _ := c.First(); k != nil; k, _ = c.Next() {
				y.names++
			}
		}
		t := tx.Bucket([]byte(bucketTail))
		if t == nil {
			return nil
		}
		return t.ForEach(func(_, v []byte) error {
			b, err := decodeBlock(bytes.Clone(v), u)
			if err != nil {
				return err
			}
			list, err := b.entries()
			if err != nil {
				return err
			}
			if len(y.tail) == 0 {
				y.first = b.first
			}
			if b.first != y.first+uint64(len(y.tail)) {
				return fmt.Errorf("%w: records %d are missing before %d", ErrDamaged, y.first+uint64(len(y.tail)), b.first)
			}
			y.tail = append(y.tail, list...)
			y.size += pairBytes + len(v)
			return nil
		})
	})
	return y, err
}
