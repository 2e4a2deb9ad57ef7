package pipeline_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"edgegateway/pipeline"
)

var matchTests = []struct {
	filter, topic string
	want          bool
}{
	{"#", "a", true},
	{"#", "a/b/c", true},
	{"#", "$SYS/x", false},
	{"+/x", "$SYS/x", false},
	{"$SYS/#", "$SYS/x", true},
	{"a/#", "a", true},
	{"a/#", "a/b/c", true},
	{"a/#", "ab", false},
	{"a/+", "a/b", true},
	{"a/+", "a/b/c", false},
	{"a/+", "a", false},
	{"a/+/c", "a/b/c", true},
	{"a/b", "a/b", true},
	{"a/b", "a/b/", false},
	{"a//c", "a//c", true},
	{"a/+/c", "a//c", true},
	{"+", "", true},
	{"a/b/#", "a", false},
}

func TestMatch(t *testing.T) {
	for _, tt := range matchTests {
		if got := pipeline.Match(tt.filter, tt.topic); got != tt.want {
			t.Errorf("Match(%q, %q) = %v, want %v", tt.filter, tt.topic, got, tt.want)
		}
	}
}

func TestCheckFilter(t *testing.T) {
	for _, good := range []string{"#", "+", "a/+/b", "a/#", "/", "$share"} {
		if err := pipeline.CheckFilter(good); err != nil {
			t.Errorf("CheckFilter(%q) = %v", good, err)
		}
	}
	for _, bad := range []string{"", "a/#/b", "a+", "a/b#", strings.Repeat("a/", 40), strings.Repeat("x", 2000), "a\x00", "\xff"} {
		if err := pipeline.CheckFilter(bad); err == nil {
			t.Errorf("CheckFilter(%q) accepts", bad)
		}
	}
}

// reading is one message of a processor test: a value at a second, with a quality.
type reading struct {
	second  int
	value   float64
	quality pipeline.Quality
}

var processorTests = []struct {
	name string
	step pipeline.Step
	in   []reading
	want string // what comes out, VALUE@SECOND each
}{
	{
		"a deadband of zero lets every change through",
		pipeline.Step{Deadband: &pipeline.Deadband{}},
		[]reading{{0, 1, 0}, {1, 1, 0}, {2, 1.5, 0}, {3, 1.5, 0}, {4, 1, 0}},
		"1@0 1.5@2 1@4",
	},
	{
		"a deadband compares with what went through last, not with what came last",
		pipeline.Step{Deadband: &pipeline.Deadband{Absolute: 1}},
		[]reading{{0, 10, 0}, {1, 10.6, 0}, {2, 11.2, 0}, {3, 10.5, 0}},
		"10@0 11.2@2",
	},
	{
		"a deadband in percent",
		pipeline.Step{Deadband: &pipeline.Deadband{Percent: 10}},
		[]reading{{0, 100, 0}, {1, 109, 0}, {2, 111, 0}, {3, -5, 0}},
		"100@0 111@2 -5@3",
	},
	{
		"a deadband breaks its silence",
		pipeline.Step{Deadband: &pipeline.Deadband{Absolute: 5, MaxSilence: 3 * time.Second}},
		[]reading{{0, 1, 0}, {1, 1, 0}, {2, 1, 0}, {3, 1, 0}, {4, 1, 0}},
		"1@0 1@3",
	},
	{
		"a change of quality always passes a deadband",
		pipeline.Step{Deadband: &pipeline.Deadband{Absolute: 5}},
		[]reading{{0, 1, 0}, {1, 1, pipeline.Bad}, {2, 1, pipeline.Bad}, {3, 1, 0}},
		"1@0 bad@1 1@3",
	},
	{
		"a throttle lets the first of each interval through",
		pipeline.Step{Throttle: &pipeline.Throttle{Every: 2 * time.Second}},
		[]reading{{0, 1, 0}, {1, 2, 0}, {2, 3, 0}, {3, 4, 0}, {9, 5, 0}},
		"1@0 3@2 5@9",
	},
	{
		"scale computes factor and offset",
		pipeline.Step{Scale: &pipeline.Scale{Factor: 2, Offset: -1}},
		[]reading{{0, 1, 0}, {1, 2.5, 0}, {2, 0, pipeline.Bad}},
		"1@0 4@1 bad@2",
	},
	{
		"scale marks what leaves the range",
		pipeline.Step{Scale: &pipeline.Scale{Factor: 1e308}},
		[]reading{{0, 100, 0}},
		"uncertain:100@0",
	},
	{
		"filter by quality",
		pipeline.Step{Filter: &pipeline.Filter{Quality: "good"}},
		[]reading{{0, 1, 0}, {1, 2, pipeline.Uncertain}, {2, 3, pipeline.Bad}},
		"1@0",
	},
	{
		"filter by topic",
		pipeline.Step{Filter: &pipeline.Filter{Topics: []string{"other/#"}, Quality: "bad"}},
		[]reading{{0, 1, 0}},
		"",
	},
	{
		"filter with an exception",
		pipeline.Step{Filter: &pipeline.Filter{Except: []string{"plant/+"}, Quality: "bad"}},
		[]reading{{0, 1, 0}},
		"",
	},
}

func TestProcessors(t *testing.T) {
	for _, tt := range processorTests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log := newFakeLane()
				p := open(t, log, tt.step)
				start := time.Now()
				var out []string
				for _, r := range tt.in {
					time.Sleep(time.Until(start.Add(time.Duration(r.second) * time.Second)))
					before := len(log.entries)
					put(t, p, r.message())
					for _, e := range log.entries[before:] {
						out = append(out, describe(t, e)+fmt.Sprintf("@%d", r.second))
					}
				}
				if got := strings.Join(out, " "); got != tt.want {
					t.Errorf("got  %s\nwant %s", got, tt.want)
				}
			})
		})
	}
}

// The same input gives the same output when the gateway is killed and started again in the middle: the processors' state is
// what the commits say it is.
func TestProcessorsGoOnFromTheCommittedState(t *testing.T) {
	for _, tt := range processorTests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log := newFakeLane()
				start := time.Now()
				var out []string
				for _, r := range tt.in {
					time.Sleep(time.Until(start.Add(time.Duration(r.second) * time.Second)))
					before := len(log.entries)
					put(t, openAt(t, log, start, tt.step), r.message()) // a new pipeline for each message
					for _, e := range log.entries[before:] {
						out = append(out, describe(t, e)+fmt.Sprintf("@%d", r.second))
					}
				}
				if got := strings.Join(out, " "); got != tt.want {
					t.Errorf("got  %s\nwant %s", got, tt.want)
				}
			})
		})
	}
}

func (r reading) message() pipeline.Message {
	m := pipeline.Message{Time: time.Now(), Topic: "plant/value", Quality: r.quality, Value: pipeline.Float(r.value)}
	if r.quality == pipeline.Bad {
		m.Value = pipeline.Value{}
	}
	return m
}

func describe(t *testing.T, e pipeline.Entry) string {
	t.Helper()
	m, err := pipeline.Decode(e.Data)
	if err != nil {
		t.Fatal(err)
	}
	switch m.Quality {
	case pipeline.Bad:
		return "bad"
	case pipeline.Uncertain:
		return "uncertain:" + m.Value.Text()
	default:
		return m.Value.Text()
	}
}

func TestRename(t *testing.T) {
	step := pipeline.Step{Rename: &pipeline.Rename{Topics: map[string]string{"a/b": "x"}, Prefix: "plant/", To: "site/7/"}}
	log := newFakeLane()
	p := open(t, log, step)
	for _, tt := range []struct{ topic, want string }{{"a/b", "x"}, {"plant/v", "site/7/v"}, {"other", "other"}} {
		put(t, p, pipeline.Message{Topic: tt.topic})
		m, err := pipeline.Decode(log.entries[len(log.entries)-1].Data)
		if err != nil || m.Topic != tt.want {
			t.Errorf("%s became %s (%v), want %s", tt.topic, m.Topic, err, tt.want)
		}
	}
}
