package mqtt

import (
	"context"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	mochi "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/packets"
)

// client is one connection that has signed in. What its fields do not say otherwise belongs to the goroutine that reads
// from the connection.
type client struct {
	mq      *mochi.Client
	conn    *conn
	session *session
	access  *access
	v5      bool
	since   time.Time
	ctx     context.Context //nolint:containedctx // ends with the connection; mochi's hooks carry none
	cancel  context.CancelFunc
	gone    chan struct{} // closed when mochi has let go of the connection and the broker has cleaned up after it
	// window holds one token for each publish that waits for its commit.
	window chan struct{}
	// established is closed when CONNACK and everything sent again have been written; deliveries wait for it.
	established chan struct{}
	// sending holds one token for each delivery the client has not acknowledged; nil where it set no Receive Maximum.
	sending chan struct{}
	aliases map[uint16]string
	ackID   uint16 // packet id of the SUBSCRIBE or UNSUBSCRIBE being answered
	will    *will
	reading bool // holds Broker.index for mochi, which processes a SUBSCRIBE; used by the connection's goroutine only
	left    bool // mochi has told that the client is gone, and whether its session ends with it
	expire  bool
}

// session is what outlives a connection: who owns the client id, and which QoS 2 packet ids are taken.
type session struct {
	id string
	// putting is held over each Put that concerns the ledger, so that a new connection can wait for the old one's.
	putting sync.Mutex

	mu      sync.Mutex // guards the fields below; never held over a Put
	owned   bool       // by user; false after a restart until somebody takes the session up again
	user    string
	current *client // the connection, or the last one; nil when the session has ended
	ledger  map[uint16]*entry
	created uint16 // number of the last delivery queued, to keep their order
}

// entry is a QoS 2 packet id of a client between its PUBLISH and its PUBCOMP (MQTT 5, section 4.3.3).
type entry struct {
	name  string // Once name in the lanes
	stage stage
	// orphan says that the client was told that there is no session: it may use the id for something new, and says so by
	// sending it without DUP.
	orphan bool
}

type stage uint8

const (
	storing   stage = iota // put, not committed
	stored                 // committed: PUBREC was sent
	releasing              // PUBREL came, not committed
)

// onceName is the name a QoS 2 packet id is remembered by: q2/DEVICE/CLIENT/ID. The device stands in it because two brokers
// may share a lane and have clients of one name.
func onceName(device, clientID string, id uint16) string {
	return oncePrefix(device) + url.PathEscape(clientID) + "/" + strconv.Itoa(int(id))
}

func oncePrefix(device string) string { return "q2/" + url.PathEscape(device) + "/" }

// recoverSessions rebuilds the ledgers from the names the lanes remember.
func recoverSessions(device string, names []string) map[string]*session {
	sessions := map[string]*session{}
	for _, name := range names {
		escaped, number, _ := strings.Cut(strings.TrimPrefix(name, oncePrefix(device)), "/")
		clientID, err := url.PathUnescape(escaped)
		id, err2 := strconv.ParseUint(number, 10, 16)
		if err != nil || err2 != nil {
			continue // not a name of ours
		}
		s := sessions[clientID]
		if s == nil {
			s = newSession(clientID)
			sessions[clientID] = s
		}
		s.ledger[uint16(id)] = &entry{name: name, stage: stored, orphan: true}
	}
	return sessions
}

func newSession(id string) *session { return &session{id: id, ledger: map[uint16]*entry{}} }

// names returns the names in the ledger.
func (s *session) names() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := make([]string, 0, len(s.ledger))
	for _, e := range s.ledger {
		names = append(names, e.name)
	}
	return names
}

// clear empties the ledger, once its names are forgotten.
func (s *session) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.ledger)
}

// orphan marks the ledger: the client was told that there is no session.
func (s *session) orphan() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.ledger {
		e.orphan = true
	}
}

// takeUp makes c the session's connection, ends the last one, and waits until that can change nothing any more: mochi finds what
// an old connection leaves by the client id alone, and would take it from the new one. A clean start is not told of what was
// before. An error means that the broker stops.
func (s *session) takeUp(c *client, clean bool) error {
	s.mu.Lock()
	old := s.current
	s.current = c
	for _, e := range s.ledger {
		e.orphan = e.orphan || clean
	}
	s.mu.Unlock()
	if old != nil {
		old.cut(packets.ErrSessionTakenOver)
		select {
		case <-old.gone:
		case <-c.ctx.Done():
			return c.ctx.Err()
		}
	}
	s.putting.Lock()
	defer s.putting.Unlock()
	return nil
}

// write sends p to the client; an error means that the connection is gone, which its own goroutine sees.
func (c *client) write(p packets.Packet) { _ = c.mq.WritePacket(p) }

// ack sends an acknowledgement of the given type.
func (c *client) ack(kind byte, id uint16, reason byte) {
	p := packets.Packet{FixedHeader: packets.FixedHeader{Type: kind}, PacketID: id}
	if c.v5 {
		p.ReasonCode = reason
	}
	c.write(p)
}

// cut ends the connection, with the reason where the protocol has a way to tell it.
func (c *client) cut(reason packets.Code) {
	if c.v5 {
		p := packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Disconnect}, ReasonCode: reason.Code}
		p.Properties.ReasonString = reason.Reason
		c.write(p)
	}
	c.mq.Stop(reason)
	c.cancel()
}

// maySend waits until p may go out to the client: after CONNACK, and within the client's Receive Maximum. It runs in
// mochi's write goroutine of this client, so that a slow client holds up itself alone.
func (c *client) maySend(p packets.Packet) {
	if p.FixedHeader.Dup { // sent again at connect, before the client can answer
		if c.sending != nil {
			select {
			case c.sending <- struct{}{}:
			default:
			}
		}
		return
	}
	select {
	case <-c.established:
	case <-c.ctx.Done():
		return
	}
	if c.sending == nil || p.FixedHeader.Qos == 0 {
		return
	}
	select {
	case c.sending <- struct{}{}:
	case <-c.ctx.Done():
	}
}

// delivered takes note that the client has acknowledged a delivery.
func (c *client) delivered() {
	if c.sending != nil {
		select {
		case <-c.sending:
		default:
		}
	}
}
