package mqtt

import (
	"errors"
	"log/slog"

	mochi "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/packets"
)

// Limits that a client meets.
const (
	topicAliasMaximum = 32
	maxSubscriptions  = 1000 // of one client
	maxClientID       = 256  // bytes
)

// hook is where mochi asks. It decides in terms of mochi's packets and leaves the work to the Broker.
type hook struct {
	mochi.HookBase
	b *Broker
}

// ID names the hook to mochi.
func (h *hook) ID() string { return "edge-gateway" }

// SetOpts does nothing: the hook logs through the broker.
func (h *hook) SetOpts(*slog.Logger, *mochi.HookOptions) {}

// Provides lists the events that mochi calls the hook for.
func (h *hook) Provides(event byte) bool {
	switch event {
	case mochi.OnConnect, mochi.OnConnectAuthenticate, mochi.OnACLCheck, mochi.OnSessionEstablished, mochi.OnDisconnect,
		mochi.OnPacketRead, mochi.OnPacketProcessed, mochi.OnPacketEncode, mochi.OnSelectSubscribers, mochi.OnPublishDropped, mochi.OnQosPublish,
		mochi.OnClientExpired, mochi.OnRetainedExpired:
		return true
	}
	return false
}

// clientOf returns what the broker knows of cl: nil before CONNECT.
func clientOf(cl *mochi.Client) *client {
	if c, ok := cl.Net.Conn.(*conn); ok {
		return c.client
	}
	return nil
}

// OnConnect signs the client in. Where it refuses, it has sent CONNACK itself: mochi knows one reason only.
func (h *hook) OnConnect(cl *mochi.Client, p packets.Packet) error {
	code, err := h.b.connect(cl, &p)
	if err != nil {
		_ = h.b.server.SendConnack(cl, code, false, nil)
	}
	return err
}

// OnConnectAuthenticate says yes where OnConnect did.
func (h *hook) OnConnectAuthenticate(cl *mochi.Client, _ packets.Packet) bool {
	return clientOf(cl) != nil
}

// OnACLCheck is asked at SUBSCRIBE with the filter and at each delivery with the topic; publishes never get here.
func (h *hook) OnACLCheck(cl *mochi.Client, filter string, write bool) bool {
	c := clientOf(cl)
	return c != nil && !write && c.access.maySubscribe(filter)
}

// OnSessionEstablished lets deliveries go out, after CONNACK and what is sent again.
func (h *hook) OnSessionEstablished(cl *mochi.Client, _ packets.Packet) {
	close(clientOf(cl).established)
}

// OnDisconnect notes that mochi has cleaned up; Broker.ended does the rest.
func (h *hook) OnDisconnect(cl *mochi.Client, _ error, expire bool) {
	if c := clientOf(cl); c != nil {
		c.left, c.expire = true, expire
	}
}

// OnPacketRead takes PUBLISH and PUBREL over before mochi sees them. An acknowledgement of packet id 0 stands in for them,
// which mochi knows nothing to do with.
func (h *hook) OnPacketRead(cl *mochi.Client, p packets.Packet) (packets.Packet, error) {
	c := clientOf(cl)
	if p.FixedHeader.Type == packets.Connect {
		// mochi's own count of what a client has not acknowledged loses some, and it deadlocks over it; client.maySend
		// counts instead. Its topic aliases outlive the packets that announce them.
		p.Properties.TopicAliasMaximum = 0
		if conn, ok := cl.Net.Conn.(*conn); ok && conn.client == nil {
			conn.receiveMaximum = p.Properties.ReceiveMaximum
		}
		p.Properties.ReceiveMaximum = 0
	}
	if c == nil {
		return p, nil
	}
	var err error
	switch p.FixedHeader.Type {
	case packets.Publish:
		err = h.b.publish(c, &p)
	case packets.Pubrel:
		err = h.b.release(c, p.PacketID)
	case packets.Subscribe:
		p, err = h.subscribe(c, p)
		if err == nil {
			h.b.beginIndex(c)
		}
		return p, err
	case packets.Unsubscribe:
		return h.subscribe(c, p)
	case packets.Puback, packets.Pubcomp:
		c.delivered()
		return p, nil
	case packets.Pubrec:
		if p.ReasonCode >= packets.ErrUnspecifiedError.Code {
			c.delivered()
		}
		return p, nil
	default:
		return p, nil
	}
	if err != nil && h.b.ctx.Err() != nil {
		err = packets.ErrServerShuttingDown
	}
	if err != nil {
		return p, reject(c, err)
	}
	return packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Puback}, ProtocolVersion: p.ProtocolVersion}, nil
}

// OnPacketProcessed is called after each packet that mochi found nothing wrong with.
func (h *hook) OnPacketProcessed(cl *mochi.Client, _ packets.Packet, _ error) {
	if c := clientOf(cl); c != nil {
		h.b.endIndex(c)
	}
}

// beginIndex keeps retained messages from being set while mochi looks for those that a SUBSCRIBE gets: it reads its index
// without the lock under which it writes it. endIndex ends that, also where the packet ends the connection.
func (b *Broker) beginIndex(c *client) {
	b.index.RLock()
	c.reading = true
}

func (b *Broker) endIndex(c *client) {
	if c.reading {
		c.reading = false
		b.index.RUnlock()
	}
}

// reject ends the connection of c. mochi would send DISCONNECT to MQTT 3.1.1 clients too, which must not get one.
func reject(c *client, err error) error {
	code, ok := errors.AsType[packets.Code](err)
	if !ok {
		code = packets.ErrUnspecifiedError
	}
	c.cut(code)
	return packets.ErrRejectPacket
}

// subscribe hides the packet id from mochi, which would compare it with those of its own deliveries, and makes filters
// over the limits ones that mochi refuses without walking them.
func (h *hook) subscribe(c *client, p packets.Packet) (packets.Packet, error) {
	if p.PacketID == 0 {
		return p, reject(c, packets.ErrProtocolViolationNoPacketID)
	}
	if p.FixedHeader.Type == packets.Subscribe && c.mq.State.Subscriptions.Len()+len(p.Filters) > maxSubscriptions {
		return p, reject(c, packets.ErrQuotaExceeded)
	}
	for i := range p.Filters {
		if !validFilter(p.Filters[i].Filter) {
			p.Filters[i].Filter = ""
		}
	}
	c.ackID = p.PacketID
	p.PacketID, p.FixedHeader.Qos = 0, 0
	return p, nil
}

// OnPacketEncode completes what mochi sends.
func (h *hook) OnPacketEncode(cl *mochi.Client, p packets.Packet) packets.Packet {
	c := clientOf(cl)
	switch p.FixedHeader.Type {
	case packets.Connack:
		if p.ReasonCode == 0 && p.ProtocolVersion == 5 {
			p.Properties.TopicAliasMaximum = topicAliasMaximum
			p.Properties.MaximumPacketSize = uint32(h.b.config.MaxPacket)
		}
		if c != nil && p.ReasonCode == 0 && !p.SessionPresent {
			c.session.orphan()
		}
	case packets.Suback, packets.Unsuback:
		if c != nil {
			p.PacketID = c.ackID
		}
	case packets.Publish:
		if c != nil {
			c.maySend(p)
		}
	case packets.Disconnect:
		if p.ProtocolVersion < 5 {
			p.FixedHeader.Type = 0 // cannot be encoded: MQTT 3.1.1 servers send no DISCONNECT
		}
	}
	return p
}

// OnSelectSubscribers gives a shared subscription's message to a member that is connected, where there is one; mochi would
// pick one of all at random.
func (h *hook) OnSelectSubscribers(subs *mochi.Subscribers, _ packets.Packet) *mochi.Subscribers {
	subs.SharedSelected = map[string]packets.Subscription{}
	for _, members := range subs.Shared {
		chosen := ""
		for id := range members {
			cl, ok := h.b.server.Clients.Get(id)
			connected := ok && !cl.Closed()
			if chosen == "" || connected {
				chosen = id
			}
			if connected {
				break
			}
		}
		sub := members[chosen]
		if known, ok := subs.SharedSelected[chosen]; ok {
			sub = known.Merge(sub)
		} else {
			sub = sub.Merge(sub)
		}
		subs.SharedSelected[chosen] = sub
	}
	return subs
}

// OnPublishDropped counts a delivery that a slow subscriber did not get.
func (h *hook) OnPublishDropped(*mochi.Client, packets.Packet) { h.b.counts.fanoutDropped.Add(1) }

// OnQosPublish numbers the deliveries that wait for an acknowledgement: mochi sends them again ordered by Created, which
// counts seconds.
func (h *hook) OnQosPublish(cl *mochi.Client, p packets.Packet, _ int64, _ int) {
	c := clientOf(cl)
	if c == nil || p.FixedHeader.Type != packets.Publish || p.FixedHeader.Dup {
		return
	}
	s := c.session
	s.mu.Lock()
	if cl.State.Inflight.Len() <= 1 {
		s.created = 0
	}
	s.created++
	p.Created = int64(s.created)
	s.mu.Unlock()
	cl.State.Inflight.Set(p)
}

// OnClientExpired removes the subscriptions, which mochi forgets, and ends the session.
func (h *hook) OnClientExpired(cl *mochi.Client) {
	h.b.server.UnsubscribeClient(cl)
	cl.ClearInflights()
	if c := clientOf(cl); c != nil {
		h.b.expired(c)
	}
}

// OnRetainedExpired keeps the count of what is retained.
func (h *hook) OnRetainedExpired(topic string) { h.b.retained.set(topic, 0) }
