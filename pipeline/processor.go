package pipeline

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"time"
)

// Step is one processor of a stream as it stands in the config: a list item with exactly one of these keys. Processors run
// in the order of the list; each sees what the one before it let through.
type Step struct {
	Filter   *Filter   `yaml:"filter" doc:"Lets through only some messages."`
	Rename   *Rename   `yaml:"rename" doc:"Changes topics."`
	Scale    *Scale    `yaml:"scale" doc:"Computes value × factor + offset."`
	Deadband *Deadband `yaml:"deadband" doc:"Lets a value through only when it has changed enough."`
	Throttle *Throttle `yaml:"throttle" doc:"Lets through at most one message of a topic in a time."`
}

// processor turns a message into what goes on: the message, perhaps changed, and whether it does. It depends on nothing but
// the message and the topic's state, so that the same input gives the same output whatever crashed in between. The state
// that it leaves is stored in the same commit as the record.
type processor interface {
	process(m Message, state *topicState) (Message, bool)
}

// topicState is what a processor remembers of one topic. nil means nothing yet.
type topicState struct {
	bytes   []byte
	changed bool
}

func (s *topicState) set(b []byte) { s.bytes, s.changed = b, true }

func (s Step) processor() (name string, p processor) {
	switch {
	case s.Filter != nil:
		return "filter", s.Filter
	case s.Rename != nil:
		return "rename", s.Rename
	case s.Scale != nil:
		return "scale", s.Scale
	case s.Deadband != nil:
		return "deadband", s.Deadband
	case s.Throttle != nil:
		return "throttle", s.Throttle
	default:
		return "", nil
	}
}

// Check implements Checker.
func (s Step) Check() []Problem {
	var set []string
	var problems []Problem
	checkTopics := func(name string, filters []string) {
		for i, f := range filters {
			if err := CheckFilter(f); err != nil {
				problems = append(problems, Problem{Path: fmt.Sprintf("%s[%d]", name, i), Text: err.Error()})
			}
		}
	}
	if s.Filter != nil {
		set = append(set, "filter")
		checkTopics("filter.topics", s.Filter.Topics)
		checkTopics("filter.except", s.Filter.Except)
	}
	if s.Rename != nil {
		set = append(set, "rename")
		for old, topic := range s.Rename.Topics {
			if err := CheckTopic(topic); err != nil {
				problems = append(problems, Problem{Path: "rename.topics." + old, Text: err.Error()})
			}
		}
		if s.Rename.Prefix == "" && s.Rename.To == "" && len(s.Rename.Topics) == 0 {
			problems = append(problems, Problem{Path: "rename", Text: "changes nothing (want topics, or prefix and to)"})
		}
	}
	if s.Scale != nil {
		set = append(set, "scale")
		checkTopics("scale.topics", s.Scale.Topics)
		if s.Scale.Factor == 0 {
			problems = append(problems, Problem{Path: "scale.factor", Text: "0 would make every value the same (want another number)"})
		}
	}
	if s.Deadband != nil {
		set = append(set, "deadband")
		checkTopics("deadband.topics", s.Deadband.Topics)
	}
	if s.Throttle != nil {
		set = append(set, "throttle")
		checkTopics("throttle.topics", s.Throttle.Topics)
	}
	if len(set) != 1 {
		got := "none"
		if len(set) > 0 {
			got = strings.Join(set, " and ")
		}
		problems = append(problems, Problem{Text: "a processor has exactly one of filter, rename, scale, deadband, throttle (got " + got + ")"})
	}
	return problems
}

// Filter lets through the messages that pass all of its tests.
type Filter struct {
	Topics  []string `yaml:"topics" doc:"Topic filters (+ and # as in MQTT); a message must match one. None means all."`
	Except  []string `yaml:"except" doc:"Topic filters; a message must match none."`
	Quality string   `yaml:"quality" doc:"The worst quality that passes." enum:"good|uncertain|bad" default:"bad"`
}

func (f *Filter) process(m Message, _ *topicState) (Message, bool) {
	worst := Bad
	switch f.Quality {
	case "good":
		worst = Good
	case "uncertain":
		worst = Uncertain
	}
	pass := anyMatch(f.Topics, m.Topic) && (len(f.Except) == 0 || !anyMatch(f.Except, m.Topic)) && m.Quality <= worst
	return m, pass
}

// Rename changes the topic. The source stays what it was.
type Rename struct {
	Topics map[string]string `yaml:"topics" doc:"New topic of each old one. Looked up before prefix."`
	Prefix string            `yaml:"prefix" doc:"Beginning of the topic that is replaced by to."`
	To     string            `yaml:"to" doc:"What prefix is replaced by."`
}

func (r *Rename) process(m Message, _ *topicState) (Message, bool) {
	if topic, ok := r.Topics[m.Topic]; ok {
		m.Topic = topic
		return m, true
	}
	if r.Prefix == "" && r.To == "" {
		return m, true
	}
	if rest, ok := strings.CutPrefix(m.Topic, r.Prefix); ok {
		m.Topic = r.To + rest
	}
	return m, true
}

// Scale computes value × factor + offset. What is no number, or would leave the range of a float64, passes as it was with
// quality uncertain.
type Scale struct {
	Topics []string `yaml:"topics" doc:"Topic filters of the messages to scale. None means all."`
	Factor float64  `yaml:"factor" doc:"Multiplies the value." default:"1"`
	Offset float64  `yaml:"offset" doc:"Is added after multiplying."`
	Unit   string   `yaml:"unit" doc:"The new unit. Empty leaves it as it was."`
}

func (s *Scale) process(m Message, _ *topicState) (Message, bool) {
	if !anyMatch(s.Topics, m.Topic) || m.Quality == Bad {
		return m, true
	}
	scaled := Value{}
	if number, ok := m.Value.Number(); ok {
		scaled = Float(number*s.Factor + s.Offset)
	}
	if scaled.Kind() == KindNone {
		m.Quality, m.Reason = Uncertain, "not scaled: the value is no number or the result is out of range"
		return m, true
	}
	m.Value = scaled
	if s.Unit != "" {
		m.Unit = s.Unit
	}
	return m, true
}

// Deadband lets a value through when it differs from the last one that went through by more than the band, when its quality
// has changed, when it is no number, or when max_silence has passed.
type Deadband struct {
	Topics     []string      `yaml:"topics" doc:"Topic filters of the messages to hold to the band. None means all."`
	Absolute   float64       `yaml:"absolute" doc:"Half-width of the band in the value's unit. 0 lets every change through." min:"0"`
	Percent    float64       `yaml:"percent" doc:"Half-width in percent of the last value; the wider of the two counts." min:"0"`
	MaxSilence time.Duration `yaml:"max_silence" doc:"A value that old goes through again even if it has not changed. 0s means never." min:"0s" default:"0s"`
}

func (d *Deadband) process(m Message, state *topicState) (Message, bool) {
	if !anyMatch(d.Topics, m.Topic) {
		return m, true
	}
	number, isNumber := m.Value.Number()
	last, known := readLast(state.bytes)
	if known && isNumber && last.isNumber && m.Quality == last.quality && !last.older(m.Clock, d.MaxSilence) {
		band := max(d.Absolute, math.Abs(last.number)*d.Percent/100)
		if math.Abs(number-last.number) <= band {
			return m, false
		}
	}
	if known && !isNumber && m.Value.Kind() == KindNone && !last.isNumber && m.Quality == last.quality && !last.older(m.Clock, d.MaxSilence) {
		return m, false // still bad: said once is enough
	}
	state.set(lastSent{quality: m.Quality, number: number, isNumber: isNumber, clock: m.Clock}.bytes())
	return m, true
}

// Throttle lets through at most one message of each topic in `every`, by the clock that is never set. A message whose
// quality differs from the last one's always passes.
type Throttle struct {
	Topics []string      `yaml:"topics" doc:"Topic filters of the messages to throttle. None means all."`
	Every  time.Duration `yaml:"every" doc:"Time in which one message of a topic passes." required:"true" min:"1ms"`
}

func (t *Throttle) process(m Message, state *topicState) (Message, bool) {
	if !anyMatch(t.Topics, m.Topic) {
		return m, true
	}
	if last, known := readLast(state.bytes); known && m.Quality == last.quality && !last.older(m.Clock, t.Every) {
		return m, false
	}
	state.set(lastSent{quality: m.Quality, clock: m.Clock}.bytes())
	return m, true
}

// lastSent is what Deadband and Throttle remember of a topic: the last message they let through.
type lastSent struct {
	quality  Quality
	isNumber bool
	number   float64
	clock    Clock
}

// older reports whether the last message is age old at the time of now; 0 means never. Messages of two boots cannot be
// compared: there the last one counts as old.
func (l lastSent) older(now Clock, age time.Duration) bool {
	return age > 0 && (l.clock.Boot != now.Boot || now.Offset-l.clock.Offset >= age)
}

const lastSentSize = 22

// bytes lays the state out: quality u8, is number u8, number f64, boot u32, offset u64, little endian.
func (l lastSent) bytes() []byte {
	b := make([]byte, 0, lastSentSize)
	b = append(b, byte(l.quality), 0)
	if l.isNumber {
		b[1] = 1
	}
	b = binary.LittleEndian.AppendUint64(b, math.Float64bits(l.number))
	b = binary.LittleEndian.AppendUint32(b, l.clock.Boot)
	return binary.LittleEndian.AppendUint64(b, uint64(l.clock.Offset))
}

func readLast(b []byte) (lastSent, bool) {
	if len(b) != lastSentSize {
		return lastSent{}, false
	}
	return lastSent{
		quality: Quality(b[0]), isNumber: b[1] == 1,
		number: math.Float64frombits(binary.LittleEndian.Uint64(b[2:])),
		clock:  Clock{Boot: binary.LittleEndian.Uint32(b[10:]), Offset: time.Duration(binary.LittleEndian.Uint64(b[14:]))},
	}, true
}
