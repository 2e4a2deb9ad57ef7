package pipeline_test

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"edgegateway/pipeline"
)

var update = flag.Bool("update", false, "write the golden files")

var at = time.Date(2026, 11, 29, 12, 0, 0, 123456789, time.UTC)

func full() pipeline.Message {
	return pipeline.Message{
		Time: at, Source: "boiler", Topic: "boiler/kettle/water", Key: "k", Unit: "°C", Quality: pipeline.Uncertain, Reason: "because",
		Headers: []pipeline.Header{{Name: "content-type", Value: "text/plain"}, {Name: "a", Value: ""}},
		Value:   pipeline.Float(82.5),
		Clock:   pipeline.Clock{Boot: 0xdeadbeef, Offset: 90 * time.Second, Trusted: true},
	}
}

var values = map[string]pipeline.Value{
	"none": {}, "false": pipeline.Bool(false), "true": pipeline.Bool(true),
	"smallest int": pipeline.Int(math.MinInt64), "largest uint": pipeline.Uint(math.MaxUint64),
	"float": pipeline.Float(-0.1), "text": pipeline.String("grün"), "payload": pipeline.Bytes([]byte{0, 0xff, 'a'}), "empty payload": pipeline.Bytes([]byte{}),
}

func TestDecodeGivesBackWhatWasEncoded(t *testing.T) {
	for name, v := range values {
		t.Run(name, func(t *testing.T) {
			want := full()
			want.Value = v
			got, err := pipeline.Decode(pipeline.Encode(nil, &want))
			if err != nil {
				t.Fatal(err)
			}
			if v.Kind() == pipeline.KindBytes {
				if !bytes.Equal(got.Value.Raw(), v.Raw()) {
					t.Errorf("payload = %x, want %x", got.Value.Raw(), v.Raw())
				}
				got.Value, want.Value = pipeline.Value{}, pipeline.Value{}
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
		})
	}
}

func TestEveryCutOfAMessageIsRefused(t *testing.T) {
	m := full()
	data := pipeline.Encode(nil, &m)
	for n := range data {
		if _, err := pipeline.Decode(data[:n]); !errors.Is(err, pipeline.ErrCodec) {
			t.Errorf("first %d of %d bytes: error %v, want ErrCodec", n, len(data), err)
		}
	}
	if _, err := pipeline.Decode(append(data, 0)); !errors.Is(err, pipeline.ErrCodec) {
		t.Errorf("a byte too many: error %v, want ErrCodec", err)
	}
}

// A log outlives the build that wrote it: this file was written by the first one and must stay readable.
func TestDecodeReadsTheFirstVersion(t *testing.T) {
	golden := filepath.Join("testdata", "message-v1.hex")
	want := full()
	if *update {
		if err := os.WriteFile(golden, []byte(hex.EncodeToString(pipeline.Encode(nil, &want))+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	data, err := hex.DecodeString(string(bytes.TrimSpace(text)))
	if err != nil {
		t.Fatal(err)
	}
	got, err := pipeline.Decode(data)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v\nwant %+v", got, err, want)
	}
}

func FuzzDecode(f *testing.F) {
	for _, v := range values {
		m := full()
		m.Value = v
		f.Add(pipeline.Encode(nil, &m))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := pipeline.Decode(data)
		if err != nil {
			return
		}
		if text := pipeline.AppendJSON(nil, pipeline.RecordID{}, &m); !json.Valid(text) {
			t.Errorf("not JSON: %s", text)
		}
		again, err := pipeline.Decode(pipeline.Encode(nil, &m))
		if err != nil || again.Topic != m.Topic || again.Value.Text() != m.Value.Text() {
			t.Errorf("%+v became %+v, %v", m, again, err)
		}
	})
}

var jsonValueTests = []struct {
	name  string
	value pipeline.Value
	want  string
}{
	{"no value", pipeline.Value{}, `null`},
	{"a bool", pipeline.Bool(true), `true`},
	{"a negative integer", pipeline.Int(-7), `-7`},
	{"the largest unsigned integer keeps its digits", pipeline.Uint(math.MaxUint64), `18446744073709551615`},
	{"a float", pipeline.Float(0.1), `0.1`},
	{"a large float", pipeline.Float(1e300), `1e+300`},
	{"not a number is no value", pipeline.Float(math.NaN()), `null`},
	{"text with quotes", pipeline.String("a\"b\n"), `"a\"b\n"`},
	{"a JSON object stays as it was published", pipeline.Bytes([]byte(`{"a": 1.10}`)), `{"a": 1.10}`},
	{"a JSON payload with line breaks becomes one line", pipeline.Bytes([]byte("{\n \"a\": 1.10\n}")), `{"a":1.10}`},
	{"a number published as text is a number", pipeline.Bytes([]byte(`21.50`)), `21.50`},
	{"text that is no JSON", pipeline.Bytes([]byte(`on`)), `"on","encoding":"text"`},
	{"an empty payload", pipeline.Bytes(nil), `"","encoding":"text"`},
	{"bytes", pipeline.Bytes([]byte{0xff, 0}), `"/wA=","encoding":"base64"`},
}

func TestAppendJSONValue(t *testing.T) {
	for _, tt := range jsonValueTests {
		t.Run(tt.name, func(t *testing.T) {
			m := pipeline.Message{Time: at, Source: "s", Topic: "t", Value: tt.value, Clock: pipeline.Clock{Trusted: true}}
			got := string(pipeline.AppendJSON(nil, pipeline.RecordID{Gateway: "g", Stream: "s", Epoch: 2, Seq: 3}, &m))
			want := `{"id":"g/s/2/3","gateway":"g","stream":"s","epoch":2,"seq":3,"time":"2026-11-29T12:00:00.123456789Z",` +
				`"source":"s","topic":"t","value":` + tt.want + `,"quality":"good"}`
			if got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
			if !json.Valid([]byte(got)) {
				t.Error("not JSON")
			}
		})
	}
}

func TestAppendJSONOptionalMembers(t *testing.T) {
	m := full()
	m.Clock.Trusted = false
	got := string(pipeline.AppendJSON(nil, pipeline.RecordID{Gateway: "g", Stream: "s", Epoch: 2, Seq: 3}, &m))
	want := `{"id":"g/s/2/3","gateway":"g","stream":"s","epoch":2,"seq":3,"time":"2026-11-29T12:00:00.123456789Z",` +
		`"source":"boiler","topic":"boiler/kettle/water","key":"k","value":82.5,"unit":"\u00b0C","quality":"uncertain","reason":"because",` +
		`"time_trusted":false,"boot":3735928559,"uptime_ns":90000000000,` +
		`"headers":[{"name":"content-type","value":"text/plain"},{"name":"a","value":""}]}`
	var a, b any
	if err := json.Unmarshal([]byte(got), &a); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(want), &b); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(a, b) {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// The published bytes can be had back from the JSON, whatever they were.
func FuzzPayloadCanBeHadBack(f *testing.F) {
	for _, tt := range jsonValueTests {
		f.Add(tt.value.Raw())
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		m := pipeline.Message{Value: pipeline.Bytes(payload)}
		var got struct {
			Value    json.RawMessage
			Encoding string
		}
		if err := json.Unmarshal(pipeline.AppendJSON(nil, pipeline.RecordID{}, &m), &got); err != nil {
			t.Fatal(err)
		}
		var text string
		switch got.Encoding {
		case "text", "base64":
			if err := json.Unmarshal(got.Value, &text); err != nil {
				t.Fatal(err)
			}
			back := []byte(text)
			if got.Encoding == "base64" {
				var err error
				if back, err = base64.StdEncoding.DecodeString(text); err != nil {
					t.Fatal(err)
				}
			}
			if !bytes.Equal(back, payload) {
				t.Errorf("%q came back as %q (%s)", payload, back, got.Encoding)
			}
		default:
			var was, is bytes.Buffer
			if err := errors.Join(json.Compact(&was, payload), json.Compact(&is, got.Value)); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(was.Bytes(), is.Bytes()) {
				t.Errorf("%q came back as %q", payload, got.Value)
			}
		}
	})
}

func BenchmarkEncode(b *testing.B) {
	m := full()
	buf := make([]byte, 0, 512)
	b.ReportAllocs()
	for b.Loop() {
		buf = pipeline.Encode(buf[:0], &m)
	}
}

func BenchmarkDecodeAndJSON(b *testing.B) {
	m := full()
	data := pipeline.Encode(nil, &m)
	buf := make([]byte, 0, 1024)
	b.ReportAllocs()
	for b.Loop() {
		got, err := pipeline.Decode(data)
		if err != nil {
			b.Fatal(err)
		}
		buf = pipeline.AppendJSON(buf[:0], pipeline.RecordID{Gateway: "g", Stream: "s", Epoch: 1, Seq: 1}, &got)
	}
}
