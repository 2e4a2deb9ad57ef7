package pipeline

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"
)

// codecVersion is the first byte of each encoded message. A change of the layout takes the next number, and Decode goes
// on reading the older ones: the log of a gateway that was updated holds both.
const codecVersion = 1

// ErrCodec is what Decode returns, wrapped with the spot, for bytes that Encode did not write.
var ErrCodec = errors.New("not an encoded message")

// The flags byte.
const (
	flagQuality = 0b0000_0011 // the Quality
	flagTrusted = 0b0000_0100 // Clock.Trusted
	flagKnown   = flagQuality | flagTrusted
)

// Encode appends m to dst in the form that is stored in the log:
//
//	u8       version, 1
//	u8       flags: bits 0–1 quality, bit 2 clock trusted
//	varint   time, nanoseconds since 1970 UTC
//	u32 LE   boot id
//	uvarint  nanoseconds since boot
//	text     source, topic, key, unit, reason
//	u8       kind of the value, then the value:
//	           none —   bool u8   int varint   uint uvarint   float u64 LE (IEEE 754)   string text   bytes text
//	uvarint  number of headers, then name text and value text of each
//
// where text is a uvarint length and that many bytes. Nothing follows.
func Encode(dst []byte, m *Message) []byte {
	flags := byte(m.Quality) & flagQuality
	if m.Clock.Trusted {
		flags |= flagTrusted
	}
	dst = append(dst, codecVersion, flags)
	dst = binary.AppendVarint(dst, m.Time.UnixNano())
	dst = binary.LittleEndian.AppendUint32(dst, m.Clock.Boot)
	dst = binary.AppendUvarint(dst, uint64(m.Clock.Offset))
	for _, s := range [...]string{m.Source, m.Topic, m.Key, m.Unit, m.Reason} {
		dst = appendText(dst, s)
	}
	dst = appendValue(dst, m.Value)
	dst = binary.AppendUvarint(dst, uint64(len(m.Headers)))
	for _, h := range m.Headers {
		dst = appendText(appendText(dst, h.Name), h.Value)
	}
	return dst
}

func appendValue(dst []byte, v Value) []byte {
	dst = append(dst, byte(v.kind))
	switch v.kind {
	case KindBool:
		return append(dst, byte(v.bits))
	case KindInt:
		return binary.AppendVarint(dst, int64(v.bits))
	case KindUint:
		return binary.AppendUvarint(dst, v.bits)
	case KindFloat:
		return binary.LittleEndian.AppendUint64(dst, v.bits)
	case KindString:
		return appendText(dst, v.text)
	case KindBytes:
		return append(binary.AppendUvarint(dst, uint64(len(v.raw))), v.raw...)
	default:
		return dst
	}
}

func appendText(dst []byte, s string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

// Decode reads what Encode wrote. The message keeps no reference to data.
func Decode(data []byte) (Message, error) {
	var m Message
	err := decode(&m, &reader{rest: data})
	return m, err
}

// Decoder is Decode for many messages. Their texts share memory, a piece of 32 KB: it lives as long as any of them. It is for one
// goroutine at a time.
type Decoder struct{ room strings.Builder }

// Decode reads what Encode wrote into m, which keeps no reference to data. After an error m is empty.
func (d *Decoder) Decode(m *Message, data []byte) error {
	return decode(m, &reader{rest: data, room: &d.room})
}

func decode(m *Message, r *reader) error {
	*m = Message{}
	size := len(r.rest)
	if v := r.byte(); v != codecVersion {
		return fmt.Errorf("%w: version %d (this build reads %d)", ErrCodec, v, codecVersion)
	}
	flags := r.byte()
	if flags&^flagKnown != 0 || flags&flagQuality > byte(Bad) {
		r.fail("flags")
	}
	m.Quality = Quality(flags & flagQuality)
	m.Time = time.Unix(0, r.varint()).UTC()
	m.Clock = Clock{Boot: r.uint32(), Offset: time.Duration(r.uvarint()), Trusted: flags&flagTrusted != 0}
	r.texts([5]*string{&m.Source, &m.Topic, &m.Key, &m.Unit, &m.Reason})
	m.Value = r.value()
	n := r.uvarint()
	if n > uint64(len(r.rest)) { // a header takes two bytes at the least
		r.fail("number of headers")
	}
	for range n {
		if r.err != nil {
			break
		}
		m.Headers = append(m.Headers, Header{Name: string(r.text()), Value: string(r.text())})
	}
	if r.err == nil && len(r.rest) != 0 {
		r.fail("end")
	}
	if r.err != nil {
		*m = Message{}
		return fmt.Errorf("%w: bad %w after %d of %d bytes", ErrCodec, r.err, size-len(r.rest), size)
	}
	return nil
}

// reader takes fields off the front of rest. After the first failure it returns zero values and keeps the first error.
type reader struct {
	rest []byte
	room *strings.Builder // for texts, or nil
	err  error
}

func (r *reader) fail(what string) {
	if r.err == nil {
		r.err = errors.New(what)
	}
}

func (r *reader) take(n uint64, what string) []byte {
	if r.err != nil || n > uint64(len(r.rest)) {
		r.fail(what)
		return nil
	}
	b := r.rest[:n:n]
	r.rest = r.rest[n:]
	return b
}

func (r *reader) byte() byte {
	if b := r.take(1, "byte"); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) uint32() uint32 {
	if b := r.take(4, "32-bit field"); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (r *reader) uint64() uint64 {
	if b := r.take(8, "64-bit field"); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.rest)
	if r.err != nil || n <= 0 {
		r.fail("number")
		return 0
	}
	r.rest = r.rest[n:]
	return v
}

func (r *reader) varint() int64 {
	v, n := binary.Varint(r.rest)
	if r.err != nil || n <= 0 {
		r.fail("number")
		return 0
	}
	r.rest = r.rest[n:]
	return v
}

func (r *reader) text() []byte { return r.take(r.uvarint(), "text") }

// texts takes texts that follow each other. They share memory.
func (r *reader) texts(to [5]*string) {
	begin := r.rest
	var ends, lengths [5]int
	for i := range to {
		lengths[i] = len(r.text())
		ends[i] = len(begin) - len(r.rest)
	}
	all := r.keep(begin[:len(begin)-len(r.rest)])
	for i, s := range to {
		*s = all[ends[i]-lengths[i] : ends[i]]
	}
}

// textRoom is how much room is made for texts at once.
const textRoom = 32 << 10

// keep copies texts. What a Builder has given out stays as it is when it grows.
func (r *reader) keep(text []byte) string {
	if r.room == nil || len(text) > textRoom/8 {
		return string(text)
	}
	if r.room.Cap()-r.room.Len() < len(text) {
		r.room.Reset()
		r.room.Grow(textRoom)
	}
	from := r.room.Len()
	r.room.Write(text)
	return r.room.String()[from:]
}

func (r *reader) value() Value {
	switch k := Kind(r.byte()); k {
	case KindNone:
		return Value{}
	case KindBool:
		return Bool(r.byte() != 0)
	case KindInt:
		return Int(r.varint())
	case KindUint:
		return Uint(r.uvarint())
	case KindFloat:
		return Value{kind: KindFloat, bits: r.uint64()}
	case KindString:
		return String(string(r.text()))
	case KindBytes:
		return Bytes(append([]byte(nil), r.text()...))
	default:
		r.fail("kind of value")
		return Value{}
	}
}
