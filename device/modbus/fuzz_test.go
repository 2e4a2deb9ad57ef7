package modbus_test

import (
	"encoding/binary"
	"net"
	"testing"
	"time"

	"edgegateway/device/modbus"
)

// answerIn returns the data of the first frame in a stream that answers the request, found by a reader of our own: a
// stream that is out of step has none.
func answerIn(stream []byte, r request) []byte {
	for len(stream) >= 7 {
		length := int(binary.BigEndian.Uint16(stream[4:]))
		if length < 2 || length > 254 || len(stream) < 6+length {
			return nil
		}
		frame := stream[:6+length]
		stream = stream[6+length:]
		if binary.BigEndian.Uint16(frame) != r.txn || frame[2] != 0 || frame[3] != 0 {
			continue
		}
		body := frame[7:]
		if frame[6] != r.unit || body[0] != r.fc || len(body) != 2+2*r.count || int(body[1]) != 2*r.count {
			return nil
		}
		return body[2:]
	}
	return nil
}

// FuzzReply has a server send the bytes for an answer, through the whole link. Whatever they are, nothing panics, and a
// reading is good only where they hold an answer to the request, and then has its value.
func FuzzReply(f *testing.F) {
	text := holding("text", "string", 3)
	text.Length = 2
	points := []modbus.Point{holding("number", "int16", 0), holding("float", "float32", 1), text}
	first := request{txn: 1, unit: 1, fc: 3, addr: 0, count: 5}
	other := first
	other.txn = 9
	f.Add(first.good())
	f.Add(first.wrong())
	f.Add(append(other.wrong(), first.good()...))
	f.Add(append(first.good(), first.wrong()...))
	f.Add(append([]byte{0}, first.good()...))
	f.Add(first.exception(2))
	f.Add(first.exception(4))
	f.Add(first.exception(200))
	f.Add(first.good()[:12])
	f.Add([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, stream []byte) {
		if len(stream) > 290 { // what comes in one piece; see conn.read for what comes later
			stream = stream[:290]
		}
		s := serve(t, func(c net.Conn, _ request) bool {
			say(c, stream)
			return false
		})
		u := kettle(every(time.Hour, points...)...)
		c := config(s.Addr, u)
		c.Timeout = 2 * time.Second
		p := start(t, c)
		eventually(t, "a reading", func() bool { all, _, _ := p.sink.on(""); return len(all) >= len(points) })
		p.stop()
		if n := p.Status().Counters["panics_total"]; n != 0 {
			t.Fatalf("%d panics", n)
		}
		data := answerIn(stream, first)
		for i, at := range [][2]int{{0, 2}, {2, 6}, {6, 10}} {
			point := points[i]
			_, good, _ := p.sink.on("boiler/kettle/" + point.Name)
			if len(good) == 0 {
				continue
			}
			if data == nil {
				t.Fatalf("%s = %q, but %x holds no answer", point.Name, good[0].Value.Text(), stream)
			}
			point.WordOrder = "ABCD"
			if v, _ := modbus.Decode(point, data[at[0]:at[1]]); v.Text() != good[0].Value.Text() {
				t.Fatalf("%s = %q, want %q from %x", point.Name, good[0].Value.Text(), v.Text(), stream)
			}
		}
	})
}
