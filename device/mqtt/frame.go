package mqtt

import (
	"errors"

	"github.com/mochi-mqtt/server/v2/packets"
)

// frame follows the fixed headers in a stream of packets before mochi decodes them:
//
//	byte 0      type and flags
//	byte 1–4    length of the rest, 7 bits each, low first; the high bit says that another follows
//
// It refuses what mochi would take memory for or read on without end: the first packet must be CONNECT, no packet may be
// longer than limit, no length may have a fifth byte.
type frame struct {
	limit  uint32 // of a whole packet
	past   bool   // the first packet's type was seen
	at     uint8  // header bytes seen of the present packet
	length uint32
	skip   uint32 // bytes of the present packet still to come
}

var (
	errNotConnect = errors.New("the first packet is not CONNECT")
	errLength     = errors.New("the length of a packet has more than four bytes")
)

func (f *frame) scan(p []byte) error {
	for len(p) > 0 {
		if f.skip > 0 {
			n := min(uint32(len(p)), f.skip)
			f.skip -= n
			p = p[n:]
			continue
		}
		b := p[0]
		p = p[1:]
		if f.at == 0 {
			if !f.past && b != packets.Connect<<4 {
				return errNotConnect
			}
			f.past, f.at, f.length = true, 1, 0
			continue
		}
		f.length |= uint32(b&0x7f) << (7 * (f.at - 1))
		switch {
		case b&0x80 == 0:
			if f.length+uint32(f.at)+1 > f.limit {
				return packets.ErrPacketTooLarge
			}
			f.skip, f.at = f.length, 0
		case f.at == 4:
			return errLength
		default:
			f.at++
		}
	}
	return nil
}
