package mqtt_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// The numbers are those of the project's list of broker trials: what stock mochi fails. docs/adr/0004 says which of them
// this broker still fails.

// wantAlive expects that a new client can connect and publish.
func wantAlive(t *testing.T, b *broker) {
	t.Helper()
	c := signIn(t, b.Addr(), options{id: "alive"})
	c.publish("dev/alive", "1", 1, 1, 0)
	c.wantAck(puback, 1, 0)
}

func TestT01AMalformedSubscribeEndsItsConnectionOnly(t *testing.T) {
	var log syncBuffer
	b := startLogging(t, config(t), newSink().auto(t, 0), &log)
	c := signIn(t, b.Addr(), options{version: 5, id: "c"})
	other := signIn(t, b.Addr(), options{id: "other"})
	c.send(frameOf(subscribe<<4|2, append([]byte{0, 1, 0}, text("dev/x")...))) // no options byte
	c.wantEnd()
	other.wantSilence()
	wantAlive(t, b)
	eventually(t, "the one line about it", func() bool { return strings.Count(log.String(), "client was disconnected") == 1 })
}

func TestT02NobodyTakesMemoryBeforeSignIn(t *testing.T) {
	for name, first := range map[string][]byte{
		"a length of 256 MiB":     {connect << 4, 0xff, 0xff, 0xff, 0x7f},
		"a length of 65 KiB":      {connect << 4, 0x80, 0x88, 0x04},
		"a length without end":    {connect << 4, 0x80, 0x80, 0x80, 0x80},
		"another packet first":    {publish << 4, 0x04},
		"CONNECT with flag bits":  {connect<<4 | 1, 0x04},
		"a packet type that is 0": {0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			b := start(t, config(t), newSink().auto(t, 0))
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			for range 50 {
				c := dial(t, b.Addr())
				c.send(first)
				c.wantEnd()
			}
			runtime.ReadMemStats(&after)
			if grown := after.TotalAlloc - before.TotalAlloc; grown > 8<<20 {
				t.Errorf("50 connections made the broker allocate %d KiB", grown>>10)
			}
			wantAlive(t, b)
		})
	}
}

func TestAPacketOverTheLimitIsRefused(t *testing.T) {
	for _, version := range []byte{4, 5} {
		t.Run(fmt.Sprintf("version byte %d", version), func(t *testing.T) {
			sink := newSink().auto(t, 0)
			b := start(t, config(t), sink)
			c := signIn(t, b.Addr(), options{version: version, id: "c"})
			c.publish("dev/x", strings.Repeat("x", 256<<10-20), 1, 1, 0)
			c.wantAck(puback, 1, 0)
			large := c.publishPacket("dev/x", strings.Repeat("x", 256<<10), 1, 2, 0)
			_, _ = c.c.Write(large[:100]) // the broker need not see the rest
			if reason := c.wantEnd(); version == 5 && reason != 0x95 {
				t.Errorf("DISCONNECT %#x, want 0x95", reason)
			}
			if n := len(sink.messages()); n != 1 {
				t.Errorf("%d messages stored, want 1", n)
			}
		})
	}
}

func TestT03AConnectionThatSaysNothingIsClosed(t *testing.T) {
	conf := config(t)
	conf.ConnectTimeout = 100 * time.Millisecond
	b := start(t, conf, newSink().auto(t, 0))
	silent, slow := dial(t, b.Addr()), dial(t, b.Addr())
	slow.send([]byte{connect << 4, 50, 0, 4, 'M'})
	silent.wantEnd()
	slow.wantEnd()
	eventually(t, "no connection", func() bool { return b.Status().Counters["connections"] == 0 })
}

func TestConnectionsAreCapped(t *testing.T) {
	conf := config(t)
	conf.MaxConnections = 3
	b := start(t, conf, newSink().auto(t, 0))
	for i := range 3 {
		defer signIn(t, b.Addr(), options{id: fmt.Sprint(i)}).wantSilence()
	}
	c := dial(t, b.Addr())
	c.wantEnd()
	if n := b.Status().Counters["connections_refused_total"]; n != 1 {
		t.Errorf("connections_refused_total = %d, want 1", n)
	}
}

func TestT04WillsPassTheACLAndTheLog(t *testing.T) {
	for _, version := range []byte{4, 5} {
		t.Run(fmt.Sprintf("denied, version byte %d", version), func(t *testing.T) {
			sink := newSink().auto(t, 0)
			b := start(t, config(t), sink)
			c := dial(t, b.Addr())
			want := map[byte]byte{4: 5, 5: 0x87}[version]
			if got := c.connect(options{version: version, id: "c", user: "dev", pass: password, will: "cmd/stop", willPayload: "w"}).reason(); got != want {
				t.Errorf("CONNACK %#x, want %#x", got, want)
			}
			c.wantEnd()
			if n := len(sink.messages()); n != 0 {
				t.Errorf("%d messages stored", n)
			}
		})
		for _, end := range []struct {
			name string
			do   func(c *raw)
			sent bool
		}{
			{"the connection breaks", func(c *raw) { _ = c.c.Close() }, true},
			{"the client says goodbye", func(c *raw) { c.send([]byte{disconnect << 4, 0}) }, false},
			{"the client breaks the rules", func(c *raw) { c.send([]byte{0xff, 0}) }, true},
		} {
			t.Run(fmt.Sprintf("%s, version byte %d", end.name, version), func(t *testing.T) {
				sink := newSink()
				b := start(t, config(t), sink)
				watch := signIn(t, b.Addr(), options{id: "w"})
				watch.subscribe(1, 1, "dev/gone")
				c := signIn(t, b.Addr(), options{version: version, id: "c", user: "dev", pass: password, will: "dev/gone", willPayload: "w"})
				end.do(c)
				eventually(t, "the end of the connection", func() bool { return b.Status().Counters["connections"] == 1 })
				if !end.sent {
					watch.wantSilence()
					if n := sink.queued(); n != 0 {
						t.Errorf("%d batches", n)
					}
					return
				}
				sink.waitQueued(t, 1)
				watch.wantSilence() // not before the commit
				sink.commit(nil)
				if d := watch.wantDelivery(); d.topic != "dev/gone" || d.payload != "w" {
					t.Errorf("got %+v", d)
				}
				wantStored(t, sink, "w")
			})
		}
	}
}

func TestAWillWaitsForItsDelay(t *testing.T) {
	sink := newSink().auto(t, 0)
	b := start(t, config(t), sink)
	delay := binary.BigEndian.AppendUint32([]byte{24}, 1)
	o := options{version: 5, id: "c", keep: true, sessionLasts: 60, will: "dev/gone", willPayload: "w", willProps: delay}
	_ = signIn(t, b.Addr(), o).c.Close()
	eventually(t, "the end of the connection", func() bool { return b.Status().Counters["connections"] == 0 })
	c := signIn(t, b.Addr(), o) // back in time: no will
	time.Sleep(1500 * time.Millisecond)
	wantStored(t, sink)
	_ = c.c.Close()
	eventually(t, "the will", func() bool { return len(sink.messages()) == 1 })
}

func TestT05AndT06TheClientsPacketIDsAreItsOwn(t *testing.T) {
	b := start(t, config(t), newSink().auto(t, 0))
	sub := signIn(t, b.Addr(), options{id: "s", keep: true})
	sub.subscribe(1, 1, "dev/x")
	pub := signIn(t, b.Addr(), options{id: "p"})
	pub.publish("dev/x", "1", 1, 1, 0)
	d := sub.wantDelivery()
	// T06: the id of the delivery for a SUBSCRIBE.
	if got := sub.subscribe(d.id, 1, "dev/other")[0]; got != 1 {
		t.Errorf("SUBACK %#x for the id of a delivery", got)
	}
	// T05: the same id for a publish; the delivery must come again.
	sub.publish("dev/y", "2", 1, d.id, 0)
	sub.wantAck(puback, d.id, 0)
	_ = sub.c.Close()
	sub = signIn(t, b.Addr(), options{id: "s", keep: true})
	if again := sub.wantDelivery(); again.payload != "1" || !again.dup || again.id != d.id {
		t.Errorf("got %+v, want the first delivery again", again)
	}
}

func TestT08AnAbsentClientGetsItsMessagesInOrder(t *testing.T) {
	b := start(t, config(t), newSink().auto(t, 0))
	sub := signIn(t, b.Addr(), options{id: "s", keep: true})
	sub.subscribe(1, 1, "dev/x")
	_ = sub.c.Close()
	eventually(t, "the client to be gone", func() bool { return b.Status().Counters["connections"] == 0 })
	pub := signIn(t, b.Addr(), options{id: "p"})
	const n = 500
	for i := range n {
		pub.publish("dev/x", fmt.Sprint(i), 1, uint16(i+1), 0)
	}
	for i := range n {
		pub.wantAck(puback, uint16(i+1), 0)
	}
	b.settle(t, pub)
	sub = signIn(t, b.Addr(), options{id: "s", keep: true})
	for i := range n {
		if d := sub.wantDelivery(); d.payload != fmt.Sprint(i) {
			t.Fatalf("delivery %d is %q", i, d.payload)
		}
	}
}

// settle waits until all that was acknowledged has been fanned out: what it sends comes last.
func (b *broker) settle(t *testing.T, pub *raw) {
	t.Helper()
	c := signIn(t, b.Addr(), options{id: "settle"})
	c.subscribe(1, 0, "dev/settle")
	pub.publish("dev/settle", "x", 1, 60000, 0)
	pub.wantAck(puback, 60000, 0)
	c.wantDelivery()
}

func TestT09ReceiveMaximumOfASubscriberIsKept(t *testing.T) {
	for _, qos := range []byte{1, 2} {
		t.Run(fmt.Sprintf("QoS %d", qos), func(t *testing.T) {
			b := start(t, config(t), newSink().auto(t, 0))
			sub := signIn(t, b.Addr(), options{version: 5, id: "s", receiveMax: 10})
			sub.subscribe(1, qos, "dev/x")
			pub := signIn(t, b.Addr(), options{id: "p"})
			const n = 200
			for i := range n {
				pub.publish("dev/x", fmt.Sprint(i), qos, uint16(i+1), 0)
			}
			var open []uint16
			for i := range n {
				d := sub.wantDelivery()
				if d.payload != fmt.Sprint(i) {
					t.Fatalf("delivery %d is %q", i, d.payload)
				}
				if open = append(open, d.id); len(open) < 10 {
					continue
				}
				if i == 9 { // the window is full: nothing more comes
					sub.wantSilence()
				}
				if qos == 2 {
					sub.ack(pubrec, open[0])
					sub.wantAck(pubrel, open[0], 0)
					sub.ack(pubcomp, open[0])
				} else {
					sub.ack(puback, open[0])
				}
				open = open[1:]
			}
		})
	}
}

func TestT10ASubscriberThatStopsReadingStopsNobody(t *testing.T) {
	b := start(t, config(t), newSink().auto(t, 0))
	stalled := signIn(t, b.Addr(), options{id: "stalled"})
	if err := stalled.c.(*net.TCPConn).SetReadBuffer(4096); err != nil {
		t.Fatal(err)
	}
	stalled.subscribe(1, 1, "dev/x")
	reader := signIn(t, b.Addr(), options{id: "reader"})
	reader.subscribe(1, 0, "dev/x")
	pub := signIn(t, b.Addr(), options{id: "p"})
	const n = 2000
	payload := strings.Repeat("x", 20_000)
	var wg sync.WaitGroup
	got := 0
	wg.Go(func() {
		for range n {
			if p, err := reader.next(20 * time.Second); err != nil || p.kind != publish {
				t.Errorf("the reader got %d deliveries, then %v", got, err)
				return
			}
			got++
		}
	})
	for i := range n {
		pub.publish("dev/x", payload, 1, uint16(i%60000+1), 0)
		pub.wantAck(puback, uint16(i%60000+1), 0)
	}
	wg.Wait()
	signIn(t, b.Addr(), options{id: "late"}).wantSilence()
	runtime.KeepAlive(stalled) // a collected connection would be closed and the trial pass wrongly
}

func TestT12AnExpiredSessionLeavesNoSubscriptions(t *testing.T) {
	b := start(t, config(t), newSink().auto(t, 0))
	c := signIn(t, b.Addr(), options{version: 5, id: "c", keep: true, sessionLasts: 1})
	for i := range 300 {
		c.subscribe(uint16(i+1), 0, fmt.Sprintf("dev/%d", i))
	}
	if n := b.Status().Counters["subscriptions"]; n != 300 {
		t.Fatalf("subscriptions = %d, want 300", n)
	}
	_ = c.c.Close()
	eventually(t, "the session to expire", func() bool { return b.Status().Counters["subscriptions"] == 0 })
}

func TestT13AFilterOf65000LevelsCostsNothing(t *testing.T) {
	sink := newSink().auto(t, 0)
	b := start(t, config(t), sink)
	deep := strings.Repeat("/", 65_000)
	c := signIn(t, b.Addr(), options{version: 5, id: "c"})
	began := time.Now()
	if got := c.subscribe(1, 0, deep)[0]; got != 0x8f {
		t.Errorf("SUBACK %#x, want 0x8f", got)
	}
	c.publish(deep, "x", 1, 1, 0)
	if reason := c.wantEnd(); reason != 0x90 {
		t.Errorf("DISCONNECT %#x, want 0x90 (topic name invalid)", reason)
	}
	if took := time.Since(began); took > time.Second {
		t.Errorf("took %v", took)
	}
	if n := len(sink.messages()); n != 0 {
		t.Errorf("%d messages stored", n)
	}
}

func TestT14ConnackAnnouncesWhatIsEnforced(t *testing.T) {
	b := start(t, config(t), newSink().auto(t, 0))
	c := dial(t, b.Addr())
	props := c.connect(options{version: 5, user: "admin", pass: password}).body[2:]
	for name, want := range map[string][]byte{
		"receive maximum": {33, 4, 0}, "topic alias maximum": {34, 0, 32}, "maximum packet size": {39, 0, 4, 0, 0}, "assigned id": {18},
	} {
		if !bytes.Contains(props, want) {
			t.Errorf("no %s in % x", name, props)
		}
	}
}

func TestT15AndT16TopicAliases(t *testing.T) {
	alias := func(n byte) []byte { return []byte{35, 0, n} }
	sink := newSink().auto(t, 0)
	b := start(t, config(t), sink)
	c := signIn(t, b.Addr(), options{version: 5, id: "c", user: "dev", pass: password})
	c.publish("dev/x", "1", 1, 1, 0, alias(1)...)
	c.wantAck(puback, 1, 0)
	c.publish("", "2", 1, 2, 0, alias(1)...)
	c.wantAck(puback, 2, 0)
	c.publish("cmd/x", "3", 1, 3, 0, alias(2)...)
	c.wantAck(puback, 3, 0x87)
	c.publish("", "4", 1, 4, 0, alias(2)...) // the ACL sees the topic behind it
	c.wantAck(puback, 4, 0x87)
	wantStored(t, sink, "1", "2")
	if m := sink.messages()[1]; m.Topic != "dev/x" {
		t.Errorf("topic %q", m.Topic)
	}
	c.publish("", "5", 1, 5, retain, alias(3)...) // T16
	if reason := c.wantEnd(); reason != 0x82 {
		t.Errorf("DISCONNECT %#x, want 0x82", reason)
	}
	wantStored(t, sink, "1", "2")
}

func TestT17AWillKeepsItsProperties(t *testing.T) {
	sink := newSink().auto(t, 0)
	b := start(t, config(t), sink)
	watch := signIn(t, b.Addr(), options{version: 5, id: "w"})
	watch.subscribe(1, 0, "dev/gone")
	props := slices.Concat([]byte{3}, text("text/plain"), []byte{8}, text("dev/answer"), []byte{9}, text("corr"), []byte{38}, text("k"), text("v"))
	c := signIn(t, b.Addr(), options{version: 5, id: "c", will: "dev/gone", willPayload: "w", willProps: props})
	_ = c.c.Close()
	d := watch.wantDelivery()
	for _, want := range []string{"text/plain", "dev/answer", "corr"} {
		if !bytes.Contains(d.props, []byte(want)) {
			t.Errorf("no %q in %q", want, d.props)
		}
	}
	if bytes.IndexByte(d.props, 2) == 0 {
		t.Error("an expiry was added")
	}
	headers := sink.messages()[0].Headers
	if len(headers) != 2 || headers[0].Name != "content-type" || headers[0].Value != "text/plain" || headers[1].Name != "k" || headers[1].Value != "v" {
		t.Errorf("headers %v", headers)
	}
}

func TestT22ADeniedPublish(t *testing.T) {
	for _, d := range dialects {
		t.Run(d.name, func(t *testing.T) {
			sink := newSink().auto(t, 0)
			b := start(t, config(t), sink)
			c := signIn(t, b.Addr(), options{version: d.version, id: "c", user: "dev", pass: password})
			c.publish("cmd/x", "0", 0, 0, 0)
			c.wantSilence()
			c.publish("cmd/x", "1", d.qos, 1, 0)
			if d.version == 5 {
				c.wantAck(d.ack, 1, 0x87)
				c.wantSilence()
			} else {
				c.wantEnd() // without DISCONNECT, which MQTT 3.1.1 servers do not send
			}
			if n := len(sink.messages()); n != 0 {
				t.Errorf("%d messages stored", n)
			}
			if n := b.Status().Counters["denied_total"]; n != 2 {
				t.Errorf("denied_total = %d, want 2", n)
			}
		})
	}
}

func TestASessionTakenOverGetsNoDisconnectInMQTT311(t *testing.T) {
	b := start(t, config(t), newSink().auto(t, 0))
	for _, version := range []byte{4, 5} {
		id := fmt.Sprint(version)
		old := signIn(t, b.Addr(), options{version: version, id: id})
		signIn(t, b.Addr(), options{version: version, id: id}).wantSilence()
		if reason := old.wantEnd(); version == 5 && reason != 0x8E {
			t.Errorf("DISCONNECT %#x, want 0x8e", reason)
		}
	}
}

func TestT21ALargeMessageDoesNotHoldBackSmallOnes(t *testing.T) {
	b := start(t, config(t), newSink().auto(t, 0))
	sub := dial(t, b.Addr())
	// Maximum Packet Size 100.
	body := append(text("MQTT"), 5, 0x80|0x40|2, 0, 0, 5, 39, 0, 0, 0, 100)
	sub.v5 = true
	sub.send(frameOf(connect<<4, slices.Concat(body, text("s"), text("admin"), text(password))))
	sub.want(connack)
	sub.subscribe(1, 0, "dev/x")
	pub := signIn(t, b.Addr(), options{id: "p"})
	for i := range 8 {
		pub.publish("dev/x", fmt.Sprint(i), 0, 0, 0)
	}
	pub.publish("dev/x", strings.Repeat("x", 500), 0, 0, 0)
	for i := range 8 {
		if d := sub.wantDelivery(); d.payload != fmt.Sprint(i) {
			t.Fatalf("delivery %d is %q", i, d.payload)
		}
	}
	sub.wantSilence()
}

func TestT30AnAbsentMemberOfASharedSubscriptionGetsNothing(t *testing.T) {
	b := start(t, config(t), newSink().auto(t, 0))
	absent := signIn(t, b.Addr(), options{id: "absent", keep: true})
	absent.subscribe(1, 0, "$share/g/dev/x")
	_ = absent.c.Close()
	here := signIn(t, b.Addr(), options{id: "here"})
	here.subscribe(1, 0, "$share/g/dev/x")
	eventually(t, "the client to be gone", func() bool { return b.Status().Counters["connections"] == 1 })
	pub := signIn(t, b.Addr(), options{id: "p"})
	for i := range 200 {
		pub.publish("dev/x", fmt.Sprint(i), 0, 0, 0)
	}
	for i := range 200 {
		if d := here.wantDelivery(); d.payload != fmt.Sprint(i) {
			t.Fatalf("delivery %d is %q", i, d.payload)
		}
	}
}

func TestLocalSubscribersGetMessagesAfterTheCommitInOrder(t *testing.T) {
	sink := newSink()
	b := start(t, config(t), sink)
	sub := signIn(t, b.Addr(), options{version: 5, id: "s"})
	sub.subscribe(1, 2, "dev/#")
	pub := signIn(t, b.Addr(), options{version: 5, id: "p"})
	var want []string
	for i := range 30 {
		qos := byte(i % 3)
		id := uint16(0)
		if qos > 0 {
			id = uint16(i + 1)
		}
		pub.publish("dev/x", fmt.Sprint(i), qos, id, 0, 35, 0, 1) // with an alias, which is not the subscriber's
		want = append(want, fmt.Sprint(i))
	}
	sink.waitQueued(t, 30)
	sub.wantSilence()
	sink.commit(nil)
	for _, payload := range want {
		d := sub.wantDelivery()
		if d.payload != payload || d.topic != "dev/x" || len(d.props) != 0 {
			t.Fatalf("got %+v, want %q", d, payload)
		}
	}
}

func TestNoLocalIsKept(t *testing.T) {
	b := start(t, config(t), newSink().auto(t, 0))
	c := signIn(t, b.Addr(), options{version: 5, id: "c"})
	c.subscribe(1, 4, "dev/x") // options: QoS 0, No Local
	other := signIn(t, b.Addr(), options{version: 5, id: "o"})
	c.publish("dev/x", "own", 0, 0, 0)
	b.settle(t, other)
	c.wantSilence()
	other.publish("dev/x", "other", 0, 0, 0)
	if d := c.wantDelivery(); d.payload != "other" {
		t.Errorf("got %+v", d)
	}
}

func TestRetainedMessagesAreBounded(t *testing.T) {
	b := start(t, config(t), newSink().auto(t, 0))
	c := signIn(t, b.Addr(), options{id: "c"})
	payload := strings.Repeat("x", 200<<10)
	for i := range 30 { // 6 MiB, of which 4 are kept
		c.publish(fmt.Sprintf("dev/%d", i), payload, 1, uint16(i+1), retain)
		c.wantAck(puback, uint16(i+1), 0)
	}
	b.settle(t, c)
	if n := b.Status().Counters["retained_dropped_total"]; n != 10 {
		t.Errorf("retained_dropped_total = %d, want 10", n)
	}
	c.publish("dev/0", "", 1, 1, retain) // makes room for one
	c.wantAck(puback, 1, 0)
	c.publish("dev/new", payload, 1, 2, retain)
	c.wantAck(puback, 2, 0)
	b.settle(t, c)
	sub := signIn(t, b.Addr(), options{id: "s"})
	sub.subscribe(1, 0, "dev/+")
	got := map[string]bool{}
	for range 20 {
		got[sub.wantDelivery().topic] = true
	}
	sub.wantSilence()
	if len(got) != 20 || got["dev/0"] || !got["dev/new"] {
		t.Errorf("retained: %v", got)
	}
}

// mochi reads its index of retained messages at SUBSCRIBE without the lock under which it writes it. The race detector is
// what fails this test.
func TestRetainedMessagesComeAndGoWhileClientsSubscribe(t *testing.T) {
	b := start(t, config(t), newSink().auto(t, 0))
	var subscribers sync.WaitGroup
	for i := range 3 {
		sub := signIn(t, b.Addr(), options{id: fmt.Sprint("s", i)})
		subscribers.Go(func() {
			for n := range 100 {
				sub.send(sub.subscribePacket(uint16(n+1), 0, "dev/+"))
			}
		})
	}
	c := signIn(t, b.Addr(), options{id: "c"})
	for i := range 200 {
		payload := "x"
		if i%2 == 1 {
			payload = "" // forgets the one before
		}
		c.publish(fmt.Sprintf("dev/%d", i/2), payload, 1, uint16(i+1), retain)
		c.wantAck(puback, uint16(i+1), 0)
	}
	subscribers.Wait()
	b.settle(t, c)
}

func TestLogsHoldNeitherPayloadsNorPasswords(t *testing.T) {
	var log syncBuffer
	b := startLogging(t, config(t), newSink().auto(t, 0), &log)
	for range 20 {
		dial(t, b.Addr()).connect(options{id: "c", user: "dev", pass: "hunter22"})
		c := signIn(t, b.Addr(), options{version: 5, id: "c", keepalive: 1})
		c.publish("dev/x", "topsecret", 1, 0, 0) // packet id 0
		c.wantEnd()
		c = signIn(t, b.Addr(), options{version: 5, id: "c", user: "admin", pass: password})
		c.publish("$SYS/x", "topsecret", 1, 1, 0)
		c.wantAck(puback, 1, 0x87)
		c.send(frameOf(subscribe<<4|2, []byte{0, 1, 0})) // no filter: mochi prints the packet
		c.wantEnd()
	}
	out := log.String()
	for _, secret := range []string{"hunter22", "topsecret", password} {
		if strings.Contains(out, secret) {
			t.Errorf("the log holds %q:\n%s", secret, out)
		}
	}
	if n := strings.Count(out, "\n"); n > 12 {
		t.Errorf("%d lines for the same few faults:\n%s", n, out)
	}
}

// syncBuffer is a log that may be written while it is read.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
