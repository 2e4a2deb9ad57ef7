package pipeline_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"edgegateway/pipeline"
)

// quotaLane is a lane in which one stream waits for room.
type quotaLane struct {
	*fakeLane
	full    string
	waiting chan struct{} // gets one for each batch that waits
	room    chan struct{} // closed when there is room
}

func (l *quotaLane) Append(ctx context.Context, entries []pipeline.Entry, changes []pipeline.Change, urgent bool, done func(error)) error {
	for _, e := range entries {
		if e.Stream == l.full {
			l.waiting <- struct{}{}
			select {
			case <-l.room:
			case <-ctx.Done():
				return ctx.Err()
			}
			break
		}
	}
	return l.fakeLane.Append(ctx, entries, changes, urgent, done)
}

func message(topic string) pipeline.Message {
	return pipeline.Message{Source: "plant", Topic: topic, Time: time.Now(), Value: pipeline.Int(1)}
}

func TestStreamThatWaitsForRoomHoldsUpNoOther(t *testing.T) {
	log := &quotaLane{newFakeLane(), "chatty", make(chan struct{}, 10), make(chan struct{})}
	p, err := pipeline.New([]pipeline.Stream{
		{Name: "chatty", From: from("plant:chatty"), Lane: "default"},
		{Name: "quiet", From: from("plant:quiet"), Lane: "default"},
	}, []string{"default"}, "default")
	if err != nil {
		t.Fatal(err)
	}
	p.Attach("default", log)
	sink := p.Source("plant")
	var wg sync.WaitGroup
	acks := make(chan error, 10)
	put := func(topic, once string) {
		b := pipeline.Batch{Messages: []pipeline.Message{message(topic)}, Once: once, Order: topic + once}
		if err := sink.Put(t.Context(), b, func(err error) { acks <- err }); err != nil {
			t.Errorf("Put of %s: %v", topic, err)
		}
	}
	wg.Go(func() { put("chatty", "1") })
	<-log.waiting
	wg.Go(func() { put("chatty", "1") }) // the same again, while the first one waits
	put("quiet", "2")
	if err := <-acks; err != nil {
		t.Errorf("the quiet stream was acknowledged with %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	mixed := pipeline.Batch{Messages: []pipeline.Message{message("quiet"), message("chatty")}}
	if err := sink.Put(ctx, mixed, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a batch with the stream that waits was taken: %v", err)
	}
	put("quiet", "3")
	<-acks
	close(log.room)
	wg.Wait()
	for range 2 {
		if err := <-acks; err != nil {
			t.Errorf("acknowledged with %v", err)
		}
	}
	if got := log.topics(t); got != "quiet:quiet quiet:quiet chatty:chatty" {
		t.Errorf("stored %q, want the repeated batch once", got)
	}
}
