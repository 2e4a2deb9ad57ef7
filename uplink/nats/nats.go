package nats

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
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
	User            string          `yaml:"user" doc:"User to sign in as."`
	Password        pipeline.Secret `yaml:"password" doc:"Password of the user."`
	Token           pipeline.Secret `yaml:"token" doc:"Token to sign in with instead."`
	CredsFile       string          `yaml:"creds_file" doc:"File of NATS credentials to sign in with instead."`
	TLS             uplink.TLS      `yaml:"tls" doc:"Encryption of the connection."`
}

// Check implements pipeline.Checker.
func (c *Config) Check() []pipeline.Problem {
	problems := append(uplink.CheckTemplate("subject", c.Subject), uplink.CheckTemplate("stream", c.Stream)...)
	add := func(path, text string) { problems = append(problems, pipeline.Problem{Path: path, Text: text}) }
	if c.Subject == "" || strings.ContainsAny(c.Subject, " \t*>") || strings.Contains("."+c.Subject+".", "..") {
		add("subject", fmt.Sprintf("%q is no subject to publish to (want words between dots, without spaces, * and >)", c.Subject))
	}
	if strings.ContainsAny(c.Stream, " \t.*>/\\") {
		add("stream", fmt.Sprintf("%q is no name of a stream (want one without spaces and without . * > / \\)", c.Stream))
	}
	if c.Create && c.Stream == "" {
		add("stream", "missing with create: true (want the name of the stream to make)")
	}
	ways := 0
	for _, used := range []bool{c.User != "", c.Token != "", c.CredsFile != ""} {
		if used {
			ways++
		}
	}
	if ways > 1 {
		add("user", "more than one way to sign in (want one of user, token and creds_file)")
	}
	return append(problems, uplink.CheckTLS(&c.TLS)...)
}

const (
	dialTimeout = 5 * time.Second
	// maxPending is above what a Runner has in flight, so the client never stalls. ackTimeout ends futures that would
	// stay open for ever otherwise; on a slow line a full flight takes minutes, so it is long.
	maxPending = 4096
	ackTimeout = 5 * time.Minute
)

// Open implements uplink.Driver.
func (c *Config) Open(ctx context.Context, env uplink.Env) (uplink.Session, error) {
	s := &session{
		address: strings.Join(c.Servers, ", "), subject: uplink.Expand(c.Subject, env),
		pubs: make(chan publication, maxPending), dead: make(chan struct{}),
	}
	if err := c.connect(ctx, env, s); err != nil {
		return nil, err
	}
	js, err := jetstream.New(s.nc, jetstream.WithPublishAsyncMaxPending(maxPending),
		jetstream.WithPublishAsyncTimeout(ackTimeout), jetstream.WithDefaultTimeout(dialTimeout))
	if err == nil {
		s.js = js
		s.stream, err = c.findStream(ctx, env, s)
	}
	if err != nil {
		s.nc.Close()
		return nil, s.explain(err)
	}
	s.collecting.Go(s.collect)
	return s, nil
}

func (c *Config) connect(ctx context.Context, env uplink.Env, s *session) error {
	tls, err := c.TLS.Client()
	if err != nil {
		return err
	}
	dial := &dialer{ctx: ctx}
	options := []nats.Option{
		nats.Name("edge-gateway " + env.Gateway + " " + env.Stream), nats.Timeout(dialTimeout), nats.SetCustomDialer(dial),
		// After a reconnect the library would publish on before what was in flight has been sent again: out of order.
		nats.NoReconnect(),
		nats.PingInterval(20 * time.Second), nats.MaxPingsOutstanding(3),
		nats.ClosedHandler(func(nc *nats.Conn) { s.fail(nc.LastError()) }),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { s.fail(err) }),
	}
	if tls != nil {
		options = append(options, nats.Secure(tls))
	}
	switch {
	case c.User != "":
		options = append(options, nats.UserInfo(c.User, c.Password.Reveal()))
	case c.Token != "":
		options = append(options, nats.Token(c.Token.Reveal()))
	case c.CredsFile != "":
		options = append(options, nats.UserCredentials(c.CredsFile))
	}
	nc, err := nats.Connect(strings.Join(c.Servers, ","), options...)
	if err != nil {
		return s.explain(dial.cause(err))
	}
	dial.release()
	s.nc = nc
	return nil
}

// findStream returns the name of the stream that takes the subject, and makes it if that is wanted.
func (c *Config) findStream(ctx context.Context, env uplink.Env, s *session) (string, error) {
	want := uplink.Expand(c.Stream, env)
	got, err := s.js.StreamNameBySubject(ctx, s.subject)
	switch {
	case err == nil && (want == "" || want == got):
		return got, nil
	case err == nil:
		return "", uplink.Config(fmt.Errorf("subject %s goes to the stream %s, not to %s (want stream: %s, or another subject)",
			s.subject, got, want, got))
	case !isNotFound(err):
		return "", err
	case !c.Create:
		if want == "" {
			want = "a stream"
		}
		return "", uplink.Config(fmt.Errorf("no stream on the server takes the subject %s (want %s to have it among its subjects, or create: true)",
			s.subject, want))
	}
	_, err = s.js.CreateStream(ctx, jetstream.StreamConfig{
		Name: want, Subjects: []string{wildcards(c.Subject)}, Storage: jetstream.FileStorage,
		Replicas: max(1, c.Replicas), Duplicates: c.DuplicateWindow,
		Description: "records of edge gateways",
	})
	if err != nil {
		return "", uplink.Config(fmt.Errorf("make the stream %s: %w", want, err))
	}
	return want, nil
}

// wildcards turns a subject's template into the subjects that all gateways, streams and uplinks make of it.
func wildcards(template string) string {
	words := strings.Split(template, ".")
	for i, w := range words {
		if strings.Contains(w, "{") {
			words[i] = "*"
		}
	}
	return strings.Join(words, ".")
}

// dialer dials under the context of Open, which nats.Connect does not take, and keeps why it failed, which nats.Connect
// does not tell.
type dialer struct {
	ctx context.Context //nolint:containedctx // of Open, which a dialer serves once; nats.CustomDialer passes none

	mu    sync.Mutex // guards the fields below
	last  error
	stops []func() bool
}

// Dial implements nats.CustomDialer.
func (d *dialer) Dial(network, address string) (net.Conn, error) {
	dial := net.Dialer{Timeout: dialTimeout}
	conn, err := dial.DialContext(d.ctx, network, address)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.last = err
	if err == nil { // until the connection stands, the end of ctx closes it
		d.stops = append(d.stops, context.AfterFunc(d.ctx, func() { _ = conn.Close() }))
	}
	return conn, err
}

func (d *dialer) release() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, stop := range d.stops {
		stop()
	}
}

// cause returns why the last dial failed, or else what the library says.
func (d *dialer) cause(err error) error {
	d.release()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.last != nil {
		return d.last
	}
	return err
}
