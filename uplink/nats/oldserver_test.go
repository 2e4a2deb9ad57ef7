package nats_test

import (
	"bytes"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"edgegateway/test/rig"
	"edgegateway/uplink"
	"edgegateway/uplink/nats"
)

// posingAs relays to a server and changes the version that it states to another one of the same length.
func posingAs(t *testing.T, server, version string) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var relays sync.WaitGroup
	relays.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return // closed
			}
			relays.Go(func() { relay(client, server, version) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close() // ends Accept
		relays.Wait()
	})
	return listener.Addr().String()
}

func relay(client net.Conn, server, version string) {
	defer func() { _ = client.Close() }() // ends the other direction
	far, err := net.Dial("tcp", server)
	if err != nil {
		return
	}
	defer func() { _ = far.Close() }() // ends the other direction
	var up sync.WaitGroup
	up.Go(func() {
		_, _ = io.Copy(far, client) // ends with either side
		_ = far.Close()             // the other direction ends too
	})
	for buf := make([]byte, 64<<10); ; {
		n, err := far.Read(buf)
		if n > 0 {
			pose(buf[:n], version)
			_, err = client.Write(buf[:n])
		}
		if err != nil {
			break
		}
	}
	_ = client.Close() // the other direction ends too
	up.Wait()
}

// pose changes the version in what the server says of itself: its greeting, and again after the sign-in.
func pose(text []byte, version string) {
	const key = `"version":"`
	for {
		at := bytes.Index(text, []byte(key))
		if at < 0 {
			return
		}
		text = text[at+len(key):]
		copy(text, version)
	}
}

func TestAnOlderServerIsRefused(t *testing.T) {
	server := rig.NATS(t, rig.NATSOptions{})
	makeStream(t, server.Addr, atomic("old"))
	driver := exactlyOnce(at(posingAs(t, server.Addr, "2.11.9"), "old"))
	s, err := driver.Open(t.Context(), uplink.Env{Gateway: "gw1", Stream: "line", Epoch: epoch})
	if err == nil {
		s.Close()
	}
	if err == nil || !uplink.IsConfig(err) || !strings.Contains(err.Error(), "runs version 2.11.9") {
		t.Errorf("Open = %v, want a refusal of version 2.11.9", err)
	}
	t.Logf("in plain words: %v", err)
	open(t, exactlyOnce(at(posingAs(t, server.Addr, "2.12.0"), "old")))
}

// What an older server says to the first message of a batch: it has stored it by itself.
func TestAnAnswerOfAnOlderServerEndsTheSession(t *testing.T) {
	server := rig.NATS(t, rig.NATSOptions{})
	makeStream(t, server.Addr, atomic("old"))
	for _, subject := range []string{"inbox.1.first", "inbox.1.commit"} {
		s := open(t, exactlyOnce(at(server.Addr, "old")))
		nats.Answer(s, subject, `{"stream":"old","seq":1}`)
		if err := send(t, s, records(1, 2)); err == nil || !uplink.IsConfig(err) || !strings.Contains(err.Error(), "does not store a batch in one step") {
			t.Errorf("after an answer to %s: %v, want that the server knows no batches", subject, err)
		}
	}
}
