package pulsar

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"

	"edgegateway/pipeline"
	"edgegateway/uplink"
)

// Config is the section of a Pulsar uplink in the config file.
type Config struct {
	Servers     []string   `yaml:"servers" doc:"HOST:PORT of the brokers or proxies to ask first." required:"true" min:"1"`
	Topic       string     `yaml:"topic" doc:"Topic to write to, TENANT/NAMESPACE/NAME, or NAME alone for public/default; {gateway}, {stream} and {uplink} are filled in." default:"public/default/edge-{gateway}-{stream}"`
	CursorTopic string     `yaml:"cursor_topic" doc:"Small topic beside it, for delivery effectively_once and exactly_once: who writes, and where an operator or a dead letter has moved the cursor. Empty for the topic with -cursor behind it."`
	Pack        int        `yaml:"pack" doc:"Records in one message, as lines; 1 for a message each." default:"1" min:"1" max:"1000"`
	Compression string     `yaml:"compression" doc:"Compression of messages." enum:"none|lz4|zlib|zstd|snappy" default:"lz4"`
	TokenFile   string     `yaml:"token_file" doc:"File with the token to sign in with; read again at each connection."`
	OAuth2      OAuth2     `yaml:"oauth2" doc:"Sign-in with OAuth 2.0 (client credentials) instead."`
	TLS         uplink.TLS `yaml:"tls" doc:"Encryption of the connection. A client certificate signs in where there is neither token nor oauth2."`
	Admin       string     `yaml:"admin" doc:"http:// or https:// URL of the admin API, where the gateway may ask it whether the topic keeps what nobody has read yet, and what it takes at once; empty for not asking."`

	claims claims
	links  sync.WaitGroup // clients that were closed and have not said goodbye yet
	faulty faults

	Sending uplink.Policy `yaml:"sending" doc:"When and how much is sent."`
}

// OAuth2 is the section of the sign-in with client credentials.
type OAuth2 struct {
	KeyFile  string `yaml:"key_file" doc:"JSON file with type, client_id, client_secret and issuer_url; empty for no sign-in of this kind. It is read again at each connection."`
	Issuer   string `yaml:"issuer" doc:"URL of the issuer; empty for the one in the file."`
	Audience string `yaml:"audience" doc:"Audience that the broker expects."`
	Scope    string `yaml:"scope" doc:"Scopes to ask for, with spaces between them."`
}

// faults are what a test leaves out to see what goes wrong without it.
type faults struct{ noReadBack, noDedup bool }

// SendingPolicy implements uplink.HasPolicy.
func (c *Config) SendingPolicy() *uplink.Policy { return &c.Sending }

// Check implements pipeline.Checker.
func (c *Config) Check() []pipeline.Problem {
	problems := append(uplink.CheckTemplate("topic", c.Topic), uplink.CheckTemplate("cursor_topic", c.CursorTopic)...)
	problems = append(problems, uplink.CheckPolicy("sending", &c.Sending)...)
	add := func(path, text string) { problems = append(problems, pipeline.Problem{Path: path, Text: text}) }
	for i, server := range c.Servers {
		if _, _, err := net.SplitHostPort(server); err != nil || strings.Contains(server, "/") {
			add("servers["+strconv.Itoa(i)+"]", fmt.Sprintf("%q is not HOST:PORT (want one, such as pulsar.example.com:6650, without pulsar://)", server))
		}
	}
	for _, t := range []struct{ path, topic string }{{"topic", c.Topic}, {"cursor_topic", c.cursorTopic()}} {
		if text := checkName(t.topic); text != "" {
			add(t.path, text)
			break // the second follows from the first
		}
	}
	if c.CursorTopic != "" && fullTopic(c.CursorTopic) == fullTopic(c.Topic) {
		add("cursor_topic", "the same as topic (want another one, so that consumers of the data do not read the cursor)")
	}
	if c.TokenFile != "" && c.OAuth2.KeyFile != "" {
		add("token_file", "two ways to sign in (want either token_file or oauth2)")
	}
	if o := c.OAuth2; o.KeyFile == "" && (o.Issuer != "" || o.Audience != "" || o.Scope != "") {
		add("oauth2.key_file", "missing (want the file with the client's id and secret)")
	}
	if c.Admin != "" && !strings.HasPrefix(c.Admin, "http://") && !strings.HasPrefix(c.Admin, "https://") {
		add("admin", fmt.Sprintf("%q is no URL of an admin API (want http://HOST:8080 or https://HOST:8443)", c.Admin))
	}
	return append(problems, uplink.CheckTLS(&c.TLS)...)
}

const persistent = "persistent://"

func checkName(topic string) string {
	switch name := strings.TrimPrefix(topic, persistent); {
	case strings.HasPrefix(topic, "non-persistent://"):
		return fmt.Sprintf("%q is not persistent: the broker keeps nothing of it (want a persistent topic)", topic)
	case name == "", strings.Contains(name, "://"), strings.ContainsAny(name, " \t\n"), strings.HasPrefix(name, "/"), strings.HasSuffix(name, "/"),
		strings.Contains(name, "/") && strings.Count(name, "/") != 2:
		return fmt.Sprintf("%q is no topic (want TENANT/NAMESPACE/NAME, or NAME alone for public/default)", topic)
	}
	return ""
}

// fullTopic returns the whole name of a topic.
func fullTopic(topic string) string {
	topic = strings.TrimPrefix(topic, persistent)
	if !strings.Contains(topic, "/") {
		topic = "public/default/" + topic
	}
	return persistent + topic
}

// cursorTopic returns the template of the cursor's topic.
func (c *Config) cursorTopic() string {
	if c.CursorTopic == "" && c.Topic != "" {
		return c.Topic + "-cursor"
	}
	return c.CursorTopic
}

// What is sent at once.
const (
	batchBytes   = 128 << 10 // of one batch or pack; the library's own default. What goes alone may have more
	batchRecords = 1000
	maxPending   = 8192 // above what a Runner has in flight, so that the library never blocks
	clientMemory = 16 << 20

	// What the library is told of batches: the session cuts them itself.
	neverFull    = 1 << 30
	neverWaiting = 365 * 24 * time.Hour
)

// InFlight implements uplink.Roomy: enough for some batches, while the broker has others on their way to its disks.
func (c *Config) InFlight(uplink.Promise) (records, bytes int) { return 4096, 2 << 20 }

// Open implements uplink.Driver.
func (c *Config) Open(ctx context.Context, env uplink.Env) (uplink.Session, error) {
	l, err := c.connect(ctx, env)
	if err != nil {
		return nil, err
	}
	s := &session{link: l, env: env, pack: max(c.Pack, 1), aloft: map[*message]struct{}{}, exact: env.Promise.Delivery == uplink.ExactlyOnce, claims: &c.claims}
	s.ordered = s.exact || env.Promise.Delivery == uplink.EffectivelyOnce
	s.batching = s.ordered || s.pack == 1
	s.room = room{bytes: batchBytes, topic: c.claims.narrow(s.topic)}
	topic := s.topic // what is opened may find a partition of it, also after its time is up
	var far uplink.Session = s
	if s.ordered && !s.exact {
		far = lettersFirst{s}
	}
	err = l.do(ctx, func() error {
		if !s.exact {
			return s.open(c)
		}
		e := &exactSession{session: s, config: c, keep: !c.faulty.noReadBack}
		far = e
		return e.open()
	})
	if err == nil && c.Admin != "" {
		err = c.checkTopic(ctx, s)
	}
	if err != nil {
		l.fail(err)
		err = l.reason()
		l.hangUp()
		if errors.Is(err, errEnded) {
			return nil, c.terminated(ctx, env)
		}
		return nil, l.explainOf(topic, err)
	}
	context.AfterFunc(l.ctx, s.giveUp)
	return far, nil
}

// terminated says which of a session's two topics is terminated, of which it has heard that one is. A producer is told, unless the broker
// looks first for one that has the topic to itself; nobody has the cursor's.
func (c *Config) terminated(ctx context.Context, env uplink.Env) error {
	l, err := c.connect(ctx, env)
	if err != nil {
		return err
	}
	defer l.hangUp()
	answer := make(chan error, 1)
	err = l.do(ctx, func() error {
		data, err := l.partition(l.topic, "")
		if err != nil {
			return err
		}
		cursor, err := l.partition(l.cursor, "")
		if err != nil {
			return err
		}
		if _, err = l.noteProducer(cursor); err != nil {
			return l.explainOf(cursor, err)
		}
		answer <- terminated(data)
		return nil
	})
	if err != nil {
		return l.explain(err)
	}
	return <-answer
}

// open makes the producer of what is not exactly_once.
func (s *session) open(c *Config) error {
	var topic, name string
	if s.ordered {
		name = producerName(s.env, 0)
		if c.faulty.noDedup {
			name += rand.Text()
		}
	}
	err := s.together(
		func() (err error) {
			topic, err = s.partition(s.topic, s.env.Gateway+"/"+s.env.Stream)
			return err
		},
		func() error {
			if !s.ordered {
				return nil
			}
			return c.probeRepeats(s)
		})
	if err != nil {
		return err
	}
	s.topic = topic
	return s.produce(c, name, pulsar.ProducerAccessModeShared)
}

// producerName returns the name under which the broker remembers sequence ids. A new epoch, and a cursor that was set back, has a
// name of its own, because its sequences begin anew.
func producerName(env uplink.Env, generation uint64) string {
	name := fmt.Sprintf("edge-gateway/%s/%s/%d", env.Gateway, env.Stream, env.Epoch)
	if generation > 0 {
		name += fmt.Sprintf("/%d", generation)
	}
	return name
}

// produce makes the producer. It is never connected again: the library would send again what was in flight.
func (s *session) produce(c *Config, name string, access pulsar.ProducerAccessMode) error {
	if s.ctx.Err() != nil {
		return s.failure()
	}
	never := uint(0)
	producer, err := s.client.CreateProducer(pulsar.ProducerOptions{
		Topic: s.topic, Name: name, ProducerAccessMode: access, SendTimeout: -1, MaxPendingMessages: maxPending,
		DisableBatching: !s.batching, BatchingMaxPublishDelay: neverWaiting, BatchingMaxMessages: neverFull, BatchingMaxSize: neverFull,
		CompressionType: compressions[c.Compression], MaxReconnectToBroker: &never, BackOffPolicyFunc: s.lost,
	})
	if err != nil {
		return err
	}
	s.producer = producer
	if s.ordered {
		next, ok := nextSequence(producer)
		if !ok {
			return errors.New("the library does not say how far the broker is (want the version of it that this gateway was made for)")
		}
		s.next = next
	}
	s.mu.Lock()
	s.link.refused = s.refused
	s.mu.Unlock()
	return nil
}

var compressions = map[string]pulsar.CompressionType{
	"": pulsar.LZ4, "none": pulsar.NoCompression, "lz4": pulsar.LZ4, "zlib": pulsar.ZLib, "zstd": pulsar.ZSTD, "snappy": pulsar.SNAPPY,
}

// errClosed ends a session that was told to close.
var errClosed = errors.New("the session was closed")
