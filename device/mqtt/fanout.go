package mqtt

import (
	"context"
	"sync"

	"github.com/mochi-mqtt/server/v2/packets"
)

// fanoutMax bounds what waits for the fan-out. Publishers wait when it is reached; the fan-out itself never waits for a
// subscriber, so they do not wait for one either.
const fanoutMax = 8 << 20

// fanout hands committed messages to the local subscribers, in the order of their commits.
type fanout struct {
	wake chan struct{} // has room for one signal; wakes run

	mu    sync.Mutex // guards the fields below
	queue []publication
	bytes int
	room  chan struct{} // closed, and made anew, when bytes has shrunk
}

func newFanout() *fanout {
	return &fanout{wake: make(chan struct{}, 1), room: make(chan struct{})}
}

// add queues p. It never waits, because it is called from the sink's callback.
func (f *fanout) add(p publication) {
	f.mu.Lock()
	f.queue = append(f.queue, p)
	f.bytes += p.size()
	f.mu.Unlock()
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// waitRoom waits until the queue is within its bound.
func (f *fanout) waitRoom(ctx context.Context) error {
	for {
		f.mu.Lock()
		fits, room := f.bytes <= fanoutMax, f.room
		f.mu.Unlock()
		if fits {
			return nil
		}
		select {
		case <-room:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// run delivers until ctx ends.
func (f *fanout) run(ctx context.Context, deliver func(publication)) {
	for {
		f.mu.Lock()
		batch := f.queue
		f.queue = nil
		f.mu.Unlock()
		size := 0
		for i := range batch {
			if ctx.Err() != nil {
				return
			}
			deliver(batch[i])
			size += batch[i].size()
		}
		if len(batch) > 0 {
			f.shrink(size)
			continue
		}
		select {
		case <-f.wake:
		case <-ctx.Done():
			return
		}
	}
}

func (f *fanout) shrink(size int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.bytes -= size
	close(f.room)
	f.room = make(chan struct{})
}

// deliver hands p to mochi as if the publisher had sent it: the client id keeps No Local working. It runs in the fan-out's
// goroutine alone, to which b.inline belongs.
func (b *Broker) deliver(p publication) {
	defer func() {
		if r := recover(); r != nil {
			b.counts.fanoutDropped.Add(1)
			b.log.Error("delivery to local subscribers panicked", "panic", r)
		}
	}()
	packet := packets.Packet{
		FixedHeader: packets.FixedHeader{Type: packets.Publish, Qos: p.qos, Retain: p.retain},
		TopicName:   p.topic, Payload: p.payload,
	}
	if p.qos > 0 {
		packet.PacketID = 1 // mochi wants one, and uses it for nothing
	}
	if p.props != nil {
		packet.Properties = *p.props
	}
	if p.retain && !b.retained.set(p.topic, len(p.payload)) {
		packet.FixedHeader.Retain = false
		b.counts.retainedDropped.Add(1)
	}
	if packet.FixedHeader.Retain {
		b.index.Lock()
		defer b.index.Unlock()
	}
	b.inline.ID = p.origin
	b.inline.Properties.ProtocolVersion = p.version
	if err := b.server.InjectPacket(b.inline, packet); err != nil {
		b.counts.fanoutDropped.Add(1)
	}
}

// Bounds of the retained messages, which live in memory.
const (
	maxRetained      = 10_000
	maxRetainedBytes = 4 << 20
)

// retained counts the retained messages by topic.
type retained struct {
	mu    sync.Mutex // guards the fields below
	sizes map[string]int
	bytes int
}

// set notes that topic retains n bytes, or nothing where n is 0, and reports whether there is room for it.
func (r *retained) set(topic string, n int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	old, had := r.sizes[topic]
	if n == 0 {
		delete(r.sizes, topic)
		r.bytes -= old
		return true
	}
	size := n + len(topic) + 256
	if !had && len(r.sizes) >= maxRetained || r.bytes-old+size > maxRetainedBytes {
		return false
	}
	if r.sizes == nil {
		r.sizes = map[string]int{}
	}
	r.sizes[topic] = size
	r.bytes += size - old
	return true
}
