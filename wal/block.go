package wal

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"slices"
	"time"
)

const (
	blockMagic  = 0xB2 // high half: a block; low half: version 2
	blockHeader = 36
	firstMagic  = 0xB1 // version 1: no length of the unpacked body, and never packed
	firstHeader = 32
	maxBlock    = 256 << 10 // bytes of a block before it is packed; a single record may exceed it by its own header
	// recordOverhead is the most that a record adds to its data in a block: three varints and its stream's table entry.
	recordOverhead = 5 + 5 + 10 + 15
)

// entry is a record on its way into a block.
type entry struct {
	stream uint32
	seq    uint64
	time   int64
	data   []byte
}

// block is a block in memory.
type block struct {
	first, last uint64 // positions
	time        int64  // of the first record, Unix nanoseconds
	body        []byte // stream table and records
	raw         []byte // as it is written into the file; nil from then on
}

// encodeBlocks packs entries, the first of which has position base, into blocks of at most maxBlock. They are p's, until
// the next reset. The data of entries is in the blocks from then on, and not where the caller of Append has it.
func encodeBlocks(p *packer, base uint64, entries []entry) []block {
	from := len(p.list)
	for len(entries) > 0 {
		n, size := 0, blockHeader
		for n < len(entries) {
			size += len(entries[n].data) + recordOverhead
			if n > 0 && size > maxBlock {
				size -= len(entries[n].data) + recordOverhead
				break
			}
			n++
		}
		p.list = append(p.list, encodeBlock(p, base, entries[:n], size))
		base += uint64(n)
		entries = entries[n:]
	}
	return p.list[from:len(p.list):len(p.list)]
}

func encodeBlock(p *packer, base uint64, entries []entry, sizeHint int) block {
	raw := make([]byte, blockHeader, sizeHint)
	raw[0] = blockMagic
	binary.LittleEndian.PutUint32(raw[4:], uint32(len(entries)))
	binary.LittleEndian.PutUint64(raw[8:], base)
	binary.LittleEndian.PutUint64(raw[16:], uint64(entries[0].time))

	raw = p.appendStreamTable(raw, entries)
	prev := entries[0].time
	for i := range entries {
		e := &entries[i]
		raw = binary.AppendUvarint(raw, uint64(e.stream))
		raw = binary.AppendUvarint(raw, uint64(len(e.data)))
		raw = binary.AppendVarint(raw, e.time-prev) // wraps, and wraps back
		at := len(raw)
		raw = append(raw, e.data...)
		e.data = raw[at:len(raw):len(raw)]
		prev = e.time
	}
	b := block{first: base, last: base + uint64(len(entries)) - 1, time: entries[0].time, body: raw[blockHeader:]}
	binary.LittleEndian.PutUint32(raw[24:], uint32(len(b.body)))
	binary.LittleEndian.PutUint32(raw[32:], uint32(len(b.body)))
	b.raw = p.pack(raw)
	binary.LittleEndian.PutUint32(b.raw[28:], blockSum(b.raw))
	return b
}

// appendStreamTable writes the streams of a block with the sequence of the first record of each.
func (p *packer) appendStreamTable(b []byte, entries []entry) []byte {
	if p.count++; p.count == 0 {
		clear(p.seen) // it has wrapped: what is in there would look new
		p.count = 1
	}
	at, n := len(b), 0
	for i := range entries {
		e := &entries[i]
		if i > 0 && e.stream == entries[i-1].stream {
			continue
		}
		if missing := int(e.stream) + 1 - len(p.seen); missing > 0 {
			p.seen = append(p.seen, make([]uint32, missing)...)
		}
		if p.seen[e.stream] == p.count {
			continue
		}
		p.seen[e.stream] = p.count
		b = binary.AppendUvarint(b, uint64(e.stream))
		b = binary.AppendUvarint(b, e.seq)
		n++
	}
	var length [binary.MaxVarintLen32]byte
	return slices.Insert(b, at, length[:binary.PutUvarint(length[:], uint64(n))]...)
}

// blockSum is the checksum over all of a block but the checksum. The length of the unpacked body, which version 1 does
// not have, lies behind it.
func blockSum(b []byte) uint32 {
	return crc32.Update(crc32.Checksum(b[:28], castagnoli), castagnoli, b[firstHeader:])
}

// decodeBlock returns the block that raw holds, once it has proved to be whole: nothing in it is believed before. The
// body may be a part of raw.
func decodeBlock(raw []byte, u *unpacker) (block, error) {
	if len(raw) < firstHeader {
		return block{}, fmt.Errorf("%w: block of %d bytes is too short", ErrDamaged, len(raw))
	}
	header := blockHeader
	if raw[0] == firstMagic {
		header = firstHeader
	}
	codec := raw[1]
	if raw[0] != blockMagic && raw[0] != firstMagic || codec > codecZstd || raw[2] != 0 || raw[3] != 0 {
		return block{}, fmt.Errorf("%w: block starts with % x", ErrDamaged, raw[:4])
	}
	if blockSum(raw) != binary.LittleEndian.Uint32(raw[28:]) {
		return block{}, fmt.Errorf("%w: checksum of a block is wrong", ErrDamaged)
	}
	n, size := binary.LittleEndian.Uint32(raw[4:]), binary.LittleEndian.Uint32(raw[24:])
	if len(raw) < header || int64(size) != int64(len(raw)-header) {
		return block{}, fmt.Errorf("%w: lengths of a block do not agree", ErrDamaged)
	}
	if raw[0] == blockMagic {
		size = binary.LittleEndian.Uint32(raw[32:])
	}
	body := raw[header:]
	switch {
	case codec != codecRaw && raw[0] == firstMagic, codec == codecRaw && int64(size) != int64(len(body)):
		return block{}, fmt.Errorf("%w: lengths of a block do not agree", ErrDamaged)
	case codec != codecRaw:
		var err error
		if body, err = u.unpack(codec, body, size); err != nil {
			return block{}, err
		}
	}
	base := binary.LittleEndian.Uint64(raw[8:])
	if n == 0 || int64(n) > int64(len(body)) || base+uint64(n)-1 < base {
		return block{}, fmt.Errorf("%w: lengths of a block do not agree", ErrDamaged)
	}
	return block{first: base, last: base + uint64(n) - 1, time: int64(binary.LittleEndian.Uint64(raw[16:])), body: body}, nil
}

// blockReader goes through the records of one stream in a block. It is a small value, so that a reader can step back
// by keeping a copy.
type blockReader struct {
	d      decoder
	left   uint32
	pos    uint64 // of the record that was read last, also where it belongs to another stream
	time   int64
	stream uint32
	seq    uint64 // of the next record of the stream
}

func newBlockReader(b block, stream uint32) (blockReader, error) {
	r := blockReader{
		d:      decoder{b: b.body},
		left:   uint32(b.last - b.first + 1),
		pos:    b.first - 1,
		time:   b.time,
		stream: stream,
	}
	found := false
	for range r.d.count(2) {
		s, seq := r.d.uvarint(), r.d.uvarint()
		if s == uint64(stream) {
			r.seq, found = seq, true
		}
	}
	if !found {
		r.left, r.pos = 0, b.last
	}
	if r.d.err != nil {
		return r, fmt.Errorf("%w: stream table of the block at %d", ErrDamaged, b.first)
	}
	return r, nil
}

// next returns the next record of the stream, or ok false at the end of the block or at an error.
func (r *blockReader) next() (rec Record, ok bool, err error) {
	for r.left > 0 {
		r.left--
		r.pos++
		stream := r.d.uvarint()
		n := r.d.count(1)
		// The length was measured before the time was read, so take checks it once more.
		r.time += r.d.varint()
		data := r.d.take(n)
		if r.d.err != nil {
			return Record{}, false, fmt.Errorf("%w: record at %d", ErrDamaged, r.pos)
		}
		if stream != uint64(r.stream) {
			continue
		}
		rec = Record{Seq: r.seq, Time: time.Unix(0, r.time), Data: data, pos: r.pos}
		r.seq++
		return rec, true, nil
	}
	return Record{}, false, nil
}

// entries returns all records of a block that was checked.
func (b block) entries() ([]entry, error) {
	d := decoder{b: b.body}
	next := map[uint64]uint64{}
	for range d.count(2) {
		stream, seq := d.uvarint(), d.uvarint()
		next[stream] = seq
	}
	out := make([]entry, 0, b.last-b.first+1)
	at := b.time
	for pos := b.first; pos <= b.last && d.err == nil; pos++ {
		stream, n := d.uvarint(), d.count(1)
		at += d.varint()
		data := d.take(n)
		seq, known := next[stream]
		if !known || stream > math.MaxUint32 {
			d.fail()
		}
		next[stream] = seq + 1
		out = append(out, entry{stream: uint32(stream), seq: seq, time: at, data: data})
	}
	return out, d.end("block")
}
