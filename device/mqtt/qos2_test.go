package mqtt_test

import (
	"errors"
	"slices"
	"testing"

	"edgegateway/pipeline"
)

func wantStored(t *testing.T, sink *fakeSink, want ...string) {
	t.Helper()
	if got := sink.payloads(); !slices.Equal(got, want) {
		t.Fatalf("stored %q, want %q", got, want)
	}
}

func TestQoS2StoresEachMessageOnce(t *testing.T) {
	for _, version := range []byte{4, 5} {
		// Each step starts from a broker where client "c/1" with a session that lasts is connected.
		for name, steps := range map[string]func(t *testing.T, s *qos2){
			"the whole flow": func(t *testing.T, s *qos2) {
				s.publish("a", 0)
				s.commit(1)
				s.c.wantAck(pubrec, 1, 0)
				s.c.ack(pubrel, 1)
				s.sink.waitQueued(t, 1)
				s.c.wantSilence() // no PUBCOMP before the commit
				s.commit(1)
				s.c.wantAck(pubcomp, 1, 0)
				s.publish("b", 0) // the id is free again
				s.commit(1)
				s.c.wantAck(pubrec, 1, 0)
				wantStored(t, s.sink, "a", "b")
			},
			"sent again before the commit": func(t *testing.T, s *qos2) {
				s.publish("a", 0)
				s.publish("a", dup)
				s.sink.waitQueued(t, 1)
				s.c.wantSilence()
				s.commit(1)
				s.c.wantAck(pubrec, 1, 0)
				s.c.wantSilence() // one PUBREC answers both
				wantStored(t, s.sink, "a")
			},
			"sent again after PUBREC": func(t *testing.T, s *qos2) {
				s.publish("a", 0)
				s.commit(1)
				s.c.wantAck(pubrec, 1, 0)
				s.publish("a", dup)
				s.c.wantAck(pubrec, 1, 0)
				s.c.wantSilence()
				wantStored(t, s.sink, "a")
			},
			"sent again on a new connection before the commit": func(t *testing.T, s *qos2) {
				s.publish("a", 0)
				s.sink.waitQueued(t, 1)
				s.reconnect(true)
				s.publish("a", dup)
				s.c.wantSilence()
				s.commit(1)
				s.c.wantAck(pubrec, 1, 0)
				s.c.wantSilence()
				wantStored(t, s.sink, "a")
			},
			"sent again on a new connection after PUBREC": func(t *testing.T, s *qos2) {
				s.publish("a", 0)
				s.commit(1)
				s.reconnect(true)
				s.publish("a", dup)
				s.c.wantAck(pubrec, 1, 0)
				s.c.wantSilence()
				wantStored(t, s.sink, "a")
			},
			"sent again after a restart": func(t *testing.T, s *qos2) {
				s.publish("a", 0)
				s.commit(1)
				s.c.wantAck(pubrec, 1, 0)
				s.restart()
				s.publish("a", dup)
				s.c.wantAck(pubrec, 1, 0)
				s.c.ack(pubrel, 1)
				s.commit(1)
				s.c.wantAck(pubcomp, 1, 0)
				wantStored(t, s.sink, "a")
				if names := s.sink.Remembered(""); len(names) != 0 {
					t.Errorf("names left: %q", names)
				}
			},
			"PUBREL sent again after a restart": func(t *testing.T, s *qos2) {
				s.publish("a", 0)
				s.commit(1)
				s.c.wantAck(pubrec, 1, 0)
				s.restart()
				s.c.ack(pubrel, 1)
				s.sink.waitQueued(t, 1)
				s.c.wantSilence()
				s.commit(1)
				s.c.wantAck(pubcomp, 1, 0)
			},
			"a new message with the same id after a restart, because CONNACK told of no session": func(t *testing.T, s *qos2) {
				s.publish("a", 0)
				s.commit(1)
				s.c.wantAck(pubrec, 1, 0)
				s.restart()
				s.publish("b", 0)
				s.commit(1) // the name is forgotten
				s.commit(1) // and used again
				s.c.wantAck(pubrec, 1, 0)
				wantStored(t, s.sink, "a", "b")
			},
			"a crash between PUBREL and its commit, then the id for something new": func(t *testing.T, s *qos2) {
				s.publish("a", 0)
				s.commit(1)
				s.c.wantAck(pubrec, 1, 0)
				s.c.ack(pubrel, 1)
				s.sink.waitQueued(t, 1)
				s.sink.drop() // power goes before the commit: no PUBCOMP went out
				s.restart()
				s.c.ack(pubrel, 1) // so the client sends PUBREL again
				s.commit(1)
				s.c.wantAck(pubcomp, 1, 0)
				s.publish("b", 0)
				s.commit(1)
				s.c.wantAck(pubrec, 1, 0)
				wantStored(t, s.sink, "a", "b")
			},
			"PUBREL sent again before its commit": func(t *testing.T, s *qos2) {
				s.publish("a", 0)
				s.commit(1)
				s.c.wantAck(pubrec, 1, 0)
				s.c.ack(pubrel, 1)
				s.c.ack(pubrel, 1)
				s.sink.waitQueued(t, 1)
				s.commit(1)
				s.c.wantAck(pubcomp, 1, 0)
				s.c.wantSilence()
			},
			"PUBREL before PUBREC ends the connection": func(t *testing.T, s *qos2) {
				s.publish("a", 0)
				s.sink.waitQueued(t, 1)
				s.c.ack(pubrel, 1)
				s.c.wantEnd()
			},
			"PUBREL of an id nobody knows": func(t *testing.T, s *qos2) {
				s.c.ack(pubrel, 9)
				reason := byte(0)
				if s.c.v5 {
					reason = 0x92
				}
				s.c.wantAck(pubcomp, 9, reason)
				if n := s.sink.queued(); n != 0 {
					t.Errorf("%d batches for it", n)
				}
			},
			"a clean start forgets before CONNACK": func(t *testing.T, s *qos2) {
				s.publish("a", 0)
				s.commit(1)
				s.c.wantAck(pubrec, 1, 0)
				s.c = dial(t, s.b.Addr())
				s.c.v5 = s.version == 5
				s.c.send(connectPacket(options{version: s.version, id: "c/1", user: "admin", pass: password}))
				s.sink.waitQueued(t, 1)
				s.commit(1)
				s.c.want(connack)
				if names := s.sink.Remembered(""); len(names) != 0 {
					t.Errorf("names left: %q", names)
				}
				s.publish("b", dup) // of its new session, whatever DUP says
				s.commit(1)
				s.c.wantAck(pubrec, 1, 0)
				wantStored(t, s.sink, "a", "b")
			},
			"committed while the client waits for CONNACK of a clean start": func(t *testing.T, s *qos2) {
				s.publish("a", 0)
				s.sink.waitQueued(t, 1)
				s.c = dial(t, s.b.Addr())
				s.c.v5 = s.version == 5
				s.c.send(connectPacket(options{version: s.version, id: "c/1", user: "admin", pass: password}))
				s.sink.waitQueued(t, 2) // the message, and that its name be forgotten
				s.sink.commit(nil)
				s.c.want(connack) // no PUBREC before, nor
				s.publish("b", 0)
				s.sink.waitQueued(t, 1)
				s.c.wantSilence() // one that would seem to answer this
				s.sink.commit(nil)
				s.c.wantAck(pubrec, 1, 0)
				wantStored(t, s.sink, "a", "b")
			},
			"a clean start is refused while the log cannot forget": func(t *testing.T, s *qos2) {
				s.publish("a", 0)
				s.commit(1)
				s.c.wantAck(pubrec, 1, 0)
				s.sink.setRefuse(pipeline.ErrStopped)
				c := dial(t, s.b.Addr())
				ack := c.connect(options{version: s.version, id: "c/1", user: "admin", pass: password})
				want := byte(3)
				if s.version == 5 {
					want = 0x89
				}
				if ack.reason() != want {
					t.Errorf("CONNACK %#x, want %#x", ack.reason(), want)
				}
			},
			"PUBCOMP is held back when the log cannot forget": func(t *testing.T, s *qos2) {
				s.publish("a", 0)
				s.commit(1)
				s.c.wantAck(pubrec, 1, 0)
				s.c.ack(pubrel, 1)
				s.sink.waitQueued(t, 1)
				s.sink.commit(errors.New("disk is gone"))
				s.c.wantEnd()
				s.reconnect(true)
				s.c.ack(pubrel, 1)
				s.sink.waitQueued(t, 1)
				s.commit(1)
				s.c.wantAck(pubcomp, 1, 0)
			},
		} {
			t.Run(map[byte]string{4: "MQTT 3.1.1, ", 5: "MQTT 5, "}[version]+name, func(t *testing.T) {
				s := &qos2{t: t, sink: newSink(), version: version}
				s.b = start(t, config(t), s.sink)
				s.reconnect(false)
				steps(t, s)
			})
		}
	}
}

// qos2 is a client with a session, its broker and its log.
type qos2 struct {
	t       *testing.T
	sink    *fakeSink
	version byte
	b       *broker
	c       *raw
}

func (s *qos2) publish(payload string, flags byte) {
	s.c.publish("dev/x", payload, 2, 1, flags)
}

// commit waits for n batches and commits them.
func (s *qos2) commit(n int) {
	s.t.Helper()
	s.sink.waitQueued(s.t, n)
	s.sink.commit(nil)
}

func (s *qos2) reconnect(present bool) {
	s.t.Helper()
	s.c = dial(s.t, s.b.Addr())
	ack := s.c.connect(options{version: s.version, id: "c/1", user: "admin", pass: password, keep: true, sessionLasts: 3600})
	if ack.reason() != 0 || ack.body[0] == 1 != present {
		s.t.Fatalf("CONNACK % x, want session present: %v", ack.body, present)
	}
}

// restart makes a broker anew on what the log remembers.
func (s *qos2) restart() {
	s.t.Helper()
	s.b.stop()
	s.b = start(s.t, config(s.t), s.sink)
	s.reconnect(false)
}

// drop loses what is queued, as a crash does.
func (s *fakeSink) drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = nil
}

func TestNamesOfTwoBrokersAndOddClientsDoNotMeet(t *testing.T) {
	sink := newSink()
	b := start(t, config(t), sink)
	for _, id := range []string{"a", "a/1", "a%2F1", "ü b"} {
		c := signIn(t, b.Addr(), options{id: id, keep: true})
		c.publish("dev/x", id, 2, 1, 0)
		sink.waitQueued(t, 1)
		sink.commit(nil)
		c.wantAck(pubrec, 1, 0)
	}
	names := sink.Remembered("q2/local/")
	slices.Sort(names)
	if want := []string{"q2/local/%C3%BC%20b/1", "q2/local/a%252F1/1", "q2/local/a%2F1/1", "q2/local/a/1"}; !slices.Equal(names, want) {
		t.Errorf("names %q, want %q", names, want)
	}
}

func TestASessionThatEndsForgetsItsNames(t *testing.T) {
	sink := newSink()
	b := start(t, config(t), sink)
	c := signIn(t, b.Addr(), options{id: "c"}) // clean session
	c.publish("dev/x", "a", 2, 1, 0)
	sink.waitQueued(t, 1)
	sink.commit(nil)
	c.wantAck(pubrec, 1, 0)
	_ = c.c.Close()
	sink.waitQueued(t, 1)
	sink.commit(nil)
	if names := sink.Remembered(""); len(names) != 0 {
		t.Errorf("names left: %q", names)
	}
}

func TestTooManyUnreleasedIdsEndTheConnection(t *testing.T) {
	conf := config(t)
	conf.ReceiveMaximum = 3
	sink := newSink().auto(t, 0)
	b := start(t, conf, sink)
	c := signIn(t, b.Addr(), options{version: 5, id: "c"})
	for id := range uint16(3) {
		c.publish("dev/x", "a", 2, id+1, 0)
		c.wantAck(pubrec, id+1, 0)
	}
	c.publish("dev/x", "a", 2, 4, 0)
	if reason := c.wantEnd(); reason != 0x93 {
		t.Errorf("DISCONNECT %#x, want 0x93", reason)
	}
}
