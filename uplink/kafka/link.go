package kafka

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"edgegateway/uplink"
)

// link is what both kinds of session have.
type link struct {
	client   *kgo.Client
	address  string
	template *uplink.Template
	topic    string // empty where it depends on the message
	gateway  string
	id       string // transactional id; for transactions only
	heads    heads
	ctx      context.Context //nolint:containedctx // ends with Close, and every Send with it
	cancel   context.CancelFunc
	batch    int              // bytes of a batch, at most
	topics   map[string]terms // those known; used by Open and then by Send only
}

// terms are what a topic takes.
type terms struct {
	bytes int           // of a batch
	keeps time.Duration // a record with an older time may be deleted at once; 0 for no bound
}

// usual are the terms where the settings may not be read: what a broker has that was told nothing else.
func usual() terms { return terms{bytes: batchBytes, keeps: 7 * 24 * time.Hour} }

// look asks the broker about the topic with a client of its own: how large a batch may be, the producing one is told when it is made.
func (l *link) look(ctx context.Context, options []kgo.Opt, also func(context.Context, *kadm.Client) error) error {
	client, err := kgo.NewClient(options...)
	if err != nil {
		return uplink.Config(fmt.Errorf("settings: %w", err))
	}
	defer client.Close()
	l.client = client
	defer func() { l.client = nil }()
	if err := l.greet(ctx); err != nil {
		return err
	}
	l.batch = batchBytes
	if l.topic != "" {
		l.batch = max(l.topics[l.topic].bytes, 1<<10) // the least that the client allows
	}
	return also(ctx, kadm.NewClient(client))
}

// greet signs in and looks for the topic, where that does not depend on the message.
func (l *link) greet(ctx context.Context) error {
	if err := l.client.Ping(ctx); err != nil {
		return err
	}
	if l.topic == "" {
		return nil
	}
	_, err := l.learn(ctx, l.topic)
	return err
}

// learn returns the terms of a topic.
func (l *link) learn(ctx context.Context, topic string) (terms, error) {
	if t, ok := l.topics[topic]; ok {
		return t, nil
	}
	admin := kadm.NewClient(l.client)
	topics, err := admin.ListTopics(ctx, topic)
	if err != nil {
		return terms{}, err
	}
	if err := topics[topic].Err; err != nil {
		return terms{}, l.explainOf(topic, err)
	}
	t := usual()
	// A producer needs not have the right to read them.
	if configs, err := admin.DescribeTopicConfigs(ctx, topic); err == nil && len(configs) == 1 && configs[0].Err == nil {
		t = termsOf(configs[0].Configs)
	}
	l.topics[topic] = t
	return t, nil
}

func termsOf(settings []kadm.Config) terms {
	t := usual()
	for _, c := range settings {
		value := c.MaybeValue()
		n, err := strconv.ParseInt(value, 10, 64)
		switch {
		case c.Key == "max.message.bytes" && err == nil:
			t.bytes = int(min(int64(t.bytes), n))
		case c.Key == "retention.ms" && err == nil:
			t.keeps = time.Duration(min(max(n, 0), int64(1<<62)/int64(time.Millisecond))) * time.Millisecond // -1 is for ever
		}
	}
	for _, c := range settings {
		value := c.MaybeValue()
		if c.Key == "cleanup.policy" && !strings.Contains(value, "delete") || c.Key == "message.timestamp.type" && value == "LogAppendTime" {
			t.keeps = 0
		}
	}
	return t
}

// topicLength is the longest name that brokers take.
const topicLength = 249

func legal(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '_' || r == '-'
}

// legalName makes what a message says legal in the name of a topic: the levels of a path are set off by dots, as is usual there.
func legalName(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '/':
			return '.'
		case legal(r):
			return r
		}
		return '_'
	}, s)
}

// topicOf returns where a record goes and the terms there.
func (l *link) topicOf(ctx context.Context, rec *uplink.Record) (string, terms, error) {
	topic := l.topic
	if topic == "" {
		topic = l.template.Of(&rec.Message)
		if len(topic) > topicLength {
			return "", terms{}, errors.New("the name of its topic has more than 249 characters: " + topic)
		}
	}
	t, err := l.learn(ctx, topic)
	return topic, t, err
}
