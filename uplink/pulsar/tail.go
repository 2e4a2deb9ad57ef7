package pulsar

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/backoff"
)

// tail gives what comes to a topic, by a subscription that the broker forgets with the connection.
type tail struct {
	link     *link
	consumer pulsar.Consumer
	topic    string
	seen     pulsar.MessageID // last message that was given; nil for none
}

// follow begins at the end of a topic. What ends the connection ends the link, for there is a producer on it too.
func (l *link) follow(topic string) (*tail, error) {
	consumer, err := l.client.Subscribe(pulsar.ConsumerOptions{
		Topic: topic, SubscriptionName: "edge-gateway-reader-" + rand.Text(), SubscriptionMode: pulsar.NonDurable,
		ReceiverQueueSize: 16, MaxReconnectToBroker: new(uint),
	})
	if err != nil {
		return nil, err
	}
	return &tail{link: l, consumer: consumer, topic: topic}, nil
}

// last returns where the topic's last message is, or nil where it has none.
func (t *tail) last() (pulsar.MessageID, error) {
	ids, err := t.consumer.GetLastMessageIDs()
	if err != nil || ids[0].EntryID() < 0 {
		return nil, err
	}
	return ids[0], nil
}

// next waits for the next message.
func (t *tail) next(ctx context.Context) (pulsar.Message, error) {
	m, err := t.consumer.Receive(ctx)
	if err == nil {
		t.seen = m.ID()
		_ = t.consumer.Ack(m) // it only gives the broker's memory back
	}
	return m, err
}

// through visits what comes up to the topic's last message of now, which came after follow.
func (t *tail) through(visit func(pulsar.Message) error) error {
	last, err := t.last()
	if err != nil || last == nil {
		return err
	}
	return t.link.upTo(t.topic, last, t.seen, t.next, visit)
}

// lastMessage returns the topic's last message, or nil.
func (t *tail) lastMessage() (last pulsar.Message, err error) {
	err = t.from(nil, func(m pulsar.Message) error { last = m; return nil })
	return last, err
}

// from visits what the topic has from a message on; nil stands for the last one. The library's consumers cannot begin at a message:
// they seek, and then the broker may close the new consumer in the place of the old one, which the library does not notice. Its
// Reader can, but its Next races with its own reconnect, so that one has to wait.
func (t *tail) from(start pulsar.MessageID, visit func(pulsar.Message) error) error {
	last, err := t.last()
	if err != nil || last == nil {
		return err
	}
	if start == nil {
		start = last
	}
	read := make(chan struct{})
	reader, err := t.link.client.CreateReader(pulsar.ReaderOptions{
		Topic: t.topic, StartMessageID: start, StartMessageIDInclusive: true, ReceiverQueueSize: 100,
		BackoffPolicyFunc: func() backoff.Policy {
			t.link.fail(nil)
			<-read
			return backoff.NewDefaultBackoff()
		},
	})
	if err != nil {
		return err
	}
	defer t.link.calls.Go(reader.Close)
	defer close(read)
	return t.link.upTo(t.topic, last, nil, reader.Next, visit)
}

// upTo visits what next gives, up to a message that is there.
func (l *link) upTo(topic string, last, seen pulsar.MessageID, next func(context.Context) (pulsar.Message, error), visit func(pulsar.Message) error) error {
	ctx, cancel := context.WithTimeout(l.ctx, operationTimeout)
	defer cancel()
	for before(seen, last) {
		m, err := next(ctx)
		if errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("%s does not give the last messages of %s in time", l.address, topic)
		}
		if err == nil {
			seen = m.ID()
			err = visit(m)
		}
		if err != nil {
			return err
		}
	}
	return nil
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

// before reports whether a message stands before another one; nil stands before all.
func before(a, b pulsar.MessageID) bool {
	if a == nil {
		return true
	}
	return cmp.Or(cmp.Compare(a.LedgerID(), b.LedgerID()), cmp.Compare(a.EntryID(), b.EntryID()), cmp.Compare(a.BatchIdx(), b.BatchIdx())) < 0
}
