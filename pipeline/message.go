package pipeline

import (
	"strconv"
	"time"
)

// Quality says how far a message's value can be trusted. The zero value is Good.
type Quality uint8

// The three qualities, as in OPC UA (Part 8, data value status): a consumer that bills or protects uses Good only.
const (
	Good      Quality = iota // read without an error
	Uncertain                // read, but something about it is doubtful; Message.Reason says what
	Bad                      // not read: there is no value; Message.Reason says why
)

var qualityNames = [...]string{Good: "good", Uncertain: "uncertain", Bad: "bad"}

// String returns the name that stands in the JSON sent to the far side: "good", "uncertain" or "bad".
func (q Quality) String() string {
	if int(q) < len(qualityNames) {
		return qualityNames[q]
	}
	return "quality(" + strconv.Itoa(int(q)) + ")"
}

// Header is one name and value that travels with a message, such as an MQTT 5 user property.
type Header struct {
	Name, Value string
}

// Message is one thing that a source produced: a reading of a point, or a publish of an MQTT client.
type Message struct {
	// Time is when the value was true: for a poll the middle of request and reply, for a publish its arrival.
	// Order never follows from it (DESIGN.md 3.12).
	Time time.Time
	// Source is the name of the device in the config.
	Source string
	// Topic is the slash-separated path, DEVICE/UNIT/POINT for a poll and the published topic for MQTT.
	Topic string
	// Key chooses a partition at the far side. Empty means Topic.
	Key     string
	Headers []Header
	Value   Value
	// Unit is the unit of measurement, such as "°C". Empty where the source knows none.
	Unit    string
	Quality Quality
	// Reason says in plain words why Quality is not Good, and is empty when it is.
	Reason string
	// Clock tells when the message arose in the time that this boot of the machine counts, so that Time can be
	// repaired when it was not trusted yet. Pipeline.Put fills it in.
	Clock Clock
}

// PartitionKey returns Key, or Topic where there is no key.
func (m *Message) PartitionKey() string {
	if m.Key != "" {
		return m.Key
	}
	return m.Topic
}

// RecordID names a record for ever: `gateway / stream / epoch / sequence` (DESIGN.md section 1). It travels with the
// record to each uplink, and no other record of any life of any log of this gateway bears it.
type RecordID struct {
	Gateway string
	Stream  string
	Epoch   uint64 // life of the log; grows with each new log
	Seq     uint64 // position in the stream: 1, 2, 3, … without gaps but for drops that are counted
}

// String returns "gateway/stream/epoch/sequence".
func (id RecordID) String() string {
	return string(id.append(make([]byte, 0, len(id.Gateway)+len(id.Stream)+43)))
}

func (id RecordID) append(b []byte) []byte {
	b = append(append(b, id.Gateway...), '/')
	b = append(append(b, id.Stream...), '/')
	b = append(strconv.AppendUint(b, id.Epoch, 10), '/')
	return strconv.AppendUint(b, id.Seq, 10)
}
