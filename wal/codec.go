package wal

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"time"
)

// formatVersion stands in each segment's header. Another number means another layout of anything in doc.go. A log of
// version 1 is read, and goes on with a new segment. The active segment of version 2 is gone on with: until the next one begins,
// nothing is written that its programs could not read.
const (
	formatVersion  = 3
	versionLetters = 3 // dead letters name driver and attempts
	versionBlocks  = 2 // as blocks and buckets are now
	oldestVersion  = 1
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// seal appends the checksum over key and value, because bbolt has none and a flipped bit must not become a cursor.
func seal(key, value []byte) []byte {
	sum := crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, value)
	out := make([]byte, 0, len(value)+4)
	return binary.LittleEndian.AppendUint32(append(out, value...), sum)
}

// unseal checks and removes what seal appended. The result is a part of v.
func unseal(key, v []byte) ([]byte, error) {
	if len(v) < 4 {
		return nil, fmt.Errorf("%w: value of %q is cut off", ErrDamaged, key)
	}
	value := v[:len(v)-4]
	if crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, value) != binary.LittleEndian.Uint32(v[len(v)-4:]) {
		return nil, fmt.Errorf("%w: checksum of %q is wrong", ErrDamaged, key)
	}
	return value, nil
}

// header is what a segment's bucket h holds. It is written once.
type header struct {
	version uint64
	uuid    [16]byte
	epoch   uint64
	number  uint64
	base    uint64 // position of its first record
	created int64  // Unix nanoseconds
	first   []uint64
	hollow  bool // its records are gone: no cursor needed them
}

func (h *header) encode() []byte {
	b := binary.AppendUvarint(nil, formatVersion)
	b = append(b, h.uuid[:]...)
	b = binary.AppendUvarint(b, h.epoch)
	b = binary.AppendUvarint(b, h.number)
	b = binary.AppendUvarint(b, h.base)
	b = binary.AppendVarint(b, h.created)
	b = binary.AppendUvarint(b, uint64(len(h.first)))
	for _, seq := range h.first {
		b = binary.AppendUvarint(b, seq)
	}
	if h.hollow {
		b = append(b, 1)
	}
	return b
}

func decodeHeader(b []byte) (header, error) {
	var h header
	d := decoder{b: b}
	if h.version = d.uvarint(); d.err == nil && (h.version < oldestVersion || h.version > formatVersion) {
		return h, fmt.Errorf("%w: version %d (this program reads %d to %d)", ErrVersion, h.version, oldestVersion, formatVersion)
	}
	copy(h.uuid[:], d.take(16))
	h.epoch, h.number, h.base, h.created = d.uvarint(), d.uvarint(), d.uvarint(), d.varint()
	h.first = make([]uint64, d.count(1))
	for i := range h.first {
		h.first[i] = d.uvarint()
	}
	if d.err == nil && len(d.b) > 0 {
		h.hollow = true
		if flag := d.take(1); len(flag) != 1 || flag[0] != 1 {
			d.fail()
		}
	}
	return h, d.end("header")
}

// control is what the bucket c of a segment holds: where the log and its cursors stand. Each commit writes it anew.
type control struct {
	last       uint64 // position of the newest record
	newest     int64  // largest time of the segment's records, Unix nanoseconds; 0 without any
	lost       uint64 // dead letters that went because there were too many
	refused    uint64 // records refused by drop_newest
	letters    uint64 // number of the newest dead letter ever
	ranges     uint64 // number of the newest dropped range ever
	nextCursor uint32
	tails      []tail // by number of stream
	cursors    []cursorPos
	stateSum   uint64 // checksum over all pairs of the state, so that a page of it from an earlier commit is found
	written    uint64 // bytes handed to the disk since the log began, as of the commit before
	flash      uint64 // the same as flash memory programs them, in whole pages (see wear.go)
}

// tail is the end of one stream.
type tail struct {
	seq     uint64 // of its newest record
	bytes   uint64 // of the data of all its records
	dropped uint64 // records that went before every cursor had passed them
	refused uint64 // records that never got a number, because the stream or the log was full
}

// cursorPos is where a cursor stands: each record of its stream up to pos, and up to seq, has a final outcome.
type cursorPos struct {
	id   uint32
	pos  uint64
	seq  uint64
	runs []run // outcomes beyond, so that a clean stop repeats nothing
}

// run says: skip records without outcome, then n with one.
type run struct{ skip, n uint64 }

// maxRuns bounds what a commit stores of outcomes out of order. What does not fit is sent again after a restart.
const maxRuns = 32

func (c *control) encode() []byte {
	b := binary.AppendUvarint(make([]byte, 0, 96+16*len(c.tails)+24*len(c.cursors)), c.last)
	b = binary.AppendVarint(b, c.newest)
	b = binary.AppendUvarint(b, c.lost)
	b = binary.AppendUvarint(b, c.refused)
	b = binary.AppendUvarint(b, c.letters)
	b = binary.AppendUvarint(b, c.ranges)
	b = binary.AppendUvarint(b, uint64(c.nextCursor))
	b = binary.AppendUvarint(b, uint64(len(c.tails)))
	for _, t := range c.tails {
		b = binary.AppendUvarint(b, t.seq)
		b = binary.AppendUvarint(b, t.bytes)
		b = binary.AppendUvarint(b, t.dropped)
		b = binary.AppendUvarint(b, t.refused)
	}
	b = binary.AppendUvarint(b, uint64(len(c.cursors)))
	for _, p := range c.cursors {
		b = binary.AppendUvarint(b, uint64(p.id))
		b = binary.AppendUvarint(b, p.pos)
		b = binary.AppendUvarint(b, p.seq)
		b = binary.AppendUvarint(b, uint64(len(p.runs)))
		for _, r := range p.runs {
			b = binary.AppendUvarint(b, r.skip)
			b = binary.AppendUvarint(b, r.n)
		}
	}
	b = binary.LittleEndian.AppendUint64(b, c.stateSum)
	b = binary.AppendUvarint(b, c.written)
	return binary.AppendUvarint(b, c.flash)
}

// decodeControl decodes the control record of a segment of a version.
func decodeControl(b []byte, version uint64) (control, error) {
	d := decoder{b: b}
	c := control{
		last: d.uvarint(), newest: d.varint(), lost: d.uvarint(), refused: d.uvarint(),
		letters: d.uvarint(), ranges: d.uvarint(), nextCursor: d.uint32(),
	}
	c.tails = make([]tail, d.count(3))
	for i := range c.tails {
		c.tails[i] = tail{seq: d.uvarint(), bytes: d.uvarint(), dropped: d.uvarint()}
		if version > 1 {
			c.tails[i].refused = d.uvarint()
		}
	}
	c.cursors = make([]cursorPos, d.count(4))
	for i := range c.cursors {
		p := cursorPos{id: d.uint32(), pos: d.uvarint(), seq: d.uvarint()}
		for range d.count(2) {
			p.runs = append(p.runs, run{skip: d.uvarint(), n: d.uvarint()})
		}
		c.cursors[i] = p
	}
	if version > 1 {
		c.stateSum, c.written, c.flash = d.uint64(), d.uvarint(), d.uvarint()
	}
	return c, d.end("control record")
}

func (c *control) cursor(id uint32) *cursorPos {
	for i := range c.cursors {
		if c.cursors[i].id == id {
			return &c.cursors[i]
		}
	}
	return nil
}

// decoder takes a value apart. Its first error stays, and everything after it is zero.
type decoder struct {
	b   []byte
	err error
}

func (d *decoder) fail() {
	if d.err == nil {
		d.err = ErrDamaged
	}
	d.b = nil
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.fail()
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) varint() int64 {
	v, n := binary.Varint(d.b)
	if n <= 0 {
		d.fail()
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) uint32() uint32 {
	v := d.uvarint()
	if v > math.MaxUint32 {
		d.fail()
		return 0
	}
	return uint32(v)
}

// uint64 reads 8 bytes, little endian.
func (d *decoder) uint64() uint64 {
	if b := d.take(8); len(b) == 8 {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// count reads the length of a list whose elements take at least size bytes each, so that a damaged length cannot make
// the reader allocate more than the value itself could describe.
func (d *decoder) count(size int) int {
	v := d.uvarint()
	if v > uint64(len(d.b)/size) {
		d.fail()
		return 0
	}
	return int(v)
}

func (d *decoder) take(n int) []byte {
	if n > len(d.b) {
		d.fail()
		return nil
	}
	v := d.b[:n:n]
	d.b = d.b[n:]
	return v
}

func (d *decoder) bytes() []byte { return d.take(d.count(1)) }

func (d *decoder) end(what string) error {
	if d.err == nil && len(d.b) > 0 {
		d.err = ErrDamaged
	}
	if d.err != nil {
		return fmt.Errorf("%w: %s cannot be decoded", d.err, what)
	}
	return nil
}

func appendBytes[T string | []byte](b []byte, v T) []byte {
	return append(binary.AppendUvarint(b, uint64(len(v))), v...)
}

// nanos is t in Unix nanoseconds, held within what 64 bits can say.
func nanos(t time.Time) int64 {
	switch s := t.Unix(); {
	case s >= math.MaxInt64/int64(time.Second):
		return math.MaxInt64
	case s <= math.MinInt64/int64(time.Second):
		return math.MinInt64
	}
	return t.UnixNano()
}
