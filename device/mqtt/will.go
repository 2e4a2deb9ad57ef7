package mqtt

import (
	"context"
	"sync"
	"time"

	"edgegateway/pipeline"

	mochi "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/packets"
)

// will is what a client wants published when it goes without a word.
type will struct {
	publication
	delay time.Duration
}

// takeWill takes the will out of mochi, which would publish it past the ACL and the log, and lose half its properties.
func takeWill(c *client, p *packets.Packet) *will {
	c.mq.Properties.Will = mochi.Will{}
	if !p.Connect.WillFlag {
		return nil
	}
	w := &will{publication: publication{
		topic: p.Connect.WillTopic, payload: p.Connect.WillPayload, qos: p.Connect.WillQos, retain: p.Connect.WillRetain,
		version: p.ProtocolVersion,
	}}
	if !c.v5 {
		return w
	}
	props := p.Connect.WillProperties
	// The session's end is the latest time for the will (MQTT 5, section 3.1.3.2.2).
	w.delay = time.Duration(min(props.WillDelayInterval, p.Properties.SessionExpiryInterval)) * time.Second
	props.WillDelayInterval = 0
	w.props = &props
	return w
}

// wills holds the wills that wait for their delay, by client id.
type wills struct {
	mu      sync.Mutex // guards waiting
	waiting map[string]delayedWill
}

type delayedWill struct {
	will
	due time.Time
}

func (w *wills) add(id string, d will) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waiting == nil {
		w.waiting = map[string]delayedWill{}
	}
	w.waiting[id] = delayedWill{d, time.Now().Add(d.delay)}
}

// remove returns the will of a client that waits, and removes it.
func (w *wills) remove(id string) (will, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	d, ok := w.waiting[id]
	delete(w.waiting, id)
	return d.will, ok
}

// due removes and returns the wills whose time has come.
func (w *wills) due(now time.Time) []will {
	w.mu.Lock()
	defer w.mu.Unlock()
	var due []will
	for id, d := range w.waiting {
		if !now.Before(d.due) {
			due = append(due, d.will)
			delete(w.waiting, id)
		}
	}
	return due
}

// publishWill sends a will the way of every publish: through the log, then to the subscribers. Its rights were checked at
// CONNECT.
func (b *Broker) publishWill(ctx context.Context, w will) {
	b.counts.publishes.Add(1)
	batch := pipeline.Batch{Messages: []pipeline.Message{w.message(b.name)}, Order: w.origin, Urgent: true}
	b.put(ctx, batch, func(err error) {
		b.outcome(err)
		if err != nil {
			b.log.Warn("will could not be stored", "client", w.origin, "topic", w.topic, "err", err)
			return
		}
		b.fanout.add(w.publication)
	})
}
