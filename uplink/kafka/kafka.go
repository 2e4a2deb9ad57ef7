package kafka

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"edgegateway/pipeline"
	"edgegateway/uplink"
)

// Config is the section of a Kafka uplink in the config file.
type Config struct {
	Brokers     []string        `yaml:"brokers" doc:"HOST:PORT of the brokers to ask first." required:"true" min:"1"`
	Topic       string          `yaml:"topic" doc:"Topic to produce to; {gateway}, {stream} and {uplink} are filled in, and of each message {topic}, {source} and {key}." required:"true"`
	ClientID    string          `yaml:"client_id" doc:"Name in the brokers' logs and quotas; {gateway}, {stream} and {uplink} are filled in." default:"edge-gateway-{gateway}"`
	CursorTopic string          `yaml:"cursor_topic" doc:"Compacted topic that holds the far cursors, for delivery: exactly_once. It is made if it is missing." default:"edge-gateway-cursors"`
	Compression string          `yaml:"compression" doc:"How batches are compressed." default:"snappy" enum:"none|snappy|zstd|lz4|gzip"`
	SASL        string          `yaml:"sasl" doc:"How to sign in; empty for not at all." enum:"plain|scram-256|scram-512|oauthbearer"`
	User        string          `yaml:"user" doc:"User to sign in as."`
	Password    pipeline.Secret `yaml:"password" doc:"Password of the user."`
	TokenFile   string          `yaml:"token_file" doc:"File with the token for sasl: oauthbearer. It is read at each connection."`
	TLS         uplink.TLS      `yaml:"tls" doc:"Encryption of the connection."`

	Sending uplink.Policy `yaml:"sending" doc:"When and how much is sent."`
}

// SendingPolicy implements uplink.HasPolicy.
func (c *Config) SendingPolicy() *uplink.Policy { return &c.Sending }

// Check implements pipeline.Checker.
func (c *Config) Check() []pipeline.Problem {
	problems := append(uplink.CheckMessageTemplate("topic", c.Topic), uplink.CheckTemplate("client_id", c.ClientID)...)
	problems = append(problems, uplink.CheckPolicy("sending", &c.Sending)...)
	add := func(path, text string) { problems = append(problems, pipeline.Problem{Path: path, Text: text}) }
	for path, topic := range map[string]string{"topic": c.Topic, "cursor_topic": c.CursorTopic} {
		if strings.ContainsFunc(topic, func(r rune) bool { return !legal(r) && r != '{' && r != '}' }) || len(topic) > topicLength {
			add(path, fmt.Sprintf("%q is no name of a topic (want at most %d letters, digits and . _ -)", topic, topicLength))
		}
	}
	if strings.ContainsAny(c.CursorTopic, "{}") {
		add("cursor_topic", "it has no placeholders: all gateways may share it (want a plain name)")
	}
	if c.Topic != "" && c.CursorTopic == c.Topic {
		add("cursor_topic", "the same as topic, and compaction would eat the records (want a topic of its own)")
	}
	switch signed := c.User != "" || c.Password.IsSet(); {
	case c.SASL == "" && (signed || c.TokenFile != ""):
		add("sasl", "missing with a user or token (want plain, scram-256, scram-512 or oauthbearer)")
	case c.SASL == "oauthbearer" && (signed || c.TokenFile == ""):
		add("token_file", "sasl: oauthbearer signs in with a token (want token_file, and neither user nor password)")
	case c.SASL != "" && c.SASL != "oauthbearer" && (c.User == "" || !c.Password.IsSet() || c.TokenFile != ""):
		add("user", "sasl needs user and password (want both, and no token_file)")
	}
	return append(problems, uplink.CheckTLS(&c.TLS)...)
}

// batchBytes bounds a batch before compression, recordBytes a record: the rest is for what franz-go counts besides keys, values
// and headers. Brokers take 1,048,588 bytes unless they are told otherwise.
const (
	batchBytes  = 1_000_000
	recordBytes = 900_000
)

// linger is how long a batch that is not full waits for more.
const linger = 5 * time.Millisecond

// Open implements uplink.Driver.
func (c *Config) Open(ctx context.Context, env uplink.Env) (uplink.Session, error) {
	if env.Promise.Delivery == uplink.ExactlyOnce {
		return c.openExact(ctx, env, hooks{})
	}
	s := &session{room: make(chan struct{}, 1)}
	s.link = c.link(ctx, env)
	s.sending, s.refuse = context.WithCancel(s.ctx)
	s.loose = env.Promise.Order == uplink.OrderKey || env.Promise.Order == uplink.OrderNone
	s.each = s.loose || s.topic == ""
	if err := s.open(ctx, c, env); err != nil {
		s.hangUp()
		return nil, s.explain(err)
	}
	return s, nil
}

// hangUp ends the client, if there is one.
func (l *link) hangUp() {
	l.cancel()
	l.quota.end()
	if l.client != nil {
		l.client.Close() // does not flush: what is in flight is in doubt
	}
}

// link returns what both kinds of session have, but for the client.
func (c *Config) link(ctx context.Context, env uplink.Env) link {
	l := link{
		address: strings.Join(c.Brokers, ", "), gateway: env.Gateway, topics: map[string]*terms{},
		template: uplink.NewTemplate(c.Topic, env, legalName), loads: &loads{heads: newHeads(env)}, quota: newThrottle(env),
	}
	if !l.template.ByMessage() {
		l.topic = l.template.Of(nil)
	}
	l.ctx, l.cancel = context.WithCancel(context.WithoutCancel(ctx))
	return l
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
	// franz-go begins each connection with a version of this question that brokers refuse, and asks again: a round trip for nothing.
	versions := kversion.Stable()
	versions.SetMaxKeyVersion(int16(kmsg.ApiVersions), 4)
	options := []kgo.Opt{
		kgo.MaxVersions(versions), kgo.SeedBrokers(c.Brokers...), kgo.ClientID(uplink.Expand(c.ClientID, env)), kgo.DisableClientMetrics(),
		kgo.MetadataMinAge(time.Second),
		kgo.DialTimeout(5 * time.Second), kgo.RequestTimeoutOverhead(10 * time.Second), kgo.RequestRetries(2),
	}
	if tls != nil {
		options = append(options, kgo.DialTLSConfig(tls))
	}
	if signIn := c.signIn(); signIn != nil {
		options = append(options, kgo.SASL(signIn))
	}
	return options, nil
}
