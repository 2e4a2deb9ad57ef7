package pipeline_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"edgegateway/pipeline"
)

// A writer makes of each record what a new one would, whatever came before it.
func TestJSONWriterKeepsNothing(t *testing.T) {
	for _, name := range []string{"gw1", "grün", "a\"b", "\xff"} {
		w := pipeline.NewJSONWriter(name, "line "+name, 7)
		for seq := range uint64(3000) {
			m := full()
			m.Time = time.Unix(rand.Int64N(1<<33)-1<<32, rand.Int64N(1e9)) // 1833 to 2106, in the zone of the machine
			switch seq % 4 {
			case 1:
				m.Time = m.Time.Truncate(time.Second)
			case 2:
				m.Time = m.Time.Truncate(10 * time.Millisecond)
			default:
			}
			got := w.Append(nil, seq, &m)
			want := pipeline.AppendJSON(nil, pipeline.RecordID{Gateway: name, Stream: "line " + name, Epoch: 7, Seq: seq}, &m)
			if string(got) != string(want) {
				t.Fatalf("record %d: got  %s\nwant %s", seq, got, want)
			}
			var object struct {
				ID, Time string
				Seq      uint64
			}
			if err := json.Unmarshal(got, &object); err != nil {
				t.Fatalf("%v: %s", err, got)
			}
			id := strings.ToValidUTF8(name, "�")
			if text := m.Time.UTC().Format(time.RFC3339Nano); object.Time != text || object.Seq != seq || object.ID != fmt.Sprintf("%s/line %s/7/%d", id, id, seq) {
				t.Fatalf("record %d of %s has %+v, and its time is %s", seq, name, object, text)
			}
		}
	}
}

// Wherever a character stands that JSON does not have as it is, it is set so that the text can be had back.
func TestJSONTextsOfAllLengths(t *testing.T) {
	for n := range 40 {
		for at := range n {
			for c := range 0x100 {
				text := strings.Repeat("~", at) + string(rune(c)) + strings.Repeat(" ", n-at-1)
				m := pipeline.Message{Topic: text}
				var object struct{ Topic string }
				if err := json.Unmarshal(pipeline.AppendJSON(nil, pipeline.RecordID{}, &m), &object); err != nil || object.Topic != text {
					t.Fatalf("%q became %q, %v", text, object.Topic, err)
				}
			}
		}
	}
}

// Messages of one decoder share memory, and each keeps what it has when others come.
func TestDecoderKeepsTexts(t *testing.T) {
	var d pipeline.Decoder
	messages := make([]pipeline.Message, 5000)
	topic := func(i int) string { return fmt.Sprintf("%d/%s", i, strings.Repeat("x", i%7000)) }
	for i := range messages {
		m := full()
		m.Topic, m.Value = topic(i), pipeline.String(topic(i))
		data := pipeline.Encode(nil, &m)
		if err := d.Decode(&messages[i], data); err != nil {
			t.Fatal(err)
		}
		clear(data)
	}
	for i, m := range messages {
		if want := full(); m.Topic != topic(i) || m.Value.Text() != topic(i) || m.Unit != want.Unit || m.Source != want.Source || !m.Time.Equal(want.Time) {
			t.Fatalf("message %d became %+v", i, m)
		}
	}
	m := full()
	if err := d.Decode(&m, []byte{1, 0}); err == nil || m.Topic != "" || m.Headers != nil {
		t.Errorf("half a message: %v, %+v", err, m)
	}
}

func BenchmarkDecoderAndJSONWriter(b *testing.B) {
	m := full()
	data := pipeline.Encode(nil, &m)
	buf := make([]byte, 0, 1024)
	w := pipeline.NewJSONWriter("g", "s", 1)
	var d pipeline.Decoder
	b.ReportAllocs()
	for b.Loop() {
		if err := d.Decode(&m, data); err != nil {
			b.Fatal(err)
		}
		buf = w.Append(buf[:0], 1, &m)
	}
}
