package mqtt_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"testing"
	"time"

	"edgegateway/device"
	"edgegateway/device/mqtt"
	"edgegateway/pipeline"

	"golang.org/x/crypto/bcrypt"
)

const password = "correct horse"

// Packet types.
const (
	connect    = 1
	connack    = 2
	publish    = 3
	puback     = 4
	pubrec     = 5
	pubrel     = 6
	pubcomp    = 7
	subscribe  = 8
	suback     = 9
	pingreq    = 12
	pingresp   = 13
	disconnect = 14
)

func hash(t testing.TB, plain string) string {
	t.Helper()
	h, err := bcrypt.GenerateFromPassword([]byte(plain), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	return string(h)
}

func config(t testing.TB) mqtt.Config {
	h := hash(t, password)
	return mqtt.Config{
		Listen: "127.0.0.1:0",
		Users: map[string]mqtt.User{
			"dev":   {PasswordHash: h, Publish: []string{"dev/#"}, Subscribe: []string{"#"}},
			"admin": {PasswordHash: h, Publish: []string{"#"}, Subscribe: []string{"#", "$SYS/#"}},
			"quiet": {PasswordHash: h},
		},
		MaxPacket: 256 << 10, MaxConnections: 200, ReceiveMaximum: 1024, ConnectTimeout: 5 * time.Second,
	}
}

// broker is one that runs.
type broker struct {
	*mqtt.Broker
	stop func() // ends it and waits; may be called again
}

func start(t testing.TB, c mqtt.Config, sink pipeline.Sink) *broker {
	t.Helper()
	return startLogging(t, c, sink, io.Discard)
}

func startLogging(t testing.TB, c mqtt.Config, sink pipeline.Sink, log io.Writer) *broker {
	t.Helper()
	if p := c.Check(); len(p) > 0 {
		t.Fatalf("config: %v", p)
	}
	dev, err := c.Open(device.Env{Name: "local", Log: slog.New(slog.NewTextHandler(log, nil)), Sink: sink})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	var runErr error
	go func() {
		defer close(ended)
		runErr = dev.Run(ctx)
	}()
	b := &broker{Broker: dev.(*mqtt.Broker)}
	b.stop = func() {
		cancel()
		<-ended
		if runErr != nil {
			t.Errorf("Run: %v", runErr)
		}
	}
	t.Cleanup(b.stop)
	return b
}

// raw is a client that speaks bytes, so that nothing hides what the broker sends.
type raw struct {
	t  testing.TB
	c  net.Conn
	r  *bufio.Reader
	v5 bool
}

// packet is what the broker sent.
type packet struct {
	kind  byte
	flags byte
	body  []byte
}

func (p packet) id() uint16 {
	if len(p.body) < 2 {
		return 0
	}
	return binary.BigEndian.Uint16(p.body)
}

// reason returns the reason code of an acknowledgement or a DISCONNECT.
func (p packet) reason() byte {
	at := 2
	if p.kind == disconnect {
		at = 0
	}
	if p.kind == connack {
		at = 1
	}
	if len(p.body) <= at {
		return 0
	}
	return p.body[at]
}

func dial(t testing.TB, addr string) *raw {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return &raw{t: t, c: c, r: bufio.NewReader(c)}
}

// options of a CONNECT.
type options struct {
	version      byte // 4 or 5
	id           string
	user, pass   string
	keep         bool // the session
	will         string
	willPayload  string
	willRetain   bool
	willProps    []byte
	receiveMax   uint16
	keepalive    uint16
	sessionLasts uint32 // seconds, MQTT 5
}

func text(s string) []byte { return append(binary.BigEndian.AppendUint16(nil, uint16(len(s))), s...) }

func frameOf(first byte, body []byte) []byte {
	out := []byte{first}
	for n := len(body); ; {
		b := byte(n & 0x7f)
		if n >>= 7; n > 0 {
			out = append(out, b|0x80)
			continue
		}
		return append(append(out, b), body...)
	}
}

func connectPacket(o options) []byte {
	flags := byte(0)
	if !o.keep {
		flags |= 2
	}
	if o.will != "" {
		flags |= 4 | 1<<3
		if o.willRetain {
			flags |= 1 << 5
		}
	}
	if o.user != "" {
		flags |= 0x80
	}
	if o.pass != "" {
		flags |= 0x40
	}
	body := append(text("MQTT"), o.version, flags)
	body = binary.BigEndian.AppendUint16(body, o.keepalive)
	if o.version == 5 {
		var props []byte
		if o.receiveMax > 0 {
			props = binary.BigEndian.AppendUint16(append(props, 33), o.receiveMax)
		}
		if o.sessionLasts > 0 {
			props = binary.BigEndian.AppendUint32(append(props, 17), o.sessionLasts)
		}
		body = append(append(body, byte(len(props))), props...)
	}
	body = append(body, text(o.id)...)
	if o.will != "" {
		if o.version == 5 {
			body = append(append(body, byte(len(o.willProps))), o.willProps...)
		}
		body = append(append(body, text(o.will)...), text(o.willPayload)...)
	}
	if o.user != "" {
		body = append(body, text(o.user)...)
	}
	if o.pass != "" {
		body = append(body, text(o.pass)...)
	}
	return frameOf(connect<<4, body)
}

// signIn connects as user admin where o names nobody, and expects CONNACK 0.
func signIn(t testing.TB, addr string, o options) *raw {
	t.Helper()
	if o.user == "" {
		o.user, o.pass = "admin", password
	}
	c := dial(t, addr)
	ack := c.connect(o)
	if ack.reason() != 0 {
		t.Fatalf("CONNACK %#x for %q, want 0", ack.reason(), o.id)
	}
	return c
}

func (c *raw) connect(o options) packet {
	c.t.Helper()
	if o.version == 0 {
		o.version = 4
	}
	c.v5 = o.version == 5
	c.send(connectPacket(o))
	p := c.read()
	if p.kind != connack {
		c.t.Fatalf("got packet type %d, want CONNACK", p.kind)
	}
	return p
}

func (c *raw) send(b []byte) {
	c.t.Helper()
	if _, err := c.c.Write(b); err != nil {
		c.t.Fatalf("send: %v", err)
	}
}

const dup, retain = 8, 1

func (c *raw) publishPacket(topic, payload string, qos byte, id uint16, flags byte, props ...byte) []byte {
	body := text(topic)
	if qos > 0 {
		body = binary.BigEndian.AppendUint16(body, id)
	}
	if c.v5 {
		body = append(append(body, byte(len(props))), props...)
	}
	return frameOf(publish<<4|qos<<1|flags, append(body, payload...))
}

func (c *raw) publish(topic, payload string, qos byte, id uint16, flags byte, props ...byte) {
	c.t.Helper()
	c.send(c.publishPacket(topic, payload, qos, id, flags, props...))
}

func (c *raw) ack(kind byte, id uint16) {
	c.t.Helper()
	first := kind << 4
	if kind == pubrel {
		first |= 2
	}
	c.send(frameOf(first, binary.BigEndian.AppendUint16(nil, id)))
}

func (c *raw) subscribePacket(id uint16, qos byte, filters ...string) []byte {
	body := binary.BigEndian.AppendUint16(nil, id)
	if c.v5 {
		body = append(body, 0)
	}
	for _, f := range filters {
		body = append(append(body, text(f)...), qos)
	}
	return frameOf(subscribe<<4|2, body)
}

// subscribe returns the reason codes of SUBACK.
func (c *raw) subscribe(id uint16, qos byte, filters ...string) []byte {
	c.t.Helper()
	c.send(c.subscribePacket(id, qos, filters...))
	p := c.want(suback)
	if p.id() != id {
		c.t.Fatalf("SUBACK for %d, want %d", p.id(), id)
	}
	return p.body[len(p.body)-len(filters):]
}

var errClosed = errors.New("closed")

// next returns the next packet, errClosed when the broker has closed, or os.ErrDeadlineExceeded.
func (c *raw) next(wait time.Duration) (packet, error) {
	_ = c.c.SetReadDeadline(time.Now().Add(wait))
	first, err := c.r.ReadByte()
	if err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return packet{}, err
		}
		return packet{}, errClosed
	}
	length, shift := 0, 0
	for {
		b, err := c.r.ReadByte()
		if err != nil {
			return packet{}, errClosed
		}
		length |= int(b&0x7f) << shift
		shift += 7
		if b&0x80 == 0 {
			break
		}
	}
	body := make([]byte, length)
	if _, err := io.ReadFull(c.r, body); err != nil {
		return packet{}, errClosed
	}
	return packet{first >> 4, first & 15, body}, nil
}

func (c *raw) read() packet {
	c.t.Helper()
	p, err := c.next(10 * time.Second)
	if err != nil {
		c.t.Fatalf("read: %v", err)
	}
	return p
}

func (c *raw) want(kind byte) packet {
	c.t.Helper()
	p := c.read()
	if p.kind != kind {
		c.t.Fatalf("got packet type %d % x, want type %d", p.kind, p.body, kind)
	}
	return p
}

func (c *raw) wantAck(kind byte, id uint16, reason byte) {
	c.t.Helper()
	if p := c.want(kind); p.id() != id || p.reason() != reason {
		c.t.Fatalf("got acknowledgement of %d, reason %#x; want %d, %#x", p.id(), p.reason(), id, reason)
	}
}

// wantSilence sends a ping and expects its answer and nothing before it: the broker has answered nothing else.
func (c *raw) wantSilence() {
	c.t.Helper()
	c.send([]byte{pingreq << 4, 0})
	c.want(pingresp)
}

// wantEnd expects the connection to end, at most with a DISCONNECT, whose reason it returns, where the client speaks MQTT 5.
func (c *raw) wantEnd() (reason byte) {
	c.t.Helper()
	for {
		p, err := c.next(10 * time.Second)
		if errors.Is(err, errClosed) {
			return reason
		}
		if err != nil {
			c.t.Fatalf("connection is still open: %v", err)
		}
		if p.kind != disconnect || !c.v5 {
			c.t.Fatalf("got packet type %d % x, want the end", p.kind, p.body)
		}
		reason = p.reason()
	}
}

// delivery is a PUBLISH from the broker.
type delivery struct {
	topic, payload string
	qos            byte
	id             uint16
	dup, retain    bool
	props          []byte
}

func (c *raw) wantDelivery() delivery {
	c.t.Helper()
	return c.delivery(c.want(publish))
}

func (c *raw) delivery(p packet) delivery {
	d := delivery{qos: p.flags >> 1 & 3, dup: p.flags&dup > 0, retain: p.flags&retain > 0}
	n := int(binary.BigEndian.Uint16(p.body))
	d.topic = string(p.body[2 : 2+n])
	rest := p.body[2+n:]
	if d.qos > 0 {
		d.id = binary.BigEndian.Uint16(rest)
		rest = rest[2:]
	}
	if c.v5 {
		d.props = rest[1 : 1+int(rest[0])]
		rest = rest[1+int(rest[0]):]
	}
	d.payload = string(rest)
	return d
}
