package pulsar

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/backoff"
	"github.com/prometheus/client_golang/prometheus"

	"edgegateway/uplink"
)

const (
	dialTimeout      = 5 * time.Second
	operationTimeout = 5 * time.Second
	goodbye          = 800 * time.Millisecond // bound of what hangUp waits for
	lastWord         = 200 * time.Millisecond // for what the library says when its own time is up, which is more than that it is up
	lastReceipts     = 50 * time.Millisecond  // for a closed connection to give out what it had read
)

// link is one client of the library, what ended it, and where it leads.
type link struct {
	client  pulsar.Client
	address string
	topic   string
	cursor  string // topic of the far cursor
	links   *sync.WaitGroup
	calls   sync.WaitGroup  // of the library, that know no context
	ctx     context.Context //nolint:containedctx // ends with the link, and every Send with it
	cancel  context.CancelFunc
	cuts    chan int     // records in each batch that the library has closed
	most    atomic.Int32 // bytes that the broker takes in a message, as it says when it is connected; 0 for not yet: then no batch is safe

	mu    sync.Mutex // guards the fields below
	err   error
	vague bool // err says no more than that something has ended
	// said is the last refusal of a message that the broker has sent, and refused is told of one that is final.
	said    refusal
	refused func(refusal)
}

// topicOf returns the topic of a stream. Dead letters that are sent again have sequences of their own, and a topic whose numbers
// only grow takes one producer: they go to a topic beside it.
func topicOf(template string, env uplink.Env) string {
	topic := uplink.Expand(template, env)
	if env.Route != "" && env.Promise.Delivery != uplink.AtLeastOnce {
		topic += "-resent-" + env.Uplink
	}
	return fullTopic(topic)
}

// connect makes a client that has dialled nobody yet, after it has seen that somebody answers: the library says of each failure
// that the connection has failed, and no more.
func (c *Config) connect(ctx context.Context, env uplink.Env) (*link, error) {
	l := &link{
		address: strings.Join(c.Servers, ", "), topic: topicOf(c.Topic, env),
		cursor: topicOf(c.cursorTopic(), env), links: &c.links, cuts: make(chan int, 64),
	}
	l.refused = func(said refusal) { l.fail(said) }
	config, err := c.TLS.Client()
	if err != nil {
		return nil, err
	}
	if err := c.knock(ctx, config); err != nil {
		return nil, uplink.Explain(l.address, err)
	}
	signIn, err := c.signIn(ctx)
	if err != nil {
		return nil, err
	}
	scheme := "pulsar://"
	if config != nil {
		scheme = "pulsar+ssl://"
		if config.ServerName == "" { // the library fills in none where it is given the settings
			config.ServerName, _, _ = net.SplitHostPort(c.Servers[0])
		}
	}
	l.ctx, l.cancel = context.WithCancel(context.WithoutCancel(ctx))
	l.client, err = pulsar.NewClient(pulsar.ClientOptions{
		URL: scheme + strings.Join(c.Servers, ","), ConnectionTimeout: dialTimeout, OperationTimeout: operationTimeout,
		KeepAliveInterval: 15 * time.Second, Authentication: signIn, TLSConfig: config, TLSValidateHostname: true,
		Logger: listener{l}, MetricsRegisterer: prometheus.NewRegistry(), MemoryLimitBytes: clientMemory,
		Description: "edge-gateway " + env.Gateway + " " + env.Stream,
	})
	if err != nil {
		l.cancel()
		return nil, l.explain(err)
	}
	return l, nil
}

// knock returns nil as soon as one of the servers answers.
func (c *Config) knock(ctx context.Context, config *tls.Config) error {
	var first error
	for _, server := range c.Servers {
		dialer := net.Dialer{Timeout: dialTimeout}
		conn, err := dialer.DialContext(ctx, "tcp", server)
		if err == nil && config != nil {
			mine := config.Clone()
			if mine.ServerName == "" {
				mine.ServerName, _, _ = net.SplitHostPort(server)
			}
			stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
			_ = conn.SetDeadline(time.Now().Add(dialTimeout)) // fails only on a closed connection
			err = shake(ctx, tls.Client(conn, mine))
			stop()
			if errors.Is(err, io.EOF) {
				err = fmt.Errorf("%s closes the connection instead of speaking TLS (want its TLS port, or tls.enabled: false)", server)
			}
		}
		if conn != nil {
			_ = conn.Close() // it has served its purpose
		}
		if err == nil {
			return nil
		}
		if first == nil {
			first = err
		}
	}
	return first
}

// shake completes a handshake. A server of TLS 1.3 that wants another client certificate says so only to the first read.
func shake(ctx context.Context, conn *tls.Conn) error {
	if err := conn.HandshakeContext(ctx); err != nil {
		return err
	}
	if len(conn.ConnectionState().PeerCertificates) == 0 || conn.ConnectionState().Version < tls.VersionTLS13 {
		return nil
	}
	_ = conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond)) // a broker says nothing before it is asked
	_, err := conn.Read(make([]byte, 1))
	if timeout, ok := err.(net.Error); ok && timeout.Timeout() { //nolint:errorlint // crypto/tls returns it bare
		return nil
	}
	return err
}

// do runs calls of the library that know no context. Where ctx ends before them, hangUp waits for them: what they make after
// the client was closed would stay for ever.
func (l *link) do(ctx context.Context, calls func() error) error {
	done := make(chan error, 1)
	l.calls.Go(func() { done <- calls() })
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			select {
			case err := <-done:
				return err
			case <-time.After(lastWord):
			}
		}
		return fmt.Errorf("%s does not answer in time (is it up, and does a firewall let the gateway through?): %w", l.address, ctx.Err())
	case <-l.ctx.Done():
		return l.reason()
	}
}

// together runs calls side by side, because each takes its time on a slow line, and returns the first error.
func (l *link) together(calls ...func() error) error {
	if l.ctx.Err() != nil {
		return l.failure()
	}
	var running sync.WaitGroup
	errs := make([]error, len(calls))
	for i, call := range calls {
		running.Go(func() { errs[i] = call() })
	}
	running.Wait()
	return cmp.Or(errs...)
}

// partition returns where a stream goes in a topic: a topic of several partitions takes it into one, which key chooses; the
// first without a key.
func (l *link) partition(topic, key string) (string, error) {
	partitions, err := l.client.TopicPartitions(topic)
	if err != nil {
		return "", err
	}
	if len(partitions) == 0 || len(partitions) == 1 && partitions[0] == topic {
		return topic, nil
	}
	slices.Sort(partitions)
	if key == "" {
		return topic + "-partition-0", nil
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(key)) // never fails
	return fmt.Sprintf("%s-partition-%d", topic, h.Sum32()%uint32(len(partitions))), nil
}

// lost is what the library asks when a producer has lost its connection or was closed by the broker: how long to wait before the
// next try. There is none.
func (l *link) lost() backoff.Policy {
	l.fail(nil)
	return backoff.NewDefaultBackoff()
}

// fail ends the link. The first reason counts; but one that only says that something has ended gives way to one that says why, for
// of what a broker does to a topic the library hears from all who use it, in any order.
func (l *link) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	vague := isVague(err)
	if l.err != nil && (!l.vague || vague || errors.Is(err, errClosed)) {
		return
	}
	if vague && l.said != "" {
		err, vague = l.said, false
	}
	if err == nil {
		err = fmt.Errorf("%s closed the connection (was it restarted, or has the topic moved to another broker?)", l.address)
	}
	l.err, l.vague = err, vague
	l.cancel()
}

// reason returns why the link has ended, in the words of the library.
func (l *link) reason() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return cmp.Or(l.err, errClosed)
}

// failure returns why the link has ended, in plain words.
func (l *link) failure() error { return l.explain(l.reason()) }

// hangUp closes the client. The library waits for answers, on a dead line until its timeout: nobody waits for that longer
// than goodbye. Where the connection is closed already it waits for none, and fails what is in flight while the connection may still be
// giving out receipts that it had read before: the two do not know of each other (failPendingMessages and ReceivedSendReceipt).
func (l *link) hangUp() {
	broken := l.ctx.Err() != nil && !errors.Is(l.reason(), errClosed)
	l.fail(errClosed)
	done := make(chan struct{})
	l.links.Go(func() {
		defer close(done)
		l.calls.Wait()
		if broken {
			time.Sleep(lastReceipts)
		}
		l.client.Close()
	})
	select {
	case <-done:
	case <-time.After(goodbye):
	}
}
