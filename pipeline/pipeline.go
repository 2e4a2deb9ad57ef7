package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Stream is a named path: sources → processors → lane.
type Stream struct {
	Name string
	From []Selector // a message that one of them takes enters the stream
	Lane string
	// Steps are the processors, in order. They must have passed Check.
	Steps []Step
}

// Selector takes the messages of one device whose topic matches a filter.
type Selector struct {
	Source string
	Filter string // as in MQTT; "#" is everything
}

// ParseSelector reads "DEVICE" or "DEVICE:FILTER" as it stands in the config.
func ParseSelector(s string) (Selector, error) {
	source, filter, given := strings.Cut(s, ":")
	if !given {
		filter = "#"
	}
	if source == "" {
		return Selector{}, fmt.Errorf("%q names no device (want \"DEVICE\" or \"DEVICE:TOPIC/FILTER\")", s)
	}
	return Selector{Source: source, Filter: filter}, CheckFilter(filter)
}

// Pipeline takes messages from the sources, runs each stream's processors over them and appends what is left to the
// stream's lane.
type Pipeline struct {
	lanes   []*lane // sorted by name
	streams []*stream
	clock   clockSource

	mu      sync.Mutex // guards sources
	sources map[string]*source

	unrouted atomic.Uint64
}

type stream struct {
	Stream
	lane  *lane
	steps []step
	turn  turn

	refused atomic.Uint64
}

// step is a processor with the beginning of the keys under which the lane keeps its state.
type step struct {
	processor
	prefix string
}

// New makes a pipeline. The lanes named are without a log until Attach, and refuse with ErrStopped until then.
// defaultLane remembers the Once names of batches that enter no stream.
func New(streams []Stream, laneNames []string, defaultLane string) (*Pipeline, error) {
	p := &Pipeline{clock: newClockSource(), sources: make(map[string]*source)}
	for _, name := range laneNames {
		p.lanes = append(p.lanes, &lane{name: name, isDefault: name == defaultLane, once: map[string]turn{}})
	}
	slices.SortFunc(p.lanes, func(a, b *lane) int { return strings.Compare(a.name, b.name) })
	for _, s := range streams {
		i := slices.IndexFunc(p.lanes, func(l *lane) bool { return l.name == s.Lane })
		if i < 0 {
			return nil, fmt.Errorf("stream %s: there is no lane %q", s.Name, s.Lane)
		}
		st := &stream{Stream: s, lane: p.lanes[i], turn: newTurn()}
		for n, config := range s.Steps {
			kind, proc := config.processor()
			if proc == nil {
				return nil, fmt.Errorf("stream %s: processor %d is empty", s.Name, n)
			}
			st.steps = append(st.steps, step{proc, fmt.Sprintf("%s%s/%d-%s/", processorPrefix, s.Name, n, kind)})
		}
		p.streams = append(p.streams, st)
	}
	return p, nil
}

// Attach gives a lane its log, and with it the processors' state and the Once names that the log remembers.
func (p *Pipeline) Attach(laneName string, log Lane) {
	for _, l := range p.lanes {
		if l.name == laneName {
			l.attach(log)
		}
	}
}

// Source returns the Sink of one device. Messages put there bear its name.
func (p *Pipeline) Source(name string) Sink {
	p.mu.Lock()
	defer p.mu.Unlock()
	s, ok := p.sources[name]
	if !ok {
		s = &source{name: name, pipeline: p, newest: make(map[string]Message), order: make(map[string]*queue)}
		p.sources[name] = s
	}
	return s
}

// Newest returns the newest message of each topic that the source has put, in no order. Of the first 500 topics, that is;
// more says that there are others.
func (p *Pipeline) Newest(sourceName string) (messages []Message, more bool) {
	p.mu.Lock()
	s := p.sources[sourceName]
	p.mu.Unlock()
	if s == nil {
		return nil, false
	}
	s.newestMu.Lock()
	defer s.newestMu.Unlock()
	messages = make([]Message, 0, len(s.newest))
	for _, m := range s.newest {
		messages = append(messages, m)
	}
	return messages, s.more
}

// Refused returns how many messages of a stream were not taken since the start because its lane was full or had stopped.
func (p *Pipeline) Refused(streamName string) uint64 {
	for _, s := range p.streams {
		if s.Name == streamName {
			return s.refused.Load()
		}
	}
	return 0
}

// Unrouted returns how many messages no stream has asked for since the start.
func (p *Pipeline) Unrouted() uint64 { return p.unrouted.Load() }

func (s *stream) wants(m *Message) bool {
	for _, sel := range s.From {
		if sel.Source == m.Source && Match(sel.Filter, m.Topic) {
			return true
		}
	}
	return false
}

// process runs the processors. Changes of their state go into the draft.
func (s *stream) process(m Message, d *draft) (Message, bool) {
	for _, st := range s.steps {
		key := st.prefix + m.Topic
		state := topicState{bytes: d.get(key)}
		var pass bool
		m, pass = st.process(m, &state)
		if state.changed {
			d.set(key, state.bytes)
		}
		if !pass {
			return m, false
		}
	}
	return m, true
}

// put takes a batch of one source; see Sink.
func (p *Pipeline) put(ctx context.Context, b *Batch, t *ticket) error {
	now := p.clock.at(time.Now())
	for i := range b.Messages {
		b.Messages[i].Clock = now
	}
	wanted := make([]bool, len(b.Messages))
	var failure error
	taken := 0
	for _, l := range p.lanes {
		err := p.putLane(ctx, l, b, t, wanted)
		switch {
		case errors.Is(err, errNothing):
		case err != nil && taken == 0:
			return err
		case err != nil:
			failure = errors.Join(failure, err)
		default:
			taken++
		}
	}
	for _, w := range wanted {
		if !w {
			p.unrouted.Add(1)
		}
	}
	// With several lanes one may have taken its share before another refused. The batch as a whole is then not stored:
	// done gets the error, and a source that sends it again doubles the first share unless it has a Once name.
	t.fail(failure)
	return nil
}

// errNothing says that a batch has nothing for a lane.
var errNothing = errors.New("nothing for this lane")

func (p *Pipeline) putLane(ctx context.Context, l *lane, b *Batch, t *ticket, wanted []bool) error {
	var streams []*stream
	var counts []uint64 // messages of the batch that each of the streams wants
	for _, s := range p.streams {
		if s.lane != l {
			continue
		}
		var count uint64
		for i := range b.Messages {
			if s.wants(&b.Messages[i]) {
				wanted[i] = true
				count++
			}
		}
		if count > 0 {
			streams, counts = append(streams, s), append(counts, count)
		}
	}
	if len(streams) == 0 && !l.concerns(b) {
		return errNothing
	}
	err := l.put(ctx, b, streams, t)
	if err != nil {
		for i, s := range streams {
			s.refused.Add(counts[i])
		}
		return fmt.Errorf("lane %s: %w", l.name, err)
	}
	return nil
}
