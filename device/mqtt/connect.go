package mqtt

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"edgegateway/pipeline"

	mochi "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/packets"
)

// Reasons for which a CONNECT is refused, beside those of sign-in.
var (
	errClientID   = errors.New("client id is too long")
	errOwned      = errors.New("client id belongs to another user")
	errWillDenied = errors.New("will on a topic the user may not publish to")
	errSessions   = errors.New("too many sessions")
	errNoSignIn   = errors.New("no user name, and anonymous access is not configured")
	errAuthMethod = errors.New("enhanced authentication is not supported")
)

// connect signs a client in and takes up its session, or returns the reason for CONNACK.
func (b *Broker) connect(cl *mochi.Client, p *packets.Packet) (packets.Code, error) {
	nc, ok := cl.Net.Conn.(*conn)
	if !ok {
		return packets.ErrUnspecifiedError, errors.New("not a connection of the guard")
	}
	v5 := cl.Properties.ProtocolVersion == 5
	denied, busy := packets.ErrNotAuthorized, packets.ErrServerBusy
	if !v5 { // MQTT 3.1.1 has five reasons
		denied, busy = packets.ErrBadUsernameOrPassword, packets.ErrServerUnavailable
	}
	if p.Properties.AuthenticationMethod != "" {
		return packets.ErrBadAuthenticationMethod, errAuthMethod
	}
	if len(cl.ID) > maxClientID {
		return packets.ErrClientIdentifierNotValid, errClientID
	}
	rights, err := b.authenticate(cl, p)
	switch {
	case errors.Is(err, errTooMany) && v5:
		return packets.ErrConnectionRateExceeded, err
	case errors.Is(err, errTooMany), errors.Is(err, context.DeadlineExceeded):
		return busy, err
	case err != nil:
		return packets.ErrBadUsernameOrPassword, err
	}
	c := &client{
		mq: cl, conn: nc, access: rights, v5: v5, since: time.Now(),
		window: make(chan struct{}, b.config.ReceiveMaximum), established: make(chan struct{}), gone: make(chan struct{}),
	}
	if nc.receiveMaximum > 0 {
		c.sending = make(chan struct{}, nc.receiveMaximum)
	}
	if c.will = takeWill(c, p); c.will != nil && (!validTopic(c.will.topic) || !rights.mayPublish(c.will.topic)) {
		b.counts.denied.Add(1)
		return denied, errWillDenied
	}
	if c.session, err = b.claim(cl.ID, rights.user); errors.Is(err, errOwned) {
		return packets.ErrClientIdentifierNotValid, err
	} else if err != nil {
		return busy, err
	}
	if c.will != nil {
		c.will.origin = cl.ID
	}
	return b.takeUp(c, p.Connect.Clean, busy)
}

// takeUp makes c the connection of its session.
func (b *Broker) takeUp(c *client, clean bool, busy packets.Code) (packets.Code, error) {
	c.ctx, c.cancel = context.WithCancel(b.ctx)
	s := c.session
	defer func() {
		if c.conn.client == nil { // ended will not know of c
			c.cancel()
			close(c.gone)
		}
	}()
	if err := s.takeUp(c, clean); err != nil {
		return busy, err
	}
	if w, ok := b.wills.remove(s.id); ok && clean { // the session it belonged to ends here
		b.publishWill(c.ctx, w)
	}
	if names := s.names(); clean && len(names) > 0 {
		// Before CONNACK: afterwards the client uses the packet ids for something new.
		if err := b.forget(c.ctx, names); err != nil {
			b.outcome(err)
			return busy, err
		}
		s.clear()
	}
	c.conn.client = c
	c.conn.frame.limit = uint32(b.config.MaxPacket)
	return packets.CodeSuccess, nil
}

// authenticate returns the rights of whoever signs in with p.
func (b *Broker) authenticate(cl *mochi.Client, p *packets.Packet) (*access, error) {
	if !p.Connect.UsernameFlag {
		if b.anonymous == nil {
			return nil, errNoSignIn
		}
		return b.anonymous, nil
	}
	from, _ := netip.ParseAddrPort(cl.Net.Remote)
	ctx, cancel := context.WithTimeout(b.ctx, b.config.ConnectTimeout)
	defer cancel()
	user := string(p.Connect.Username)
	if err := b.signIn.verify(ctx, from.Addr(), user, p.Connect.Password); err != nil {
		b.counts.signInFailures.Add(1)
		return nil, err
	}
	return b.users[user], nil
}

// claim returns the session of a client id for user, a new one where there is none.
func (b *Broker) claim(id, user string) (*session, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.sessions[id]
	if s == nil {
		if len(b.sessions) >= b.maxSessions() {
			return nil, errSessions
		}
		s = newSession(id)
		b.sessions[id] = s
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.owned && s.user != user {
		return nil, errOwned
	}
	s.owned, s.user = true, user
	return s, nil
}

// maxSessions bounds the sessions, connected or not.
func (b *Broker) maxSessions() int { return 5*b.config.MaxConnections + 100 }

// ended is called once for each connection, when mochi has let go of it.
func (b *Broker) ended(nc *conn, err error) {
	c := nc.client
	if c == nil {
		b.logRefused(nc, err)
		return
	}
	c.cancel()
	b.endIndex(c)
	if !c.left {
		b.cleanUp(c)
	}
	if err != nil {
		b.logEnd(c, err)
	}
	s := c.session
	s.mu.Lock()
	last := s.current == c
	if last && c.expire {
		s.current = nil
	}
	s.mu.Unlock()
	close(c.gone)
	if c.will != nil && !errors.Is(c.mq.StopCause(), packets.CodeDisconnect) && b.ctx.Err() == nil {
		if c.will.delay > 0 && last {
			b.wills.add(s.id, *c.will)
		} else if c.will.delay == 0 {
			b.publishWill(b.ctx, *c.will)
		}
	}
	if last && c.expire {
		b.endSession(s)
	}
}

// cleanUp does what mochi does at the end of a connection, where a panic has kept it from doing so.
func (b *Broker) cleanUp(c *client) {
	props := c.mq.Properties
	c.expire = props.ProtocolVersion == 5 && props.Props.SessionExpiryInterval == 0 || props.ProtocolVersion < 5 && props.Clean
	if !c.expire || c.mq.IsTakenOver() {
		return
	}
	c.mq.ClearInflights()
	b.server.UnsubscribeClient(c.mq)
	if cl, ok := b.server.Clients.Get(c.session.id); ok && cl == c.mq {
		b.server.Clients.Delete(c.session.id)
	}
}

// expired ends the session of a client that has been away for too long.
func (b *Broker) expired(c *client) {
	s := c.session
	s.mu.Lock()
	last := s.current == c
	if last {
		s.current = nil
	}
	s.mu.Unlock()
	if last {
		b.endSession(s)
	}
}

// endSession forgets s and the packet ids it held. Where the lanes cannot forget them now s stays, so that the next one
// with this client id knows of them.
func (b *Broker) endSession(s *session) {
	names := s.names()
	if len(names) == 0 {
		b.removeSession(s)
		return
	}
	b.put(b.ctx, pipeline.Batch{Forget: names}, func(err error) {
		if err == nil {
			b.removeSession(s)
		}
	})
}

func (b *Broker) removeSession(s *session) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current == nil && b.sessions[s.id] == s {
		delete(b.sessions, s.id)
	}
}
