package modbus

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"edgegateway/pipeline"
)

// order says how the bytes of a number lie in its registers. The four orders are named by where the bytes of the 32-bit
// number 0xAABBCCDD stand on the wire. For 64 bits, from 0xAABBCCDDEEFFGGHH, they are ABCDEFGH, GHEFCDAB, BADCFEHG and
// HGFEDCBA; for 16 bits AB, AB, BA and BA.
type order struct {
	swapWords bool // low word first
	swapBytes bool // low byte of each word first
}

var orders = map[string]order{
	"ABCD": {},
	"CDAB": {swapWords: true},
	"BADC": {swapBytes: true},
	"DCBA": {swapWords: true, swapBytes: true},
}

const typeNames = "bool, int16, uint16, int32, uint32, int64, uint64, float32, float64 or string"

// typeWidths gives the registers of each type; bool is one register or one bit, a string has a length of its own.
var typeWidths = map[string]int{
	"bool": 1, "int16": 1, "uint16": 1, "int32": 2, "uint32": 2, "float32": 2, "int64": 4, "uint64": 4, "float64": 4, "string": 1,
}

// number returns the number whose registers are raw, 2, 4 or 8 bytes as they came off the wire.
func (o order) number(raw []byte) uint64 {
	var n uint64
	words := len(raw) / 2
	for i := range words {
		at := i
		if o.swapWords {
			at = words - 1 - i
		}
		word := binary.BigEndian.Uint16(raw[2*at:])
		if o.swapBytes {
			word = word<<8 | word>>8
		}
		n = n<<16 | uint64(word)
	}
	return n
}

// decoder turns the bytes of a point into its value, or says why there is none. Of a register it gets both bytes as they
// came off the wire, of a coil or discrete input one byte, 0 or 1.
type decoder func(raw []byte) (v pipeline.Value, noValue string)

// newDecoder returns the decoder of a point that has passed Check.
func newDecoder(p Point, o order) decoder {
	switch p.Type {
	case "bool":
		return boolDecoder(p, o)
	case "string":
		return func(raw []byte) (pipeline.Value, string) { return pipeline.String(o.text(raw)), "" }
	default:
		return numberDecoder(p, o)
	}
}

func boolDecoder(p Point, o order) decoder {
	mask := uint64(math.MaxUint16)
	if p.Bit >= 0 {
		mask = 1 << p.Bit
	}
	if p.Table == "coil" || p.Table == "discrete" {
		return func(raw []byte) (pipeline.Value, string) { return pipeline.Bool(raw[0] != 0), "" }
	}
	return func(raw []byte) (pipeline.Value, string) { return pipeline.Bool(o.number(raw)&mask != 0), "" }
}

func numberDecoder(p Point, o order) decoder {
	scale := newScaling(p.Scale, p.Offset)
	return func(raw []byte) (pipeline.Value, string) {
		n := o.number(raw)
		if slices.Contains(p.NoValue, n) {
			return pipeline.Value{}, fmt.Sprintf("device has no value (%#x)", n)
		}
		var v pipeline.Value
		switch p.Type {
		case "int16":
			v = scale.int(int64(int16(n)))
		case "int32":
			v = scale.int(int64(int32(n)))
		case "int64":
			v = scale.int(int64(n))
		case "float32":
			v = scale.float(shortest(math.Float32frombits(uint32(n))))
		case "float64":
			v = scale.float(math.Float64frombits(n))
		default: // uint16, uint32, uint64
			v = scale.uint(n)
		}
		if v.Kind() == pipeline.KindNone {
			return v, "value is not a number (NaN) or infinite"
		}
		return v, ""
	}
}

// shortest returns the float64 nearest to the shortest decimal number that stands for f: 239.1 and not
// 239.10000610351562. Converted back it is f again.
func shortest(f float32) float64 {
	text := strconv.AppendFloat(nil, float64(f), 'g', -1, 32)
	v, err := strconv.ParseFloat(string(text), 64)
	if err != nil {
		return float64(f)
	}
	return v
}

// text returns the characters of a string's registers: up to the first NUL, without the blanks and 0xFF that fill it
// up, and with U+FFFD for what is not UTF-8.
func (o order) text(raw []byte) string {
	if o.swapBytes {
		raw = bytes.Clone(raw)
		for i := 0; i+1 < len(raw); i += 2 {
			raw[i], raw[i+1] = raw[i+1], raw[i]
		}
	}
	if end := bytes.IndexByte(raw, 0); end >= 0 {
		raw = raw[:end]
	}
	for len(raw) > 0 && raw[len(raw)-1] == 0xff {
		raw = raw[:len(raw)-1]
	}
	return strings.TrimSpace(strings.ToValidUTF8(string(raw), "\uFFFD"))
}

// scaling is value = raw · factor + offset.
type scaling struct {
	factor, offset float64
	// rounding is 10 to the number of decimals that factor and offset have. A whole number times 0.1 has one decimal:
	// the rest of 23.400000000000002 comes from binary arithmetic and is rounded away. 0 where there are too many.
	rounding float64
}

func newScaling(factor, offset float64) scaling {
	s := scaling{factor: factor, offset: offset}
	if d := max(decimals(factor), decimals(offset)); d <= 9 {
		s.rounding = math.Pow10(d)
	}
	return s
}

func decimals(f float64) int {
	text := strconv.FormatFloat(f, 'f', -1, 64)
	_, fraction, _ := strings.Cut(text, ".")
	return len(fraction)
}

func (s scaling) none() bool { return s.factor == 1 && s.offset == 0 }

func (s scaling) int(n int64) pipeline.Value {
	if s.none() {
		return pipeline.Int(n)
	}
	return s.whole(float64(n))
}

func (s scaling) uint(n uint64) pipeline.Value {
	if s.none() {
		return pipeline.Uint(n)
	}
	return s.whole(float64(n))
}

// exactWhole is the largest number up to which every whole number has a float64.
const exactWhole = 1 << 53

func (s scaling) whole(n float64) pipeline.Value {
	v := n*s.factor + s.offset
	if s.rounding != 0 && math.Abs(v*s.rounding) < exactWhole {
		v = math.Round(v*s.rounding) / s.rounding
	}
	return pipeline.Float(v)
}

func (s scaling) float(f float64) pipeline.Value {
	if s.none() {
		return pipeline.Float(f)
	}
	return pipeline.Float(f*s.factor + s.offset)
}
