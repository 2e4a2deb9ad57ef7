package mqtt_test

import (
	"errors"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"edgegateway/pipeline"
)

// FuzzPackets sends bytes on a connection that has signed in, to a broker whose log takes everything and to one whose log
// takes nothing. The process must live, and no packet may be acknowledged that is not stored. The first byte chooses.
func FuzzPackets(f *testing.F) {
	for _, version := range []byte{4, 5} {
		c := &raw{t: f, v5: version == 5}
		props := func(b ...byte) []byte {
			if c.v5 {
				return append([]byte{0}, b...)
			}
			return b
		}
		sub := func(filter string, options ...byte) []byte {
			return frameOf(subscribe<<4|2, slices.Concat([]byte{0, 9}, props(), text(filter), options))
		}
		pubrelOf := func(id byte) []byte { return frameOf(pubrel<<4|2, []byte{0, id}) }
		for _, packets := range [][]byte{
			c.publishPacket("dev/x", "1", 1, 1, 0),
			slices.Concat(c.publishPacket("dev/x", "1", 2, 1, 0), c.publishPacket("dev/x", "1", 2, 1, dup), pubrelOf(1)),
			slices.Concat(c.publishPacket("dev/x", "1", 2, 1, 0), pubrelOf(1), c.publishPacket("dev/x", "2", 2, 1, 0)),
			slices.Concat(sub("dev/#", 2), c.publishPacket("dev/x", "1", 1, 1, retain), frameOf(puback<<4, []byte{0, 1})),
			slices.Concat(sub("$share/g/dev/#", 1), sub("#"), frameOf(10<<4|2, slices.Concat([]byte{0, 3}, props(), text("dev/#")))),
			c.publishPacket("dev/x", "1", 1, 1, 0, 35, 0, 1),
			c.publishPacket("", "1", 1, 1, 0, 35, 0, 7),
			c.publishPacket("$SYS/x", "1", 1, 1, 0),
			{pingreq << 4, 0, disconnect << 4, 0},
			{disconnect << 4, 1, 4},
			{15 << 4, 2, 0x18, 0},
			{publish<<4 | 2, 0xff, 0xff, 0xff, 0x7f},
			connectPacket(options{version: version, id: "f", user: "admin", pass: password}),
		} {
			f.Add(append([]byte{version}, packets...))
			f.Add(append([]byte{version | 0x80}, packets...))
		}
	}
	taking, refusing := newSink().auto(f, 0), newSink()
	refusing.setRefuse(pipeline.ErrFull)
	conf := config(f)
	takes, refuses := start(f, conf, taking), start(f, conf, refusing)
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) == 0 {
			return
		}
		b, sink, version := takes, taking, byte(4)
		if data[0]&0x80 != 0 {
			b, sink = refuses, refusing
		}
		if data[0]&1 != 0 {
			version = 5
		}
		before := len(sink.messages())
		c := signIn(t, b.Addr(), options{version: version, id: "f"})
		if _, err := c.c.Write(data[1:]); err != nil && !errors.Is(err, io.EOF) {
			return // the broker has closed already
		}
		_ = c.c.(*net.TCPConn).CloseWrite()
		acks, recs := 0, map[uint16]int{}
		for {
			p, err := c.next(5 * time.Second)
			if errors.Is(err, errClosed) {
				break
			}
			if err != nil {
				t.Fatalf("the broker neither answers nor closes: %v", err)
			}
			if p.kind == puback && p.reason() < 0x80 {
				acks++
			}
			if p.kind == pubrec && p.reason() < 0x80 {
				recs[p.id()] = 1
			}
		}
		if stored := len(sink.messages()) - before; acks+len(recs) > stored {
			t.Errorf("%d messages acknowledged, %d stored", acks+len(recs), stored)
		}
	})
}
