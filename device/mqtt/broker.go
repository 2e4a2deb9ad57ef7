package mqtt

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"edgegateway/device"
	"edgegateway/pipeline"

	mochi "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/packets"
)

const (
	// sessionExpiry is how long a session is kept without its client.
	sessionExpiry = 7 * 24 * time.Hour
	// maxInflight bounds the deliveries of a session that are not acknowledged, and so the memory an absent one costs.
	maxInflight = 4096
	// writesPending bounds what waits for mochi's write goroutine of a client; a commit brings up to a window at a time.
	writesPending = 4096
	sysInterval   = 10 // seconds between $SYS messages
	tick          = 250 * time.Millisecond
	maxParts      = 50
	drainFor      = 300 * time.Millisecond
)

// Broker is the local MQTT broker. Config.Open makes it.
type Broker struct {
	name      string
	config    Config
	log       *slog.Logger
	sink      pipeline.Sink
	guard     *guard
	server    *mochi.Server
	inline    *mochi.Client // belongs to the fan-out's goroutine
	index     sync.RWMutex  // held over mochi's use of its index of retained messages; see hook.go
	fanout    *fanout
	retained  retained
	wills     wills
	signIn    *signIn
	users     map[string]*access
	anonymous *access
	counts    counts
	seldom    seldom
	awaited   atomic.Int64    // urgent batches in the sink whose callback has not come
	ctx       context.Context //nolint:containedctx // of Run, for mochi's hooks, which carry none

	mu       sync.Mutex // guards the fields below
	sessions map[string]*session
	state    device.State
	since    time.Time
	fault    string // why publishes are refused; "" when they are taken
}

// counts are the counters of Status that mochi does not keep.
type counts struct {
	publishes, acked, refused, denied, signInFailures, fanoutDropped, retainedDropped atomic.Uint64
}

// Open binds the port and makes the broker.
func (c Config) Open(env device.Env) (device.Device, error) {
	ln, err := net.Listen("tcp", c.Listen) //nolint:noctx // Open has no context: it binds a local port and never blocks
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("listen %s: address already in use (is another broker running? stop it, or choose another port)", c.Listen)
	}
	if err != nil {
		return nil, fmt.Errorf("listen %s: %w", c.Listen, err)
	}
	b, err := newBroker(c, env, ln)
	if err != nil {
		_ = ln.Close()
		return nil, err
	}
	return b, nil
}

func newBroker(c Config, env device.Env, ln net.Listener) (*Broker, error) {
	b := &Broker{
		name: env.Name, config: c, log: env.Log, sink: env.Sink, fanout: newFanout(), users: map[string]*access{},
		state: device.Starting, since: time.Now(),
	}
	var err error
	if b.signIn, err = newSignIn(c.Users); err != nil {
		return nil, err
	}
	for name, u := range c.Users {
		b.users[name] = &access{user: name, publish: u.Publish, subscribe: u.Subscribe}
	}
	if c.Anonymous != nil {
		b.anonymous = &access{publish: c.Anonymous.Publish, subscribe: c.Anonymous.Subscribe}
	}
	b.guard = newGuard(ln, env.Log, c)
	b.guard.ended = b.ended
	b.guard.goodbye = b.goodbye
	b.guard.tooLong = func(nc *conn) {
		if nc.client != nil {
			nc.client.cut(packets.ErrPacketTooLarge)
		}
	}
	b.server = mochi.New(b.options())
	b.inline = b.server.NewClient(nil, mochi.LocalListener, "", true)
	if err := b.server.AddHook(&hook{b: b}, nil); err != nil {
		return nil, err
	}
	return b, b.server.AddListener(b.guard)
}

func (b *Broker) options() *mochi.Options {
	limits := mochi.NewDefaultServerCapabilities()
	limits.MaximumClients = int64(b.config.MaxConnections)
	limits.MaximumPacketSize = uint32(b.config.MaxPacket)
	limits.MaximumMessageExpiryInterval = 0 // mochi's default deletes what is retained after a day
	limits.MaximumSessionExpiryInterval = uint32(sessionExpiry / time.Second)
	limits.MaximumClientWritesPending = writesPending
	limits.MaximumInflight = maxInflight
	limits.ReceiveMaximum = uint16(b.config.ReceiveMaximum)
	limits.TopicAliasMaximum = topicAliasMaximum
	limits.Compatibilities.NoInheritedPropertiesOnAck = true
	return &mochi.Options{
		Capabilities:             limits,
		SysTopicResendInterval:   sysInterval,
		ClientNetWriteBufferSize: 1, // conn gathers writes; mochi's own buffer would hold back small packets
		Logger:                   slog.New(mochiLog{b.log.Handler(), &b.seldom}),
	}
}

// Addr returns the address the broker listens on.
func (b *Broker) Addr() string { return b.guard.Address() }

// Run serves clients until ctx ends.
func (b *Broker) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	b.ctx = ctx
	b.mu.Lock()
	b.sessions = recoverSessions(b.name, b.sink.Remembered(oncePrefix(b.name)))
	b.mu.Unlock()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { b.fanout.run(ctx, b.deliver) })
	if err := b.server.Serve(); err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	b.enter(device.Up)
	b.log.Info("mqtt broker is up", "listen", b.Addr())
	b.housekeep(ctx)
	err := b.server.Close() // says goodbye to the clients and waits for their goroutines
	b.drain()
	b.enter(device.Down)
	b.log.Info("mqtt broker is down")
	return err
}

// goodbye tells the connected clients that the broker stops, and ends their connections.
func (b *Broker) goodbye() {
	for _, c := range b.server.Clients.GetAll() {
		if c.Net.Listener == b.guard.ID() && !c.Closed() {
			_ = b.server.DisconnectClient(c, packets.ErrServerShuttingDown)
		}
	}
}

// drain waits for the commits under way, so that a broker opened next on the same sink finds what this one put into it. It
// does not wait for long: a lane that hangs must not hold up the stop.
func (b *Broker) drain() {
	const step = 5 * time.Millisecond
	for left := drainFor; left > 0 && b.awaited.Load() > 0; left -= step {
		time.Sleep(step)
	}
}

// housekeep publishes wills whose time has come until ctx ends, and lets go of sessions that nobody took up again.
func (b *Broker) housekeep(ctx context.Context) {
	started := time.Now()
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for abandoned := false; ; {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			for _, w := range b.wills.due(now) {
				b.publishWill(ctx, w)
			}
			if !abandoned && now.Sub(started) > sessionExpiry {
				abandoned = true
				b.abandon()
			}
		}
	}
}

// abandon ends the sessions that were there at the start and that no client has taken up since.
func (b *Broker) abandon() {
	var unclaimed []*session
	b.mu.Lock()
	for _, s := range b.sessions {
		s.mu.Lock()
		if !s.owned {
			unclaimed = append(unclaimed, s)
		}
		s.mu.Unlock()
	}
	b.mu.Unlock()
	for _, s := range unclaimed {
		b.endSession(s)
	}
}

func (b *Broker) enter(state device.State) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.state, b.since = state, time.Now()
}

// outcome counts what became of a message, and tells once when the log begins and ends to refuse them.
func (b *Broker) outcome(err error) {
	if err == nil && b.counts.refused.Load() == 0 {
		return
	}
	if errors.Is(err, context.Canceled) { // the client went away while it was held
		b.counts.refused.Add(1)
		return
	}
	fault := ""
	if err != nil {
		b.counts.refused.Add(1)
		fault = "publishes are not acknowledged: " + err.Error()
	}
	b.mu.Lock()
	was, running := b.fault, b.state == device.Up || b.state == device.Degraded
	changed := (was == "") != (fault == "") && running
	if changed {
		b.fault, b.since = fault, time.Now()
		b.state = device.Up
		if fault != "" {
			b.state = device.Degraded
		}
	}
	b.mu.Unlock()
	switch {
	case changed && err != nil:
		b.log.Warn("publishes are refused, clients will send again", "err", err)
	case changed:
		b.log.Info("publishes are taken again", "refused", b.counts.refused.Load())
	}
}

// logRefused says why a connection did not come to sign in.
func (b *Broker) logRefused(nc *conn, err error) {
	reason := "connect not accepted"
	switch {
	case err == nil || b.ctx.Err() != nil || errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET):
		return
	case errors.Is(err, os.ErrDeadlineExceeded):
		reason = "no sign-in within connect_timeout"
	case errors.Is(err, errWrongPassword):
		reason = "wrong user name or password"
	}
	if b.seldom.allow(reason) {
		b.log.Warn("client was refused", "reason", reason, "remote", nc.RemoteAddr().String(), "err", err)
	}
}

// logEnd says why a client that broke the rules was disconnected; that clients come and go is not worth a line.
func (b *Broker) logEnd(c *client, err error) {
	if b.ctx.Err() != nil {
		return
	}
	cause := c.mq.StopCause()
	if cause == nil { // mochi did not get as far as that
		cause = err
	}
	reason := "connection or protocol error"
	switch {
	case errors.Is(cause, io.EOF), errors.Is(cause, net.ErrClosed), errors.Is(cause, syscall.ECONNRESET),
		errors.Is(cause, packets.CodeDisconnect), errors.Is(cause, packets.ErrSessionTakenOver), errors.Is(cause, packets.CodeDisconnectWillMessage):
		return
	case errors.Is(cause, os.ErrDeadlineExceeded):
		reason = "silent for longer than its keepalive"
	case errors.Is(cause, errNotStored), errors.Is(cause, errHeldTooLong), errors.Is(cause, packets.ErrNotAuthorized):
		return // outcome and deny have told
	}
	if b.seldom.allow(reason) {
		b.log.Warn("client was disconnected", "reason", reason, "cause", cause,
			"client", c.session.id, "user", c.access.user, "remote", c.conn.RemoteAddr().String())
	}
}

// Status tells how the broker does: its clients are its parts.
func (b *Broker) Status() device.Status {
	info := b.server.Info.Clone()
	st := device.Status{Counters: map[string]uint64{
		"publishes_total":           b.counts.publishes.Load(),
		"acked_total":               b.counts.acked.Load(),
		"refused_total":             b.counts.refused.Load(),
		"denied_total":              b.counts.denied.Load(),
		"sign_in_failures_total":    b.counts.signInFailures.Load(),
		"fanout_dropped_total":      b.counts.fanoutDropped.Load() + uint64(max(info.InflightDropped, 0)),
		"retained_dropped_total":    b.counts.retainedDropped.Load(),
		"connections":               uint64(b.guard.open()),
		"connections_refused_total": b.guard.refused.Load(),
		"malformed_panics_total":    b.guard.panics.Load(),
		"subscriptions":             uint64(max(info.Subscriptions, 0)),
	}}
	b.mu.Lock()
	defer b.mu.Unlock()
	st.State, st.Since, st.Error = b.state, b.since, b.fault
	for _, s := range b.sessions {
		if p, ok := s.part(); ok {
			st.Parts = append(st.Parts, p)
		}
	}
	slices.SortFunc(st.Parts, func(x, y device.Part) int { return strings.Compare(x.Name, y.Name) })
	st.Parts = st.Parts[:min(len(st.Parts), maxParts)]
	return st
}

// part returns the session's client for Status, if it is connected.
func (s *session) part() (device.Part, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current == nil || s.current.mq.Closed() {
		return device.Part{}, false
	}
	return device.Part{Name: s.id, State: device.Up, Since: s.current.since}, true
}
