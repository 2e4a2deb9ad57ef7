package nats

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"edgegateway/pipeline"
	"edgegateway/uplink"
)

// Config is the section of a NATS uplink in the config file.
type Config struct {
	Servers         []string        `yaml:"servers" doc:"HOST:PORT or nats:// URL of each server." required:"true" min:"1"`
	Subject         string          `yaml:"subject" doc:"Subject to publish to; {gateway}, {stream} and {uplink} are filled in." default:"edge.{gateway}.{stream}"`
	Stream          string          `yaml:"stream" doc:"Name of the JetStream stream that must take the subject; empty for whichever does."`
	Create          bool            `yaml:"create" doc:"Make the stream if it is missing." default:"false"`
	Replicas        int             `yaml:"replicas" doc:"Copies of a stream that is made." default:"1" min:"1" max:"5"`
	DuplicateWindow time.Duration   `yaml:"duplicate_window" doc:"How long a stream that is made recognises a record sent twice; longer than a connection is ever down in the middle of a send." default:"10m" min:"2m"`
	CursorSubject   string          `yaml:"cursor_subject" doc:"Subject of the message that says how far a stream is stored, for delivery exactly_once; the same placeholders. Empty for the subject with .cursor behind it."`
	Batch           int             `yaml:"batch" doc:"Records that are stored in one step with delivery exactly_once; the server's limit, by default 1000 (jetstream.limits.batch.max_msgs), counts one more." default:"999" min:"1" max:"10000"`
	User            string          `yaml:"user" doc:"User to sign in as."`
	Password        pipeline.Secret `yaml:"password" doc:"Password of the user."`
	Token           pipeline.Secret `yaml:"token" doc:"Token to sign in with instead."`
	NKeyFile        string          `yaml:"nkey_file" doc:"File with the seed of a user's nkey to sign in with instead."`
	CredsFile       string          `yaml:"creds_file" doc:"File of NATS credentials to sign in with instead."`
	TLS             uplink.TLS      `yaml:"tls" doc:"Encryption of the connection."`

	Sending uplink.Policy `yaml:"sending" doc:"When and how much is sent."`
}

// SendingPolicy implements uplink.HasPolicy.
func (c *Config) SendingPolicy() *uplink.Policy { return &c.Sending }

// Check implements pipeline.Checker.
func (c *Config) Check() []pipeline.Problem {
	problems := append(uplink.CheckTemplate("subject", c.Subject), uplink.CheckTemplate("stream", c.Stream)...)
	problems = append(problems, uplink.CheckTemplate("cursor_subject", c.CursorSubject)...)
	problems = append(problems, uplink.CheckPolicy("sending", &c.Sending)...)
	add := func(path, text string) { problems = append(problems, pipeline.Problem{Path: path, Text: text}) }
	for _, s := range []struct{ path, subject string }{{"subject", c.Subject}, {"cursor_subject", c.cursorSubject()}} {
		if s.subject == "" || strings.ContainsAny(s.subject, " \t*>") || strings.Contains("."+s.subject+".", "..") {
			add(s.path, fmt.Sprintf("%q is no subject to publish to (want words between dots, without spaces, * and >)", s.subject))
			break // the second follows from the first
		}
	}
	if c.CursorSubject == c.Subject && c.Subject != "" {
		add("cursor_subject", "the same as subject (want another one, so that consumers of the data do not read the cursor)")
	}
	if strings.ContainsAny(c.Stream, " \t.*>/\\") {
		add("stream", fmt.Sprintf("%q is no name of a stream (want one without spaces and without . * > / \\)", c.Stream))
	}
	if c.Create && c.Stream == "" {
		add("stream", "missing with create: true (want the name of the stream to make)")
	}
	problems = append(problems, c.checkSignIn()...)
	return append(problems, uplink.CheckTLS(&c.TLS)...)
}

const dialTimeout = 5 * time.Second

// headerTopic holds the topic of a record's message.
const headerTopic = "Gw-Topic"

// cursorSubject returns the template of the cursor's subject.
func (c *Config) cursorSubject() string {
	if c.CursorSubject == "" && c.Subject != "" {
		return c.Subject + ".cursor"
	}
	return c.CursorSubject
}

// Open implements uplink.Driver.
func (c *Config) Open(ctx context.Context, env uplink.Env) (uplink.Session, error) {
	l, err := c.connect(ctx, env)
	if err != nil {
		return nil, err
	}
	far, err := c.open(ctx, env, l)
	if err != nil {
		l.hangUp()
		return nil, l.explain(err)
	}
	return far, nil
}

func (c *Config) open(ctx context.Context, env uplink.Env, l *link) (uplink.Session, error) {
	name, err := c.findStream(ctx, env, l)
	if err != nil {
		return nil, err
	}
	l.stream = name
	stream, err := within(ctx, func(ctx context.Context) (jetstream.Stream, error) { return l.js.Stream(ctx, name) })
	if err != nil {
		return nil, err
	}
	if env.Promise.Delivery == uplink.ExactlyOnce {
		return c.openBatches(ctx, env, l, stream)
	}
	l.waits = waitsFor(env, stream)
	env.Figures.Set(duplicateWindow, stream.CachedInfo().Config.Duplicates.Seconds())
	if env.Promise.Delivery != uplink.EffectivelyOnce {
		return l.openSession(nil)
	}
	again, err := openWindow(ctx, env, l, stream)
	if err != nil {
		return nil, err
	}
	return l.openSession(again)
}
