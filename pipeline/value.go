package pipeline

import (
	"math"
	"strconv"
)

// Kind is the type of a Value.
type Kind uint8

// The kinds of a Value. Their numbers stand in stored records (see codec.go) and never change.
const (
	KindNone   Kind = iota // no value: the read failed
	KindBool               // one bit
	KindInt                // signed integer, up to 64 bits
	KindUint               // unsigned integer, up to 64 bits
	KindFloat              // float64; never NaN or an infinity
	KindString             // UTF-8 text
	KindBytes              // payload as it was published: JSON, text or anything
)

// Value is what was read or published. The zero Value is no value. Values are immutable; the bytes given to Bytes must
// not be changed afterwards.
type Value struct {
	kind Kind
	bits uint64
	text string
	raw  []byte
}

// Bool returns true or false as a Value.
func Bool(v bool) Value {
	if v {
		return Value{kind: KindBool, bits: 1}
	}
	return Value{kind: KindBool}
}

// Int returns a signed integer.
func Int(v int64) Value { return Value{kind: KindInt, bits: uint64(v)} }

// Uint returns an unsigned integer.
func Uint(v uint64) Value { return Value{kind: KindUint, bits: v} }

// Float returns v, or no value where v is NaN or infinite: neither has a JSON form, and neither is a measurement.
func Float(v float64) Value {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return Value{}
	}
	return Value{kind: KindFloat, bits: math.Float64bits(v)}
}

// String returns text. It must be valid UTF-8; use Bytes for what may not be.
func String(v string) Value { return Value{kind: KindString, text: v} }

// Bytes returns a payload as it was published.
func Bytes(v []byte) Value { return Value{kind: KindBytes, raw: v} }

// Kind returns the type of v.
func (v Value) Kind() Kind { return v.kind }

// Number returns v as a float64, and whether it is a number. A bool is 0 or 1; a payload or a text counts where all of
// it is one decimal number, as thermometers publish it.
func (v Value) Number() (float64, bool) {
	switch v.kind {
	case KindBool, KindUint:
		return float64(v.bits), true
	case KindInt:
		return float64(int64(v.bits)), true
	case KindFloat:
		return math.Float64frombits(v.bits), true
	case KindString:
		return parseNumber(v.text)
	case KindBytes:
		if len(v.raw) > 40 { // longer than any number worth parsing
			return 0, false
		}
		return parseNumber(string(v.raw))
	default:
		return 0, false
	}
}

func parseNumber(s string) (float64, bool) {
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsNaN(f) || math.IsInf(f, 0) {
		return 0, false
	}
	return f, true
}

// Raw returns the payload of a KindBytes value, nil for every other kind. It must not be changed.
func (v Value) Raw() []byte { return v.raw }

// Text returns v for a person: numbers in decimal, payloads as they are, "" for no value.
func (v Value) Text() string {
	switch v.kind {
	case KindBool:
		return strconv.FormatBool(v.bits == 1)
	case KindInt:
		return strconv.FormatInt(int64(v.bits), 10)
	case KindUint:
		return strconv.FormatUint(v.bits, 10)
	case KindFloat:
		return strconv.FormatFloat(math.Float64frombits(v.bits), 'g', -1, 64)
	case KindString:
		return v.text
	case KindBytes:
		return string(v.raw)
	default:
		return ""
	}
}
