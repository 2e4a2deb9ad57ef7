package pipeline

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"math"
	"strconv"
	"time"
	"unicode/utf8"
)

// AppendJSON appends the JSON object that the far side gets for a record. Its members and their order are stable;
// docs/payload.md describes them for the people who consume it. Members are only ever added.
func AppendJSON(dst []byte, id RecordID, m *Message) []byte {
	w := JSONWriter{}
	w.begin(id.Gateway, id.Stream, id.Epoch)
	return w.Append(dst, id.Seq, m)
}

// JSONWriter is AppendJSON for many records of one stream. What they have in common is made once. It is for one goroutine at a time.
type JSONWriter struct {
	head, middle []byte // what stands before the sequence, which comes twice
	day          int64  // days since 1970, of the date that is made
	date         []byte // such as 2006-01-02T; empty for none
}

// NewJSONWriter returns a writer for a stream.
func NewJSONWriter(gateway, stream string, epoch uint64) *JSONWriter {
	w := &JSONWriter{}
	w.begin(gateway, stream, epoch)
	return w
}

func (w *JSONWriter) begin(gateway, stream string, epoch uint64) {
	var room [128]byte
	id := append(append(append(room[:0], gateway...), '/'), stream...)
	id = append(strconv.AppendUint(append(id, '/'), epoch, 10), '/')
	head := appendJSONText(append(make([]byte, 0, 192), `{"id":`...), string(id))
	w.head = head[:len(head)-1] // it goes on with the sequence
	w.middle = appendJSONText(append(make([]byte, 0, 128), `","gateway":`...), gateway)
	w.middle = appendJSONText(append(w.middle, `,"stream":`...), stream)
	w.middle = strconv.AppendUint(append(w.middle, `,"epoch":`...), epoch, 10)
	w.middle = append(w.middle, `,"seq":`...)
}

// Append appends what AppendJSON does for the record with this sequence.
func (w *JSONWriter) Append(dst []byte, seq uint64, m *Message) []byte {
	dst = append(dst, w.head...)
	begin := len(dst)
	dst = strconv.AppendUint(dst, seq, 10)
	end := len(dst)
	dst = append(append(dst, w.middle...), dst[begin:end]...)
	dst = append(dst, `,"time":"`...)
	dst = w.appendTime(dst, m.Time)
	dst = appendJSONText(append(dst, `","source":`...), m.Source)
	dst = appendJSONText(append(dst, `,"topic":`...), m.Topic)
	if m.Key != "" {
		dst = appendJSONText(append(dst, `,"key":`...), m.Key)
	}
	dst = appendJSONValue(dst, m.Value)
	if m.Unit != "" {
		dst = appendJSONText(append(dst, `,"unit":`...), m.Unit)
	}
	dst = appendJSONText(append(dst, `,"quality":`...), m.Quality.String())
	if m.Reason != "" {
		dst = appendJSONText(append(dst, `,"reason":`...), m.Reason)
	}
	if !m.Clock.Trusted {
		dst = append(dst, `,"time_trusted":false,"boot":`...)
		dst = strconv.AppendUint(dst, uint64(m.Clock.Boot), 10)
		dst = strconv.AppendInt(append(dst, `,"uptime_ns":`...), int64(m.Clock.Offset), 10)
	}
	if len(m.Headers) > 0 {
		dst = append(dst, `,"headers":[`...)
		for i, h := range m.Headers {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = appendJSONText(append(dst, `{"name":`...), h.Name)
			dst = appendJSONText(append(dst, `,"value":`...), h.Value)
			dst = append(dst, '}')
		}
		dst = append(dst, ']')
	}
	return append(dst, '}')
}

// appendTime appends a time in UTC as time.RFC3339Nano has it. Only the date takes long to find, and it is mostly that of the last one.
func (w *JSONWriter) appendTime(dst []byte, at time.Time) []byte {
	const secondsOfDay = 24 * 60 * 60
	day, second := at.Unix()/secondsOfDay, at.Unix()%secondsOfDay
	if second < 0 {
		day, second = day-1, second+secondsOfDay
	}
	if len(w.date) == 0 || day != w.day {
		w.day, w.date = day, at.UTC().AppendFormat(w.date[:0], "2006-01-02T")
	}
	dst = append(dst, w.date...)
	dst = append(appendTwo(dst, second/3600), ':')
	dst = append(appendTwo(dst, second/60%60), ':')
	dst = appendTwo(dst, second%60)
	if nano := at.Nanosecond(); nano > 0 {
		var digits [10]byte
		digits[0] = '.'
		for i := 9; i > 0; i-- {
			digits[i] = byte('0' + nano%10)
			nano /= 10
		}
		n := 10
		for digits[n-1] == '0' {
			n--
		}
		dst = append(dst, digits[:n]...)
	}
	return append(dst, 'Z')
}

func appendTwo(dst []byte, n int64) []byte { return append(dst, byte('0'+n/10), byte('0'+n%10)) }

// appendJSONValue writes `,"value":…`, and `,"encoding":…` for a payload that is not JSON itself, so that the published
// bytes can be had back from it.
func appendJSONValue(dst []byte, v Value) []byte {
	dst = append(dst, `,"value":`...)
	switch v.kind {
	case KindBool:
		return strconv.AppendBool(dst, v.bits == 1)
	case KindInt:
		return strconv.AppendInt(dst, int64(v.bits), 10)
	case KindUint:
		return strconv.AppendUint(dst, v.bits, 10)
	case KindFloat:
		f := math.Float64frombits(v.bits)
		if math.IsNaN(f) || math.IsInf(f, 0) { // only from a record that no Float made
			return append(dst, `null`...)
		}
		return strconv.AppendFloat(dst, f, 'g', -1, 64)
	case KindString:
		return appendJSONText(dst, v.text)
	case KindBytes:
		return appendJSONPayload(dst, v.raw)
	default:
		return append(dst, `null`...)
	}
}

func appendJSONPayload(dst, raw []byte) []byte {
	switch {
	case !utf8.Valid(raw):
		dst = append(dst, '"')
		dst = base64.StdEncoding.AppendEncode(dst, raw)
		return append(dst, `","encoding":"base64"`...)
	case json.Valid(raw):
		// One record is one line for whoever reads JSON lines: a payload's own line breaks must go.
		if bytes.IndexByte(raw, '\n') < 0 && bytes.IndexByte(raw, '\r') < 0 {
			return append(dst, raw...)
		}
		var line bytes.Buffer
		_ = json.Compact(&line, raw) // cannot fail: raw is valid
		return append(dst, line.Bytes()...)
	default:
		return append(appendJSONText(dst, string(raw)), `,"encoding":"text"`...)
	}
}

// appendJSONText appends s as a JSON string. Nearly all texts are plain and go in as they are.
func appendJSONText(dst []byte, s string) []byte {
	if !isPlain(s) {
		quoted, err := json.Marshal(s)
		if err != nil { // a string always marshals
			return append(dst, `""`...)
		}
		return append(dst, quoted...)
	}
	dst = append(append(dst, '"'), s...)
	return append(dst, '"')
}

// isPlain reports whether JSON has a text as it is.
func isPlain(s string) bool {
	for len(s) >= 8 { // eight at once, as long as they are plain ASCII
		w := uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 | uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
		const one, high = 0x0101010101010101, 0x8080808080808080
		if (w|(w-' '*one)|((w^'"'*one)-one)|((w^'\\'*one)-one)|(w+one))&high != 0 {
			return isPlainEach(s)
		}
		s = s[8:]
	}
	return isPlainEach(s)
}

func isPlainEach(s string) bool {
	ascii := true
	for i := range len(s) {
		c := s[i]
		if c < ' ' || c == '"' || c == '\\' || c == 0x7f {
			return false
		}
		ascii = ascii && c < utf8.RuneSelf
	}
	return ascii || utf8.ValidString(s)
}
