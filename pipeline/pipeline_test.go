package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"edgegateway/pipeline"
)

// fakeLane is a log in memory that commits when it is told to.
type fakeLane struct {
	mu      sync.Mutex
	held    bool // commits wait for release
	refuse  error
	entries []pipeline.Entry
	state   map[string][]byte
	waiting []func()
}

func newFakeLane() *fakeLane { return &fakeLane{state: map[string][]byte{}} }

func (l *fakeLane) Append(_ context.Context, entries []pipeline.Entry, changes []pipeline.Change, _ bool, done func(error)) error {
	l.mu.Lock()
	if l.refuse != nil {
		defer l.mu.Unlock()
		return l.refuse
	}
	commit := func() {
		l.mu.Lock()
		l.entries = append(l.entries, entries...)
		for _, c := range changes {
			if c.Value == nil {
				delete(l.state, c.Key)
			} else {
				l.state[c.Key] = c.Value
			}
		}
		l.mu.Unlock()
		done(nil)
	}
	if l.held {
		l.waiting = append(l.waiting, commit)
		l.mu.Unlock()
		return nil
	}
	l.mu.Unlock()
	commit()
	return nil
}

func (l *fakeLane) release() {
	l.mu.Lock()
	waiting := l.waiting
	l.waiting, l.held = nil, false
	l.mu.Unlock()
	for _, commit := range waiting {
		commit()
	}
}

func (l *fakeLane) State(prefix string, yield func(string, []byte) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key, value := range l.state {
		if strings.HasPrefix(key, prefix) && !yield(key, value) {
			return
		}
	}
}

func (l *fakeLane) topics(t *testing.T) string {
	t.Helper()
	var topics []string
	for _, e := range l.entries {
		m, err := pipeline.Decode(e.Data)
		if err != nil {
			t.Fatal(err)
		}
		topics = append(topics, e.Stream+":"+m.Topic)
	}
	return strings.Join(topics, " ")
}

func from(selectors ...string) []pipeline.Selector {
	list := make([]pipeline.Selector, len(selectors))
	for i, s := range selectors {
		sel, err := pipeline.ParseSelector(s)
		if err != nil {
			panic(err)
		}
		list[i] = sel
	}
	return list
}

// open makes a pipeline of one stream that takes everything of the device "plant".
func open(t *testing.T, log *fakeLane, steps ...pipeline.Step) *pipeline.Pipeline {
	t.Helper()
	p, err := pipeline.New([]pipeline.Stream{{Name: "s", From: from("plant"), Lane: "default", Steps: steps}}, []string{"default"}, "default")
	if err != nil {
		t.Fatal(err)
	}
	p.Attach("default", log)
	return p
}

// openAt makes the pipeline of a gateway that was started again: its clock goes on from the same boot.
func openAt(t *testing.T, log *fakeLane, boot time.Time, steps ...pipeline.Step) *pipeline.Pipeline {
	t.Helper()
	p := open(t, log, steps...)
	pipeline.SetUptime(p, time.Since(boot))
	return p
}

func put(t *testing.T, p *pipeline.Pipeline, messages ...pipeline.Message) {
	t.Helper()
	called := 0
	err := p.Source("plant").Put(t.Context(), pipeline.Batch{Messages: messages}, func(err error) {
		called++
		if err != nil {
			t.Errorf("done: %v", err)
		}
	})
	if err != nil || called != 1 {
		t.Fatalf("Put: %v, done called %d times", err, called)
	}
}

func TestMessagesGoToTheStreamsThatWantThem(t *testing.T) {
	a, b := newFakeLane(), newFakeLane()
	p, err := pipeline.New([]pipeline.Stream{
		{Name: "all", From: from("plant", "broker"), Lane: "a"},
		{Name: "alarms", From: from("plant:+/alarm"), Lane: "b"},
	}, []string{"a", "b"}, "a")
	if err != nil {
		t.Fatal(err)
	}
	p.Attach("a", a)
	p.Attach("b", b)
	put(t, p, pipeline.Message{Topic: "x/alarm"}, pipeline.Message{Topic: "x/value"})
	if err := p.Source("nobody").Put(t.Context(), pipeline.Batch{Messages: []pipeline.Message{{Topic: "x/alarm"}}}, nil); err != nil {
		t.Fatal(err)
	}
	if got, want := a.topics(t), "all:x/alarm all:x/value"; got != want {
		t.Errorf("lane a holds %s, want %s", got, want)
	}
	if got, want := b.topics(t), "alarms:x/alarm"; got != want {
		t.Errorf("lane b holds %s, want %s", got, want)
	}
	if got := p.Unrouted(); got != 1 {
		t.Errorf("unrouted = %d, want 1", got)
	}
}

func TestDoneComesAfterEveryLaneAndInOrderOfPut(t *testing.T) {
	fast, slow := newFakeLane(), newFakeLane()
	slow.held = true
	p, err := pipeline.New([]pipeline.Stream{
		{Name: "fast", From: from("plant"), Lane: "fast"},
		{Name: "slow", From: from("plant:slow"), Lane: "slow"},
	}, []string{"fast", "slow"}, "fast")
	if err != nil {
		t.Fatal(err)
	}
	p.Attach("fast", fast)
	p.Attach("slow", slow)
	var order []string
	for _, b := range []struct{ topic, order string }{{"slow", "one"}, {"quick", "one"}, {"quick", "two"}} {
		name := b.order + "/" + b.topic
		err := p.Source("plant").Put(t.Context(), pipeline.Batch{Messages: []pipeline.Message{{Topic: b.topic}}, Order: b.order}, func(err error) {
			order = append(order, fmt.Sprint(name, err))
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if got, want := strings.Join(order, " "), "two/quick<nil>"; got != want {
		t.Errorf("before the slow commit: %s, want %s", got, want)
	}
	slow.release()
	if got, want := strings.Join(order, " "), "two/quick<nil> one/slow<nil> one/quick<nil>"; got != want {
		t.Errorf("after it: %s, want %s", got, want)
	}
}

func TestOnceIsStoredOnceUntilForgotten(t *testing.T) {
	log := newFakeLane()
	log.held = true
	p := open(t, log)
	done := 0
	send := func(p *pipeline.Pipeline, b pipeline.Batch) {
		t.Helper()
		if err := p.Source("plant").Put(t.Context(), b, func(error) { done++ }); err != nil {
			t.Fatal(err)
		}
	}
	once := func() pipeline.Batch {
		return pipeline.Batch{Messages: []pipeline.Message{{Topic: "a"}}, Once: "q2/c/1"}
	}
	send(p, once())
	send(p, once())
	if done != 0 {
		t.Errorf("a repeat was acknowledged before the commit of the first")
	}
	log.release()
	if done != 2 || len(log.entries) != 1 {
		t.Errorf("done %d, stored %d; want 2 and 1", done, len(log.entries))
	}
	p = open(t, log) // after a crash
	if got := p.Source("plant").Remembered("q2/c/"); !slices.Equal(got, []string{"q2/c/1"}) {
		t.Errorf("remembered %v", got)
	}
	send(p, once())
	send(p, pipeline.Batch{Forget: []string{"q2/c/1"}})
	send(p, once())
	if len(log.entries) != 2 {
		t.Errorf("stored %d, want 2: the name was used for something new", len(log.entries))
	}
}

func TestOnceOfABatchThatNoStreamWantsIsRememberedInTheDefaultLane(t *testing.T) {
	log := newFakeLane()
	p := open(t, log)
	if err := p.Source("other").Put(t.Context(), pipeline.Batch{Messages: []pipeline.Message{{Topic: "a"}}, Once: "x"}, nil); err != nil {
		t.Fatal(err)
	}
	if got := slices.Collect(maps.Keys(log.state)); !slices.Equal(got, []string{"once/x"}) {
		t.Errorf("state %v", got)
	}
}

func TestARefusedBatchLeavesNoTrace(t *testing.T) {
	log := newFakeLane()
	p := open(t, log, pipeline.Step{Deadband: &pipeline.Deadband{}})
	put(t, p, pipeline.Message{Topic: "a", Value: pipeline.Int(1)})
	log.refuse = pipeline.ErrFull
	err := p.Source("plant").Put(t.Context(), pipeline.Batch{Messages: []pipeline.Message{{Topic: "a", Value: pipeline.Int(2)}}, Once: "n"}, func(error) {
		t.Error("done was called for a batch that was not taken")
	})
	if !errors.Is(err, pipeline.ErrFull) || !strings.Contains(err.Error(), "lane default") {
		t.Fatalf("Put: %v, want ErrFull of lane default", err)
	}
	if got := p.Refused("s"); got != 1 {
		t.Errorf("refused %d, want 1", got)
	}
	log.refuse = nil
	// The same value again: had the refused one changed the deadband's state, it would be held back now.
	put(t, p, pipeline.Message{Topic: "a", Value: pipeline.Int(2)})
	if len(log.entries) != 2 || len(p.Source("plant").Remembered("")) != 0 {
		t.Errorf("stored %d (want 2), remembered %v", len(log.entries), p.Source("plant").Remembered(""))
	}
}

func TestALaneWithoutALogRefuses(t *testing.T) {
	p, err := pipeline.New([]pipeline.Stream{{Name: "s", From: from("plant"), Lane: "l"}}, []string{"l"}, "l")
	if err != nil {
		t.Fatal(err)
	}
	sink := p.Source("plant")
	if err := sink.Put(t.Context(), pipeline.Batch{Messages: []pipeline.Message{{Topic: "a"}}}, nil); !errors.Is(err, pipeline.ErrStopped) {
		t.Errorf("Put: %v, want ErrStopped", err)
	}
	log := newFakeLane()
	p.Attach("l", log)
	put(t, p, pipeline.Message{Topic: "a"})
}

func TestAFailedShareFailsTheBatch(t *testing.T) {
	good, bad := newFakeLane(), newFakeLane()
	bad.refuse = pipeline.ErrStopped
	p, err := pipeline.New([]pipeline.Stream{
		{Name: "1", From: from("plant"), Lane: "good"}, {Name: "2", From: from("plant"), Lane: "ugly"},
	}, []string{"good", "ugly"}, "good")
	if err != nil {
		t.Fatal(err)
	}
	p.Attach("good", good)
	p.Attach("ugly", bad)
	var got error
	if err := p.Source("plant").Put(t.Context(), pipeline.Batch{Messages: []pipeline.Message{{Topic: "a"}}}, func(err error) { got = err }); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(got, pipeline.ErrStopped) {
		t.Errorf("done got %v, want ErrStopped: one lane does not hold its share", got)
	}
}

func TestPutWaitsForItsTurnNoLongerThanItsContext(t *testing.T) {
	log := &blockingLane{entered: make(chan struct{}), leave: make(chan struct{})}
	p, err := pipeline.New([]pipeline.Stream{{Name: "s", From: from("plant"), Lane: "l"}}, []string{"l"}, "l")
	if err != nil {
		t.Fatal(err)
	}
	p.Attach("l", log)
	var wg sync.WaitGroup
	wg.Go(func() {
		_ = p.Source("plant").Put(context.WithoutCancel(t.Context()), pipeline.Batch{Messages: []pipeline.Message{{Topic: "a"}}}, nil)
	})
	<-log.entered
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := p.Source("plant").Put(ctx, pipeline.Batch{Messages: []pipeline.Message{{Topic: "a"}}}, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Put: %v, want the context's error", err)
	}
	close(log.leave)
	wg.Wait()
}

// blockingLane is full until leave is closed.
type blockingLane struct{ entered, leave chan struct{} }

func (l *blockingLane) Append(_ context.Context, _ []pipeline.Entry, _ []pipeline.Change, _ bool, done func(error)) error {
	close(l.entered)
	<-l.leave
	done(nil)
	return nil
}

func (*blockingLane) State(string, func(string, []byte) bool) {}

func TestConcurrentPutsAreAllAcknowledgedOnceAndInOrder(t *testing.T) {
	log := newFakeLane()
	p := open(t, log)
	const parties, each = 8, 200
	var wg sync.WaitGroup
	for party := range parties {
		wg.Go(func() {
			var got []int
			var mu sync.Mutex
			for i := range each {
				b := pipeline.Batch{Messages: []pipeline.Message{{Topic: fmt.Sprint(party)}}, Order: fmt.Sprint(party)}
				if err := p.Source("plant").Put(t.Context(), b, func(error) { mu.Lock(); got = append(got, i); mu.Unlock() }); err != nil {
					t.Error(err)
				}
			}
			if len(got) != each || !slices.IsSorted(got) {
				t.Errorf("party %d: %d acknowledgements, sorted %v", party, len(got), slices.IsSorted(got))
			}
		})
	}
	wg.Wait()
	if len(log.entries) != parties*each {
		t.Errorf("stored %d, want %d", len(log.entries), parties*each)
	}
}

func BenchmarkPut(b *testing.B) {
	p, err := pipeline.New([]pipeline.Stream{{Name: "s", From: from("plant"), Lane: "l"}}, []string{"l"}, "l")
	if err != nil {
		b.Fatal(err)
	}
	p.Attach("l", nullLane{})
	sink := p.Source("plant")
	payload := pipeline.Bytes(make([]byte, 128))
	b.ReportAllocs()
	for b.Loop() {
		if err := sink.Put(b.Context(), pipeline.Batch{Messages: []pipeline.Message{{Topic: "a/b/c", Value: payload}}}, func(error) {}); err != nil {
			b.Fatal(err)
		}
	}
}

type nullLane struct{}

func (nullLane) Append(_ context.Context, _ []pipeline.Entry, _ []pipeline.Change, _ bool, done func(error)) error {
	done(nil)
	return nil
}

func (nullLane) State(string, func(string, []byte) bool) {}
