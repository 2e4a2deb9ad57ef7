package nats

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"edgegateway/pipeline"
	"edgegateway/uplink"
)

// link is what both kinds of session have in common: one connection that is never mended, and what ended it.
type link struct {
	nc      *nats.Conn
	js      jetstream.JetStream
	dial    *dialer
	gateway string
	address string
	subject string
	cursor  string // subject of the far cursor
	holder  string // what its header says of us
	stream  string
	// patience is how long what was sent may go without an answer once something behind it has its own.
	patience time.Duration
	waits    uplink.Order // what a record waits for, see waitsFor

	mu    sync.Mutex // guards the fields below and the closing of dead
	err   error
	doubt func(error)   // called once when the link fails; nil for none
	dead  chan struct{} // closed when the link is of no more use
}

// fail ends the link; the first reason counts.
func (l *link) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failLocked(err)
}

func (l *link) failLocked(err error) {
	select {
	case <-l.dead:
		return
	default:
	}
	if err == nil {
		err = nats.ErrConnectionClosed
	}
	l.err = err
	close(l.dead)
	if l.doubt != nil {
		l.doubt(l.explain(err))
	}
}

func (l *link) isDead() bool {
	select {
	case <-l.dead:
		return true
	default:
		return false
	}
}

func (l *link) failure() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.explain(l.err)
}

// hangUp closes the connection. The library's own Close would wait for a write that a dead line holds up.
func (l *link) hangUp() {
	l.fail(nats.ErrConnectionClosed)
	l.dial.hangUp()
	l.nc.Close()
}

// connect dials and signs in. The link it returns with an error only knows whether a server was reached.
func (c *Config) connect(ctx context.Context, env uplink.Env) (*link, error) {
	own := env // the cursor belongs to the stream alone, also where the records go to the same place as another's
	own.Route = ""
	l := &link{
		gateway: env.Gateway, address: strings.Join(c.Servers, ", "), subject: uplink.Expand(c.Subject, env),
		cursor: uplink.Expand(c.cursorSubject(), own), dial: &dialer{ctx: ctx}, dead: make(chan struct{}), patience: overdue,
	}
	options := []nats.Option{
		nats.Name("edge-gateway " + env.Gateway + " " + env.Stream), nats.Timeout(dialTimeout), nats.SetCustomDialer(l.dial),
		// After a reconnect the library would publish on before what was in flight has been sent again: out of order.
		nats.NoReconnect(),
		// A ping waits behind what is in flight, which on a line of 10 kB/s takes minutes. Whether records get their answers is
		// watched by the Runner; this is for a connection that has nothing to do.
		nats.PingInterval(20 * time.Second), nats.MaxPingsOutstanding(15),
		nats.ClosedHandler(func(nc *nats.Conn) { l.fail(nc.LastError()) }),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { l.fail(err) }),
	}
	signIn, err := c.signIn()
	if err != nil {
		return nil, err
	}
	nc, err := nats.Connect(strings.Join(c.Servers, ","), append(options, signIn...)...)
	if err != nil {
		return l, c.explainHandshake(l, l.dial.cause(err))
	}
	l.dial.release()
	l.nc = nc
	l.js, err = jetstream.New(nc, jetstream.WithDefaultTimeout(dialTimeout))
	if err != nil {
		l.hangUp()
		return nil, l.explain(err)
	}
	return l, nil
}

// explainHandshake is explain for what goes wrong before the connection stands. With TLS 1.3 a server that misses a certificate says so
// after the handshake and hangs up; what it said is lost where the sign-in is on its way then.
func (c *Config) explainHandshake(l *link, err error) error {
	explained := l.explain(err)
	closed := errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
	if closed && c.TLS.Enabled && c.TLS.CertFile == "" && !uplink.IsConfig(explained) {
		return fmt.Errorf("%w (does it want a client certificate in tls.cert_file?)", explained)
	}
	return explained
}

// answerTimeout is how long one question may take that a session asks before it begins: more than on a line of 2 s there and back,
// and less than all of them have together. A server that is about to give a stream away drops what it is asked and says nothing.
const answerTimeout = 10 * time.Second

// within asks the server something and waits for at most answerTimeout.
func within[T any](ctx context.Context, ask func(context.Context) (T, error)) (T, error) {
	short, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	answer, err := ask(short)
	if err != nil && short.Err() != nil && ctx.Err() == nil {
		err = nats.ErrTimeout
	}
	return answer, err
}

// streamOf returns the name of the stream that takes a subject.
func (l *link) streamOf(ctx context.Context, subject string) (string, error) {
	return within(ctx, func(ctx context.Context) (string, error) { return l.js.StreamNameBySubject(ctx, subject) })
}

// lastOn returns the last message on a subject of a stream.
func lastOn(ctx context.Context, stream jetstream.Stream, subject string) (*jetstream.RawStreamMsg, error) {
	return within(ctx, func(ctx context.Context) (*jetstream.RawStreamMsg, error) {
		return stream.GetLastMsgForSubject(ctx, subject)
	})
}

// signIn returns the options that encrypt the connection and say who we are. The files are read at each new session, so that
// a renewed one needs no restart.
func (c *Config) signIn() ([]nats.Option, error) {
	tls, err := c.TLS.Client()
	if err != nil {
		return nil, err
	}
	var options []nats.Option
	if tls != nil {
		options = append(options, nats.Secure(tls))
	}
	switch {
	case c.User != "":
		options = append(options, nats.UserInfo(c.User, c.Password.Reveal()))
	case c.Token.IsSet():
		options = append(options, nats.Token(c.Token.Reveal()))
	case c.NKeyFile != "":
		nkey, err := nats.NkeyOptionFromSeed(c.NKeyFile)
		if err != nil {
			return nil, uplink.Config(fmt.Errorf("nkey_file: %s holds no seed of a user's nkey (want a line that begins with SU): %w", c.NKeyFile, err))
		}
		options = append(options, nkey)
	case c.CredsFile != "":
		options = append(options, nats.UserCredentials(c.CredsFile))
	}
	return options, nil
}

func (c *Config) checkSignIn() []pipeline.Problem {
	ways := 0
	for _, used := range []bool{c.User != "", c.Token.IsSet(), c.NKeyFile != "", c.CredsFile != ""} {
		if used {
			ways++
		}
	}
	var problems []pipeline.Problem
	if ways > 1 {
		problems = append(problems, pipeline.Problem{Path: "user", Text: "more than one way to sign in (want one of user, token, nkey_file and creds_file)"})
	}
	if c.Password.IsSet() && c.User == "" {
		problems = append(problems, pipeline.Problem{Path: "password", Text: "a password without a user (want user, or token for a token)"})
	}
	return problems
}

// dialer dials under the context of Open, which nats.Connect does not take, and keeps why it failed, which nats.Connect
// does not tell.
type dialer struct {
	ctx context.Context //nolint:containedctx // of Open, which a dialer serves once; nats.CustomDialer passes none

	mu    sync.Mutex // guards the fields below
	last  error
	stops []func() bool
	conns []net.Conn
}

// Dial implements nats.CustomDialer.
func (d *dialer) Dial(network, address string) (net.Conn, error) {
	dial := net.Dialer{Timeout: dialTimeout}
	conn, err := dial.DialContext(d.ctx, network, address)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.last = err
	if err == nil { // until the connection stands, the end of ctx closes it
		d.conns = append(d.conns, conn)
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

func (d *dialer) hangUp() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, conn := range d.conns {
		_ = conn.Close() // it is of no more use either way
	}
}
