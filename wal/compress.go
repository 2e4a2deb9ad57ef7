package wal

import (
	"encoding/binary"
	"fmt"
	"sync"

	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
)

// Codec says how blocks are compressed. A log may hold blocks of all of them: each block says its own.
type Codec string

// The codecs. What does not become smaller is stored as it is, whatever the codec.
const (
	CodecS2   Codec = "s2"   // about a third of telemetry in JSON, for hardly any time: the default
	CodecZstd Codec = "zstd" // about a fifth, for several times the time: for a tight flash budget
	CodecNone Codec = "none"
)

// Numbers of the codecs in a block.
const (
	codecRaw  = 0
	codecS2   = 1
	codecZstd = 2
)

const (
	// leastPacked is the size of a body below which compressing is not tried: there is nothing in it to find twice.
	leastPacked = 200
	// worthPacking is the part of a body that must be saved, or it is stored as it is and costs no time to read.
	worthPacking = 16
	// maxBody is the largest body that a block can have: a single record's. Nothing larger is ever unpacked.
	maxBody = MaxRecord + recordOverhead
	// keepPacked bounds what stays allocated for the compressed blocks of the next commit.
	keepPacked = 512 << 10
)

// packer compresses the blocks of one log. It belongs to the committer.
type packer struct {
	codec Codec
	zstd  *zstd.Encoder // made with the first block that needs it
	out   []byte        // the compressed blocks of the commit that is being made

	seen  []uint32 // by number of stream: the last block that has it in its table, as count below
	count uint32
	list  []block
}

// reset begins another commit: what was packed before is not needed any more.
func (p *packer) reset() {
	clear(p.list)
	p.list, p.out = p.list[:0], p.out[:0]
	if cap(p.out) > keepPacked {
		p.out = nil
	}
}

// pack compresses the body of an encoded block, and returns raw itself where that does not pay.
func (p *packer) pack(raw []byte) []byte {
	body := raw[blockHeader:]
	if len(body) < leastPacked || len(body) > maxBody || p.codec == CodecNone {
		return raw
	}
	// A slice grown here may move; what was packed before stays valid where it was.
	from := len(p.out)
	room := from + blockHeader + s2.MaxEncodedLen(len(body))
	if cap(p.out) < room {
		p.out = append(make([]byte, 0, max(room, 2*cap(p.out))), p.out...)
	}
	out := p.out[from:room:room]
	copy(out, raw[:blockHeader])
	var n int
	switch p.codec {
	case CodecZstd:
		if p.zstd == nil {
			var err error
			if p.zstd, err = newZstdEncoder(); err != nil {
				panic("wal: zstd does not take its options: " + err.Error())
			}
		}
		// Where it does not fit it moves elsewhere, and is too large anyway.
		n = len(p.zstd.EncodeAll(body, out[blockHeader:blockHeader]))
		out[1] = codecZstd
	default:
		n = len(s2.Encode(out[blockHeader:], body))
		out[1] = codecS2
	}
	if n > len(body)-len(body)/worthPacking {
		return raw
	}
	out = out[: blockHeader+n : blockHeader+n]
	p.out = p.out[:from+len(out)]
	binary.LittleEndian.PutUint32(out[24:], uint32(n))
	return out
}

func newZstdEncoder() (*zstd.Encoder, error) {
	return zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1),
		zstd.WithWindowSize(maxBlock), zstd.WithEncoderCRC(false), zstd.WithLowerEncoderMem(true))
}

// unpacker gives the bodies of blocks back. Any number of readers may use it; its zero value works.
type unpacker struct {
	once sync.Once
	zstd *zstd.Decoder // made with the first block that needs it
}

// unpack returns the body of size bytes that was packed with a codec. It allocates that much and no more, whatever the
// packed bytes say of themselves.
func (u *unpacker) unpack(codec byte, packed []byte, size uint32) ([]byte, error) {
	if size > maxBody {
		return nil, fmt.Errorf("%w: a block says that it holds %d bytes (at most %d)", ErrDamaged, size, maxBody)
	}
	var body []byte
	var err error
	switch codec {
	case codecS2:
		if n, bad := s2.DecodedLen(packed); bad != nil || n != int(size) {
			return nil, fmt.Errorf("%w: lengths of a block do not agree", ErrDamaged)
		}
		body, err = s2.Decode(make([]byte, size), packed)
	case codecZstd:
		u.once.Do(u.openZstd)
		body, err = u.zstd.DecodeAll(packed, make([]byte, 0, size))
	default:
		return nil, fmt.Errorf("%w: a block has the unknown codec %d", ErrDamaged, codec)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: a block cannot be unpacked: %w", ErrDamaged, err)
	}
	if len(body) != int(size) {
		return nil, fmt.Errorf("%w: a block holds %d bytes and should hold %d", ErrDamaged, len(body), size)
	}
	return body, nil
}

func (u *unpacker) openZstd() {
	var err error
	u.zstd, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxMemory(maxBlock*2), zstd.WithDecoderMaxWindow(maxBlock*2), zstd.WithDecodeAllCapLimit(true))
	if err != nil {
		panic("wal: zstd does not take its options: " + err.Error())
	}
}
