package kafka

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"edgegateway/pipeline"
	"edgegateway/uplink"
)

// Config is the section of a Kafka uplink in the config file.
type Config struct {
	Brokers     []string        `yaml:"brokers" doc:"HOST:PORT of the brokers to ask first." required:"true" min:"1"`
	Topic       string          `yaml:"topic" doc:"Topic to produce to; {gateway}, {stream} and {uplink} are filled in." required:"true"`
	ClientID    string          `yaml:"client_id" doc:"Name in the brokers' logs and quotas; {gateway}, {stream} and {uplink} are filled in." default:"edge-gateway-{gateway}"`
	CursorTopic string          `yaml:"cursor_topic" doc:"Compacted topic that holds the far cursors, for delivery: exactly_once. It is made if it is missing." default:"edge-gateway-cursors"`
	Compression string          `yaml:"compression" doc:"How batches are compressed." default:"snappy" enum:"none|snappy|zstd|lz4|gzip"`
	SASL        string          `yaml:"sasl" doc:"How to sign in; empty for not at all." enum:"plain|scram-256|scram-512"`
	User        string          `yaml:"user" doc:"User to sign in as."`
	Password    pipeline.Secret `yaml:"password" doc:"Password of the user."`
	TLS         uplink.TLS      `yaml:"tls" doc:"Encryption of the connection."`

	Sending uplink.Policy `yaml:"sending" doc:"When and how much is sent."`
}

// SendingPolicy implements uplink.HasPolicy.
func (c *Config) SendingPolicy() *uplink.Policy { return &c.Sending }

// Check implements pipeline.Checker.
func (c *Config) Check() []pipeline.Problem {
	problems := append(uplink.CheckTemplate("topic", c.Topic), uplink.CheckTemplate("client_id", c.ClientID)...)
	problems = append(problems, uplink.CheckPolicy("sending", &c.Sending)...)
	add := func(path, text string) { problems = append(problems, pipeline.Problem{Path: path, Text: text}) }
	for path, topic := range map[string]string{"topic": c.Topic, "cursor_topic": c.CursorTopic} {
		if strings.ContainsFunc(topic, func(r rune) bool { return !strings.ContainsRune(topicRunes, r) }) || len(topic) > 249 {
			add(path, fmt.Sprintf("%q is no name of a topic (want at most 249 letters, digits and . _ -)", topic))
		}
	}
	if strings.ContainsAny(c.CursorTopic, "{}") {
		add("cursor_topic", "it has no placeholders: all gateways may share it (want a plain name)")
	}
	if c.Topic != "" && c.CursorTopic == c.Topic {
		add("cursor_topic", "the same as topic, and compaction would eat the records (want a topic of its own)")
	}
	switch {
	case c.SASL == "" && (c.User != "" || c.Password.IsSet()):
		add("sasl", "missing with a user (want plain, scram-256 or scram-512)")
	case c.SASL != "" && (c.User == "" || !c.Password.IsSet()):
		add("user", "sasl needs user and password (want both)")
	}
	return append(problems, uplink.CheckTLS(&c.TLS)...)
}

const topicRunes = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-{}"

// batchBytes bounds a batch before compression, chunkBytes what goes out in one chunk: the rest is for what franz-go
// counts besides keys, values and headers. Brokers take 1,048,588 bytes unless they are told otherwise.
const (
	batchBytes = 1_000_000
	chunkBytes = 900_000
)

// Open implements uplink.Driver.
func (c *Config) Open(ctx context.Context, env uplink.Env) (uplink.Session, error) {
	if env.Promise.Delivery == uplink.ExactlyOnce {
		return c.openExact(ctx, env, hooks{})
	}
	options, err := c.dial(env)
	if err != nil {
		return nil, err
	}
	client, err := kgo.NewClient(append(append(options, c.produce(batchBytes)...), kgo.ManualFlushing(),
		kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)))...)
	if err != nil {
		return nil, uplink.Config(fmt.Errorf("settings: %w", err))
	}
	s := &session{client: client, topic: uplink.Expand(c.Topic, env), address: strings.Join(c.Brokers, ", ")}
	s.loose = env.Promise.Order == uplink.OrderKey || env.Promise.Order == uplink.OrderNone
	s.ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	if err := s.greet(ctx); err != nil {
		s.Close()
		return nil, s.explain(err)
	}
	return s, nil
}

// produce returns how a client produces batches of at most so many bytes.
func (c *Config) produce(batch int) []kgo.Opt {
	compression := map[string]kgo.CompressionCodec{
		"": kgo.SnappyCompression(), "none": kgo.NoCompression(), "snappy": kgo.SnappyCompression(),
		"zstd": kgo.ZstdCompression(), "lz4": kgo.Lz4Compression(), "gzip": kgo.GzipCompression(),
	}[c.Compression]
	return []kgo.Opt{
		kgo.RequiredAcks(kgo.AllISRAcks()), // and idempotent, which is franz-go's default and rests on it
		kgo.ProducerBatchMaxBytes(int32(batch)), kgo.ProducerBatchCompression(compression),
		kgo.MaxBufferedRecords(8192),
		// A topic that goes away must show, not hang; one that was just made needs a moment.
		kgo.UnknownTopicRetries(4),
	}
}

// dial returns how a client finds the brokers and signs in.
func (c *Config) dial(env uplink.Env) ([]kgo.Opt, error) {
	tls, err := c.TLS.Client()
	if err != nil {
		return nil, err
	}
	options := []kgo.Opt{
		kgo.SeedBrokers(c.Brokers...), kgo.ClientID(uplink.Expand(c.ClientID, env)), kgo.DisableClientMetrics(),
		kgo.MetadataMinAge(time.Second),
		kgo.DialTimeout(5 * time.Second), kgo.RequestTimeoutOverhead(10 * time.Second), kgo.RequestRetries(2),
	}
	if tls != nil {
		options = append(options, kgo.DialTLSConfig(tls))
	}
	user, password := c.User, c.Password.Reveal()
	switch c.SASL {
	case "plain":
		options = append(options, kgo.SASL(plain.Auth{User: user, Pass: password}.AsMechanism()))
	case "scram-256":
		options = append(options, kgo.SASL(scram.Auth{User: user, Pass: password}.AsSha256Mechanism()))
	case "scram-512":
		options = append(options, kgo.SASL(scram.Auth{User: user, Pass: password}.AsSha512Mechanism()))
	}
	return options, nil
}

// greet signs in, looks for the topic and asks how large a batch may be.
func (s *session) greet(ctx context.Context) error {
	if err := s.client.Ping(ctx); err != nil {
		return err
	}
	admin := kadm.NewClient(s.client)
	topics, err := admin.ListTopics(ctx, s.topic)
	if err != nil {
		return err
	}
	if err := topics[s.topic].Err; err != nil {
		return err
	}
	s.limit, s.takes = chunkBytes, batchBytes // where the settings may not be read
	configs, err := admin.DescribeTopicConfigs(ctx, s.topic)
	if err != nil || len(configs) != 1 || configs[0].Err != nil {
		return nil //nolint:nilerr // a right that a producer needs not have
	}
	for _, c := range configs[0].Configs {
		if n, err := strconv.Atoi(c.MaybeValue()); err == nil && c.Key == "max.message.bytes" {
			s.limit, s.takes = min(s.limit, n-n/10), min(s.takes, n)
		}
	}
	return nil
}
