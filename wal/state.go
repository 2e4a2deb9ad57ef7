package wal

import (
	"encoding/binary"
	"fmt"
	"hash/crc64"
	"math"
	"slices"
	"strings"
	"time"
)

// Bounds of the state of a lane.
const (
	maxState       = 4 << 20
	maxLetters     = 1 << 20
	maxRanges      = 256
	maxName        = 255 // bytes of a stream's or an uplink's name
	maxReason      = 1024
	stateOverhead  = 32 // bytes that a pair takes beyond its key and value
	maxKey         = 1024
	letterOverhead = 64
)

// The first byte of a key in bucket s says what it is.
const (
	keyUser   = 'u' // u KEY → value of Batch.State
	keyStream = 's' // s NAME → number
	keyCursor = 'k' // k ID → stream, uplink
	keyLetter = 'd' // d NUMBER (big endian) → dead letter
	keyRange  = 'r' // r NUMBER (big endian) → dropped range
	keyTold   = 'g' // g STREAM NUMBER → refused records of it that gap records have told of
)

// DeadLetter is a record that an uplink refused for good.
type DeadLetter struct {
	Number  uint64 // grows with each dead letter of the lane
	Uplink  string
	Stream  string
	Seq     uint64
	Time    time.Time // of the record
	Refused time.Time
	Reason  string
	Data    []byte
	// Driver and Attempts are those of the Refusal.
	Driver   string
	Attempts int

	gone   bool   // counted only: too many came before a commit could be made
	cursor uint32 // that refused it, and the record's position; known until it is stored
	pos    uint64
}

// Refusal says why an uplink refused a record for good.
type Refusal struct {
	Reason   string
	Driver   string // kind of uplink; empty where nobody said
	Attempts int    // how often the far side has refused it, this time included; 0 where it was never asked
}

// DropReason says why records went before every cursor had passed them.
type DropReason uint8

// The reasons.
const (
	DroppedFull    DropReason = 1 // max_bytes or a full disk, policy drop_oldest
	DroppedAge     DropReason = 2 // max_age
	DroppedMissing DropReason = 3 // the oldest segments were missing when the log was opened
	Refused        DropReason = 4 // drop_newest; only in gap records, because what was refused has no number
	DroppedDamaged DropReason = 5 // lost with a damaged file, and left out when the log was salvaged
)

// String returns the reason as a word of the config file.
func (r DropReason) String() string {
	switch r {
	case DroppedFull:
		return "drop_oldest"
	case DroppedAge:
		return "max_age"
	case DroppedMissing:
		return "missing"
	case Refused:
		return "drop_newest"
	case DroppedDamaged:
		return "damaged"
	}
	return fmt.Sprintf("reason(%d)", uint8(r))
}

// DropRange is a range of records that went before every cursor had passed them.
type DropRange struct {
	Stream      string
	First, Last uint64
	Count       uint64 // of the records
	When        time.Time
	Why         DropReason
}

// encodeLetter writes a letter for a segment of a version.
func encodeLetter(l *DeadLetter, version uint64) []byte {
	b := appendBytes(nil, l.Uplink)
	b = appendBytes(b, l.Stream)
	b = binary.AppendUvarint(b, l.Seq)
	b = binary.AppendVarint(b, nanos(l.Time))
	b = binary.AppendVarint(b, nanos(l.Refused))
	b = appendBytes(b, l.Reason)
	b = appendBytes(b, l.Data)
	if version < versionLetters || l.Driver == "" && l.Attempts == 0 {
		return b
	}
	b = binary.AppendUvarint(b, uint64(max(l.Attempts, 0)))
	return appendBytes(b, l.Driver)
}

func decodeLetter(key string, b []byte) (DeadLetter, error) {
	d := decoder{b: b}
	l := DeadLetter{
		Uplink: string(d.bytes()), Stream: string(d.bytes()), Seq: d.uvarint(),
		Time: time.Unix(0, d.varint()), Refused: time.Unix(0, d.varint()), Reason: string(d.bytes()), Data: d.bytes(),
	}
	if len(d.b) > 0 {
		l.Attempts, l.Driver = int(min(d.uvarint(), math.MaxInt32)), string(d.bytes())
	}
	if len(key) != 9 {
		d.fail()
	} else {
		l.Number = binary.BigEndian.Uint64([]byte(key[1:]))
	}
	return l, d.end("dead letter")
}

func encodeRange(stream uint32, r *DropRange) []byte {
	b := binary.AppendUvarint(nil, uint64(stream))
	b = binary.AppendUvarint(b, r.First)
	b = binary.AppendUvarint(b, r.Last)
	b = binary.AppendVarint(b, nanos(r.When))
	return append(b, byte(r.Why))
}

func decodeRange(b []byte) (uint32, DropRange, error) {
	d := decoder{b: b}
	stream := d.uint32()
	r := DropRange{First: d.uvarint(), Last: d.uvarint(), When: time.Unix(0, d.varint())}
	if why := d.take(1); len(why) == 1 {
		r.Why = DropReason(why[0])
	}
	r.Count = r.Last - r.First + 1
	return stream, r, d.end("dropped range")
}

func numberedKey(kind byte, n uint64) string {
	return string(binary.BigEndian.AppendUint64([]byte{kind}, n))
}

// cursorName is whose cursor it is.
type cursorName struct {
	uplink string
	stream uint32
}

func (n cursorName) encode() []byte {
	return append(binary.AppendUvarint(nil, uint64(n.stream)), n.uplink...)
}

// letterID names a dead letter, so that a record that is refused again after a crash is kept once.
type letterID struct {
	uplink, stream string
	seq            uint64
}

// store is bucket s in memory: the pairs as they lie in the file, and what is derived from them.
type store struct {
	raw         map[string][]byte
	bytes       int    // of all pairs
	sum         uint64 // checksum over all pairs, in no order
	letterBytes int    // of it dead letters
	names       []string
	numbers     map[string]uint32
	cursors     map[uint32]cursorName
	until       map[uint32]uint64 // by the first cursor of a split: the record that it ends at
	letters     []uint64          // numbers, oldest first
	letterIDs   map[letterID]uint64
	ranges      []uint64 // numbers, oldest first
	told        map[uint32]uint64
}

func newStore() store {
	return store{
		raw: map[string][]byte{}, numbers: map[string]uint32{}, cursors: map[uint32]cursorName{},
		letterIDs: map[letterID]uint64{}, told: map[uint32]uint64{},
	}
}

var sumTable = crc64.MakeTable(crc64.ECMA)

// pairSum is what a pair adds to the checksum of the state.
func pairSum(key string, value []byte) uint64 {
	sum := crc64.Update(uint64(len(key)), sumTable, []byte(key))
	return crc64.Update(sum, sumTable, value)
}

func pairSize(key string, value []byte) int { return len(key) + len(value) + stateOverhead }

// apply makes a committed change in memory. Keys of each kind come in ascending order of their numbers.
func (s *store) apply(ch Change) error {
	if len(ch.Key) == 0 {
		return fmt.Errorf("%w: empty key in the state", ErrDamaged)
	}
	old, had := s.raw[ch.Key]
	if err := s.index(ch, old); err != nil {
		return err
	}
	size := 0
	if had {
		size -= pairSize(ch.Key, old)
		s.sum -= pairSum(ch.Key, old)
	}
	if ch.Value == nil {
		delete(s.raw, ch.Key)
	} else {
		size += pairSize(ch.Key, ch.Value)
		s.sum += pairSum(ch.Key, ch.Value)
		s.raw[ch.Key] = ch.Value
	}
	s.bytes += size
	if ch.Key[0] == keyLetter {
		s.letterBytes += size
	}
	return nil
}

// sumAfter returns what the checksum will be after changes.
func (s *store) sumAfter(changes []Change) uint64 {
	sum := s.sum
	var now map[string][]byte // what the changes have set so far
	for _, ch := range changes {
		old, known := now[ch.Key]
		if !known {
			old = s.raw[ch.Key]
		}
		if old != nil {
			sum -= pairSum(ch.Key, old)
		}
		if ch.Value != nil {
			sum += pairSum(ch.Key, ch.Value)
		}
		if len(changes) > 1 {
			if now == nil {
				now = make(map[string][]byte, len(changes))
			}
			now[ch.Key] = ch.Value
		}
	}
	return sum
}

func (s *store) index(ch Change, old []byte) error {
	switch ch.Key[0] {
	case keyStream:
		d := decoder{b: ch.Value}
		n := d.uint32()
		if err := d.end("stream number"); err != nil {
			return err
		}
		if n > 1<<20 {
			return fmt.Errorf("%w: stream number %d", ErrDamaged, n)
		}
		for uint32(len(s.names)) <= n {
			s.names = append(s.names, "")
		}
		s.names[n], s.numbers[ch.Key[1:]] = ch.Key[1:], n
	case keyCursor:
		d := decoder{b: []byte(ch.Key[1:])}
		id := d.uint32()
		if ch.Value == nil {
			delete(s.cursors, id)
			s.until = splitEnds(s.cursors)
			return d.end("cursor id")
		}
		v := decoder{b: ch.Value, err: d.end("cursor id")}
		s.cursors[id] = cursorName{stream: v.uint32(), uplink: string(v.b)}
		s.until = splitEnds(s.cursors)
		v.b = nil
		return v.end("cursor name")
	case keyLetter:
		return s.indexLetter(ch, old)
	case keyRange:
		if len(ch.Key) != 9 {
			return fmt.Errorf("%w: key of a dropped range", ErrDamaged)
		}
		s.ranges = reindex(s.ranges, binary.BigEndian.Uint64([]byte(ch.Key[1:])), ch.Value != nil)
	case keyTold:
		return s.indexTold(ch)
	case keyUser:
	default:
		return fmt.Errorf("%w: unknown key %q in the state", ErrDamaged, ch.Key)
	}
	return nil
}

func (s *store) indexLetter(ch Change, old []byte) error {
	value := ch.Value
	if value == nil {
		value = old
	}
	l, err := decodeLetter(ch.Key, value)
	if err != nil {
		return err
	}
	id := letterID{l.Uplink, l.Stream, l.Seq}
	if ch.Value == nil {
		delete(s.letterIDs, id)
	} else {
		s.letterIDs[id] = l.Number
	}
	s.letters = reindex(s.letters, l.Number, ch.Value != nil)
	return nil
}

// reindex adds n at the end, or takes it out; what goes is nearly always the first.
func reindex(list []uint64, n uint64, add bool) []uint64 {
	if add {
		return append(list, n)
	}
	if i := slices.Index(list, n); i >= 0 {
		return slices.Delete(list, i, i+1)
	}
	return list
}

// user returns the pairs of Batch.State whose key has the prefix.
func (s *store) user(prefix string) map[string][]byte {
	out := map[string][]byte{}
	for k, v := range s.raw {
		if k[0] == keyUser && strings.HasPrefix(k[1:], prefix) {
			out[k[1:]] = v
		}
	}
	return out
}
