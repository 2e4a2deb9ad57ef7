package wal

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"time"
)

const (
	blockMagic  = 0xB1 // high half: a block; low half: version 1
	blockHeader = 32
	maxBlock    = 256 << 10 // raw bytes of a block; a single record may exceed it by its own header
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

// block is an encoded block, as it lies in the file.
type block struct {
	first, last uint64 // positions
	raw         []byte
}

// encodeBlocks packs entries, the first of which has position base, into blocks of at most maxBlock.
func encodeBlocks(base uint64, entries []entry) []block {
	var out []block
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
		out = append(out, encodeBlock(base, entries[:n], size))
		base += uint64(n)
		entries = entries[n:]
	}
	return out
}

func encodeBlock(base uint64, entries []entry, sizeHint int) block {
	b := make([]byte, blockHeader, sizeHint+16)
	b[0] = blockMagic
	binary.LittleEndian.PutUint32(b[4:], uint32(len(entries)))
	binary.LittleEndian.PutUint64(b[8:], base)
	binary.LittleEndian.PutUint64(b[16:], uint64(entries[0].time))

	b = appendStreamTable(b, entries)
	prev := entries[0].time
	for _, e := range entries {
		b = binary.AppendUvarint(b, uint64(e.stream))
		b = binary.AppendUvarint(b, uint64(len(e.data)))
		b = binary.AppendVarint(b, e.time-prev) // wraps, and wraps back
		b = append(b, e.data...)
		prev = e.time
	}
	binary.LittleEndian.PutUint32(b[24:], uint32(len(b)-blockHeader))
	binary.LittleEndian.PutUint32(b[28:], blockSum(b))
	return block{first: base, last: base + uint64(len(entries)) - 1, raw: b}
}

// appendStreamTable writes the streams of a block with the sequence of the first record of each.
func appendStreamTable(b []byte, entries []entry) []byte {
	type first struct {
		stream uint32
		seq    uint64
	}
	var few [8]first
	table := few[:0]
	seen := make(map[uint32]bool, 8)
	prev := entries[0].stream + 1
	for _, e := range entries {
		if e.stream == prev || seen[e.stream] {
			continue
		}
		prev = e.stream
		seen[e.stream] = true
		table = append(table, first{e.stream, e.seq})
	}
	b = binary.AppendUvarint(b, uint64(len(table)))
	for _, f := range table {
		b = binary.AppendUvarint(b, uint64(f.stream))
		b = binary.AppendUvarint(b, f.seq)
	}
	return b
}

func blockSum(b []byte) uint32 {
	return crc32.Update(crc32.Checksum(b[:28], castagnoli), castagnoli, b[blockHeader:])
}

// checkBlock tells whether raw is a whole block, before anything in it is believed.
func checkBlock(raw []byte) (block, error) {
	if len(raw) < blockHeader {
		return block{}, fmt.Errorf("%w: block of %d bytes is too short", ErrDamaged, len(raw))
	}
	if raw[0] != blockMagic || raw[1] != 0 || raw[2] != 0 || raw[3] != 0 {
		return block{}, fmt.Errorf("%w: block starts with % x", ErrDamaged, raw[:4])
	}
	if blockSum(raw) != binary.LittleEndian.Uint32(raw[28:]) {
		return block{}, fmt.Errorf("%w: checksum of a block is wrong", ErrDamaged)
	}
	n := binary.LittleEndian.Uint32(raw[4:])
	if int64(binary.LittleEndian.Uint32(raw[24:])) != int64(len(raw)-blockHeader) || n == 0 || int64(n) > int64(len(raw)) {
		return block{}, fmt.Errorf("%w: lengths of a block do not agree", ErrDamaged)
	}
	base := binary.LittleEndian.Uint64(raw[8:])
	return block{first: base, last: base + uint64(n) - 1, raw: raw}, nil
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
		d:      decoder{b: b.raw[blockHeader:]},
		left:   binary.LittleEndian.Uint32(b.raw[4:]),
		pos:    b.first - 1,
		time:   int64(binary.LittleEndian.Uint64(b.raw[16:])),
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
	d := decoder{b: b.raw[blockHeader:]}
	next := map[uint64]uint64{}
	for range d.count(2) {
		stream, seq := d.uvarint(), d.uvarint()
		next[stream] = seq
	}
	out := make([]entry, 0, b.last-b.first+1)
	at := int64(binary.LittleEndian.Uint64(b.raw[16:]))
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
