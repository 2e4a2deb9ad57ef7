package modbus_test

import (
	"encoding/binary"
	"encoding/hex"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"edgegateway/device/modbus"
	"edgegateway/pipeline"
)

// holding returns a point of the holding registers with the defaults of the config.
func holding(name, kind string, address int) modbus.Point {
	return modbus.Point{Name: name, Table: "holding", Address: address, Type: kind, Bit: -1, Scale: 1, Every: fast}
}

func ordered(kind, order string) modbus.Point {
	p := holding("p", kind, 0)
	p.WordOrder = order
	return p
}

func TestDecodeFixedBytes(t *testing.T) {
	const wire = "1122334455667788"
	tests := []struct {
		kind, order string
		want        uint64 // bits of the number
	}{
		{"uint16", "ABCD", 0x1122},
		{"uint16", "CDAB", 0x1122},
		{"uint16", "BADC", 0x2211},
		{"uint16", "DCBA", 0x2211},
		{"int16", "ABCD", 0x1122},
		{"int16", "CDAB", 0x1122},
		{"int16", "BADC", 0x2211},
		{"int16", "DCBA", 0x2211},
		{"uint32", "ABCD", 0x11223344},
		{"uint32", "CDAB", 0x33441122},
		{"uint32", "BADC", 0x22114433},
		{"uint32", "DCBA", 0x44332211},
		{"int32", "ABCD", 0x11223344},
		{"int32", "CDAB", 0x33441122},
		{"int32", "BADC", 0x22114433},
		{"int32", "DCBA", 0x44332211},
		{"float32", "ABCD", 0x11223344},
		{"float32", "CDAB", 0x33441122},
		{"float32", "BADC", 0x22114433},
		{"float32", "DCBA", 0x44332211},
		{"uint64", "ABCD", 0x1122334455667788},
		{"uint64", "CDAB", 0x7788556633441122},
		{"uint64", "BADC", 0x2211443366558877},
		{"uint64", "DCBA", 0x8877665544332211},
		{"int64", "ABCD", 0x1122334455667788},
		{"int64", "CDAB", 0x7788556633441122},
		{"int64", "BADC", 0x2211443366558877},
		{"int64", "DCBA", 0x8877665544332211},
		{"float64", "ABCD", 0x1122334455667788},
		{"float64", "CDAB", 0x7788556633441122},
		{"float64", "BADC", 0x2211443366558877},
		{"float64", "DCBA", 0x8877665544332211},
	}
	raw, err := hex.DecodeString(wire)
	if err != nil {
		t.Fatal(err)
	}
	bytes := map[string]int{"16": 2, "32": 4, "64": 8}
	for _, tt := range tests {
		t.Run(tt.kind+" "+tt.order, func(t *testing.T) {
			v, noValue := modbus.Decode(ordered(tt.kind, tt.order), raw[:bytes[tt.kind[len(tt.kind)-2:]]])
			n, ok := v.Number()
			switch tt.kind {
			case "uint16", "uint32", "uint64":
				ok = ok && v.Text() == strconv.FormatUint(tt.want, 10)
			case "int16", "int32", "int64": // the sign bit is set in one of them only
				ok = ok && v.Text() == strconv.FormatInt(int64(tt.want), 10)
			case "float32":
				ok = ok && float32(n) == math.Float32frombits(uint32(tt.want))
			case "float64":
				ok = ok && n == math.Float64frombits(tt.want)
			}
			if !ok || noValue != "" {
				t.Errorf("value = %s (%s), want the number of the bits %#x", v.Text(), noValue, tt.want)
			}
		})
	}
}

func TestDecodeOneValue(t *testing.T) {
	scaled := func(kind string, scale, offset float64) modbus.Point {
		p := ordered(kind, "ABCD")
		p.Scale, p.Offset = scale, offset
		return p
	}
	bit := func(n int, order string) modbus.Point {
		p := ordered("bool", order)
		p.Bit = n
		return p
	}
	marked := func(kind string, markers ...uint64) modbus.Point {
		p := ordered(kind, "ABCD")
		p.NoValue = markers
		return p
	}
	coil := ordered("bool", "ABCD")
	coil.Table = "coil"
	tests := []struct {
		name   string
		point  modbus.Point
		raw    string
		want   string
		reason string // part of it, where there is no value
	}{
		{"negative 16-bit number with a scale", scaled("int16", 0.1, 0), "fff3", "-1.3", ""},
		{"the same unsigned", scaled("uint16", 0.1, 0), "fff3", "6552.3", ""},
		{"rounding of binary arithmetic stays hidden", scaled("int16", 0.1, 0), "00ea", "23.4", ""},
		{"scale and offset", scaled("uint16", 0.01, -40), "1f40", "40", ""},
		{"scale above 1", scaled("int32", 10, 0), "fffffff3", "-130", ""},
		{"32-bit float as people write it", ordered("float32", "ABCD"), "436f199a", "239.1", ""},
		{"32-bit float, low word first", ordered("float32", "CDAB"), "199a436f", "239.1", ""},
		{"largest unsigned number", ordered("uint64", "ABCD"), "ffffffffffffffff", "18446744073709551615", ""},
		{"lowest bit of a register", bit(0, "ABCD"), "0001", "true", ""},
		{"bit 8 of a register with swapped bytes", bit(8, "DCBA"), "0001", "true", ""},
		{"bit that is not set", bit(3, "ABCD"), "fff7", "false", ""},
		{"register that is 0 as bool", bit(-1, "ABCD"), "0000", "false", ""},
		{"register that is not 0 as bool", bit(-1, "ABCD"), "8000", "true", ""},
		{"coil that is on", coil, "01", "true", ""},
		{"coil that is off", coil, "00", "false", ""},
		{"marker of a 16-bit number", marked("int16", 0x8000), "8000", "", "no value"},
		{"marker of a 32-bit number", marked("int32", 0x80000000), "80000000", "", "no value"},
		{"second marker", marked("uint32", 1, 0xffffffff), "ffffffff", "", "no value"},
		{"vendor's marker", marked("uint16", 0xc000), "c000", "", "no value"},
		{"number beside the marker", marked("int16", 0x8000), "8001", "-32767", ""},
		{"NaN", ordered("float32", "ABCD"), "7fc00000", "", "NaN"},
		{"positive infinity", ordered("float32", "ABCD"), "7f800000", "", "infinite"},
		{"negative infinity of 64 bits", ordered("float64", "ABCD"), "fff0000000000000", "", "infinite"},
		{"scale that leaves the range of numbers", scaled("float64", 1e300, 0), "7fe0000000000000", "", "infinite"},
		{"text cut at NUL", ordered("string", "ABCD"), "20564e534533002d30", "VNSE3", ""},
		{"text with a tail behind NUL", ordered("string", "ABCD"), "414c44310b000b2a", "ALD1", ""},
		{"text with swapped bytes", ordered("string", "BADC"), "62614463", "abcD", ""},
		{"text filled up with 0xFF", ordered("string", "ABCD"), "4142ffff", "AB", ""},
		{"text that is not UTF-8", ordered("string", "ABCD"), "41ff4200", "A\uFFFDB", ""},
		{"text in UTF-8", ordered("string", "ABCD"), "c2b04320", "°C", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			raw, err := hex.DecodeString(tt.raw)
			if err != nil {
				t.Fatal(err)
			}
			v, noValue := modbus.Decode(tt.point, raw)
			if v.Text() != tt.want || (noValue == "") != (tt.reason == "") || !strings.Contains(noValue, tt.reason) {
				t.Errorf("Decode(%s) = %q, reason %q, want %q, reason with %q", tt.raw, v.Text(), noValue, tt.want, tt.reason)
			}
		})
	}
}

// encode lays a number out as a device with that order does, written from the definition of the orders' names.
func encode(n uint64, size int, order string) []byte {
	big := binary.BigEndian.AppendUint64(nil, n)[8-size:]
	out := make([]byte, 0, size)
	switch order {
	case "ABCD":
		return append(out, big...)
	case "DCBA":
		for i := size - 1; i >= 0; i-- {
			out = append(out, big[i])
		}
	case "CDAB":
		for i := size - 2; i >= 0; i -= 2 {
			out = append(out, big[i], big[i+1])
		}
	case "BADC":
		for i := 0; i < size; i += 2 {
			out = append(out, big[i+1], big[i])
		}
	}
	return out
}

func TestDecodeReturnsWhatWasEncoded(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, order := range []string{"ABCD", "CDAB", "BADC", "DCBA"} {
		for range 2000 {
			n := random.Uint64() >> random.UintN(64)
			f64, f32 := math.Float64frombits(n), math.Float32frombits(uint32(n))
			tests := []struct {
				kind string
				size int
				want pipeline.Value
			}{
				{"uint16", 2, pipeline.Uint(uint64(uint16(n)))},
				{"int16", 2, pipeline.Int(int64(int16(n)))},
				{"uint32", 4, pipeline.Uint(uint64(uint32(n)))},
				{"int32", 4, pipeline.Int(int64(int32(n)))},
				{"uint64", 8, pipeline.Uint(n)},
				{"int64", 8, pipeline.Int(int64(n))},
				{"float64", 8, pipeline.Float(f64)},
			}
			for _, tt := range tests {
				got, _ := modbus.Decode(ordered(tt.kind, order), encode(n, tt.size, order))
				if got.Kind() != tt.want.Kind() || got.Text() != tt.want.Text() {
					t.Fatalf("%s %s %#x = %s, want %s", tt.kind, order, n, got.Text(), tt.want.Text())
				}
			}
			got, noValue := modbus.Decode(ordered("float32", order), encode(uint64(uint32(n)), 4, order))
			if back, ok := got.Number(); ok && float32(back) != f32 {
				t.Fatalf("float32 %s %#x = %v, want %v", order, uint32(n), back, f32)
			} else if !ok && noValue == "" {
				t.Fatalf("float32 %s %#x has neither a value nor a reason", order, uint32(n))
			}
		}
	}
}

func TestTextIsAlwaysClean(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 5000 {
		raw := make([]byte, 2*random.IntN(8))
		for i := range raw {
			raw[i] = byte(random.Uint32())
		}
		for _, order := range []string{"ABCD", "BADC"} {
			v, _ := modbus.Decode(ordered("string", order), raw)
			if s := v.Text(); !utf8.ValidString(s) || strings.ContainsRune(s, 0) {
				t.Fatalf("text of %x in %s is %q", raw, order, s)
			}
		}
	}
}
