package e2e

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// MQTT packet types that the client meets, as they stand in the high half of the first byte.
const (
	Connack    = 0x20
	Publish    = 0x30
	Puback     = 0x40
	Pubrec     = 0x50
	Pubrel     = 0x60
	Pubcomp    = 0x70
	Disconnect = 0xe0
)

// Client is the smallest MQTT 5 client that shows what really comes over the wire. It hides nothing and repairs nothing.
type Client struct {
	Conn net.Conn
	r    *bufio.Reader
}

// Ack is a packet of the broker that answers something.
type Ack struct {
	Kind byte   // Puback, Pubrec, …
	ID   uint16 // of the packet it answers; 0 for Disconnect
	Code byte   // 0x80 and above: refused
}

// Stored reports whether the broker has promised that the message is stored.
func (a Ack) Stored() bool { return (a.Kind == Puback || a.Kind == Pubrec) && a.Code < 0x80 }

// Connect signs in with a clean session.
func Connect(address, id, user, password string) (*Client, error) {
	conn, err := net.DialTimeout("tcp", address, 5*time.Second)
	if err != nil {
		return nil, err
	}
	c := &Client{Conn: conn, r: bufio.NewReaderSize(conn, 64<<10)}
	text := func(b []byte, s string) []byte { return append(binary.BigEndian.AppendUint16(b, uint16(len(s))), s...) }
	body := append(text(nil, "MQTT"), 5, 0xc2, 0, 60, 0) // version, user+password+clean start, keepalive, no properties
	body = text(text(text(body, id), user), password)
	if err := c.connect(frame(0x10, body)); err != nil {
		_ = conn.Close() // the other error counts
		return nil, err
	}
	return c, nil
}

func (c *Client) connect(packet []byte) error {
	if err := c.Conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return err
	}
	if _, err := c.Conn.Write(packet); err != nil {
		return err
	}
	kind, body, err := c.read()
	if err != nil {
		return err
	}
	if kind != Connack || len(body) < 2 || body[1] != 0 {
		return fmt.Errorf("sign-in refused: packet %#x % x", kind, body)
	}
	return c.Conn.SetDeadline(time.Time{})
}

// PublishPacket returns a PUBLISH; id counts for QoS 1 and 2 only.
func PublishPacket(topic string, payload []byte, qos byte, id uint16) []byte {
	body := binary.BigEndian.AppendUint16(make([]byte, 0, len(topic)+len(payload)+8), uint16(len(topic)))
	body = append(body, topic...)
	if qos > 0 {
		body = binary.BigEndian.AppendUint16(body, id)
	}
	body = append(body, 0) // no properties
	return frame(Publish|qos<<1, append(body, payload...))
}

func frame(first byte, body []byte) []byte {
	packet := binary.AppendUvarint([]byte{first}, uint64(len(body))) // MQTT's length is this very encoding
	return append(packet, body...)
}

// ReadAck returns the next answer of the broker. Whatever is no answer is an error.
func (c *Client) ReadAck() (Ack, error) {
	kind, body, err := c.read()
	if err != nil {
		return Ack{}, err
	}
	a := Ack{Kind: kind & 0xf0}
	switch {
	case a.Kind == Disconnect:
		if len(body) > 0 {
			a.Code = body[0]
		}
		return a, nil
	case len(body) < 2:
		return Ack{}, fmt.Errorf("packet %#x is too short", kind)
	}
	a.ID = binary.BigEndian.Uint16(body)
	if len(body) > 2 {
		a.Code = body[2]
	}
	return a, nil
}

// Waiting reports whether a whole acknowledgement has arrived already, so that ReadAck does not wait.
func (c *Client) Waiting() bool { return c.r.Buffered() >= 4 }

// PublishOnce publishes with QoS 1 and returns the answer: an error means that there was none, and so no promise.
func (c *Client) PublishOnce(topic string, payload []byte, id uint16, wait time.Duration) (Ack, error) {
	if _, err := c.Conn.Write(PublishPacket(topic, payload, 1, id)); err != nil {
		return Ack{}, err
	}
	if err := c.Conn.SetReadDeadline(time.Now().Add(wait)); err != nil {
		return Ack{}, err
	}
	return c.ReadAck()
}

// Close closes the connection without a DISCONNECT.
func (c *Client) Close() { _ = c.Conn.Close() }

func (c *Client) read() (kind byte, body []byte, err error) {
	if kind, err = c.r.ReadByte(); err != nil {
		return 0, nil, err
	}
	n, err := binary.ReadUvarint(c.r)
	if err != nil {
		return 0, nil, err
	}
	if n > 1<<20 {
		return 0, nil, errors.New("the broker sent a packet of more than 1 MiB")
	}
	body = make([]byte, n)
	_, err = io.ReadFull(c.r, body)
	return kind, body, err
}
