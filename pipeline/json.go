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
	if isPlain(id.Gateway) && isPlain(id.Stream) {
		dst = append(id.append(append(dst, `{"id":"`...)), '"')
	} else {
		dst = appendJSONText(append(dst, `{"id":`...), id.String())
	}
	dst = appendJSONText(append(dst, `,"gateway":`...), id.Gateway)
	dst = appendJSONText(append(dst, `,"stream":`...), id.Stream)
	dst = strconv.AppendUint(append(dst, `,"epoch":`...), id.Epoch, 10)
	dst = strconv.AppendUint(append(dst, `,"seq":`...), id.Seq, 10)
	dst = append(dst, `,"time":"`...)
	dst = m.Time.UTC().AppendFormat(dst, time.RFC3339Nano)
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
