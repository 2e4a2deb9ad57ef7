package pulsar

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/apache/pulsar-client-go/pulsar"
)

// tail reads a topic by a subscription that the broker forgets with the connection. The library has a Reader for that, whose Next
// races with its own reconnect.
type tail struct {
	link     *link
	consumer pulsar.Consumer
	topic    string
	seen     pulsar.MessageID // last message that was given; nil for none
}

// follow begins at the end of a topic.
func (l *link) follow(topic string) (*tail, error) {
	consumer, err := l.client.Subscribe(pulsar.ConsumerOptions{
		Topic: topic, SubscriptionName: "edge-gateway-reader-" + rand.Text(), SubscriptionMode: pulsar.NonDurable,
		ReceiverQueueSize: 16, StartMessageIDInclusive: true,
	})
	if err != nil {
		return nil, err
	}
	return &tail{link: l, consumer: consumer, topic: topic}, nil
}

// last returns where the topic's last message is, or nil where it has none.
func (t *tail) last() (pulsar.MessageID, error) {
	ids, err := t.consumer.GetLastMessageIDs()
	if err != nil {
		return nil, err
	}
	if len(ids) == 0 || ids[0].EntryID() < 0 {
		return nil, nil
	}
	return ids[0], nil
}

// begin makes a message the next one that is given; nil is the topic's first.
func (t *tail) begin(at pulsar.MessageID) error {
	t.seen = nil
	if at == nil {
		at = pulsar.EarliestMessageID()
	}
	return t.consumer.Seek(pulsar.NewMessageID(at.LedgerID(), at.EntryID(), at.BatchIdx(), 0)) // there is one consumer, for one partition
}

// through visits what lies before the reader, up to the topic's last message of now.
func (t *tail) through(visit func(pulsar.Message) error) error {
	last, err := t.last()
	if err != nil || last == nil {
		return err
	}
	ctx, cancel := context.WithTimeout(t.link.ctx, operationTimeout)
	defer cancel()
	for before(t.seen, last) {
		m, err := t.next(ctx)
		if errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("%s does not give the last messages of %s in time", t.link.address, t.topic)
		}
		if err == nil {
			err = visit(m)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// next waits for the next message.
func (t *tail) next(ctx context.Context) (pulsar.Message, error) {
	for {
		m, err := t.consumer.Receive(ctx)
		if err != nil {
			return nil, err
		}
		_ = t.consumer.Ack(m)       // only gives the broker's memory back
		if before(t.seen, m.ID()) { // or the library has begun again where it was told to
			t.seen = m.ID()
			return m, nil
		}
	}
}

// lastMessage returns the last message of a topic, or nil.
func (l *link) lastMessage(topic string) (pulsar.Message, error) {
	t, err := l.follow(topic)
	if err != nil {
		return nil, err
	}
	defer l.calls.Go(t.consumer.Close)
	return t.lastMessage()
}

func (t *tail) lastMessage() (last pulsar.Message, err error) {
	at, err := t.last()
	if err != nil || at == nil {
		return nil, err
	}
	if err := t.begin(at); err != nil {
		return nil, err
	}
	err = t.through(func(m pulsar.Message) error { last = m; return nil })
	return last, err
}

// before reports whether a message stands before another one; nil stands before all.
func before(a, b pulsar.MessageID) bool {
	if a == nil {
		return true
	}
	return cmp.Or(cmp.Compare(a.LedgerID(), b.LedgerID()), cmp.Compare(a.EntryID(), b.EntryID()), cmp.Compare(a.BatchIdx(), b.BatchIdx())) < 0
}
