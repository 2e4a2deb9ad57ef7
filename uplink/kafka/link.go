package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
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
	loads    *loads
	quota    *throttle
	ctx      context.Context //nolint:containedctx // ends with Close, and every Send with it
	cancel   context.CancelFunc
	batch    int               // bytes of a batch, at most
	topics   map[string]*terms // those known; used by Open and then by Send only
}

// terms are what a topic takes.
type terms struct {
	topic string
	bytes int           // of a batch
	keeps time.Duration // a record with an older time may be deleted at once; 0 for no bound
}

// usual are the terms where the settings may not be read: what a broker has that was told nothing else.
func usual(topic string) *terms {
	return &terms{topic: topic, bytes: batchBytes, keeps: 7 * 24 * time.Hour}
}

// meet makes the client and looks for the topics. A batch must not be larger than the topic takes, which is known only then: the
// client is made again where that is less than usual. Each question counts here: on a satellite line an answer takes seconds.
func (l *link) meet(ctx context.Context, client func(batch int) (*kgo.Client, error), also ...string) (kadm.TopicDetails, map[string][]kadm.Config, error) {
	var err error
	dial := func(batch int) error {
		l.batch = batch
		if l.client, err = client(batch); err != nil {
			return uplink.Config(fmt.Errorf("settings: %w", err))
		}
		return nil
	}
	if err := dial(batchBytes); err != nil {
		return nil, nil, err
	}
	topics, settings, err := l.ask(ctx, append(also, l.topic)...)
	if err != nil || l.topic == "" {
		return topics, settings, err
	}
	if err := topics[l.topic].Err; err != nil {
		return nil, nil, err
	}
	t := termsOf(l.topic, settings[l.topic])
	l.topics[l.topic] = t
	if t.bytes < l.batch {
		l.client.Close()
		err = dial(max(t.bytes, 1<<10)) // the least that the client allows
		t.bytes = max(t.bytes, 1<<10)
	}
	return topics, settings, err
}

// ask returns what there is of topics, and their settings where they may be read: a producer needs not have the right to.
func (l *link) ask(ctx context.Context, names ...string) (kadm.TopicDetails, map[string][]kadm.Config, error) {
	names = slices.DeleteFunc(names, func(name string) bool { return name == "" })
	if len(names) == 0 {
		return nil, nil, l.client.Ping(ctx)
	}
	admin := kadm.NewClient(l.client)
	var described kadm.ResourceConfigs
	var describing sync.WaitGroup
	describing.Go(func() { described, _ = admin.DescribeTopicConfigs(ctx, names...) }) // at once, for on some lines an answer takes seconds
	topics, err := admin.ListTopics(ctx, names...)
	describing.Wait()
	if errors.Is(err, kerr.TopicAuthorizationFailed) { // which one, it does not say
		for _, name := range names {
			if _, err := admin.ListTopics(ctx, name); err != nil {
				return nil, nil, l.explainOf(name, err)
			}
		}
	}
	if err != nil {
		return nil, nil, err
	}
	settings := map[string][]kadm.Config{}
	for _, d := range described {
		if d.Err == nil {
			settings[d.Name] = d.Configs
		}
	}
	return topics, settings, nil
}

// learn returns the terms of a topic.
func (l *link) learn(ctx context.Context, topic string) (*terms, error) {
	if t, ok := l.topics[topic]; ok {
		return t, nil
	}
	topics, settings, err := l.ask(ctx, topic)
	if err != nil {
		return nil, err
	}
	if err := topics[topic].Err; err != nil {
		return nil, l.explainOf(topic, err)
	}
	t := termsOf(topic, settings[topic])
	l.topics[topic] = t
	return t, nil
}

func termsOf(topic string, settings []kadm.Config) *terms {
	t := usual(topic)
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
func (l *link) topicOf(ctx context.Context, rec *uplink.Record) (string, *terms, error) {
	topic := l.topic
	if topic == "" {
		topic = l.template.Of(&rec.Message)
		if len(topic) > topicLength {
			return "", nil, errors.New("the name of its topic has more than 249 characters: " + topic)
		}
	}
	t, err := l.learn(ctx, topic)
	return topic, t, err
}
