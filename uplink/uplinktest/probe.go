package uplinktest

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"edgegateway/uplink"
)

// Probed returns the steps of a probe as the command prints them.
func Probed(t *testing.T, driver uplink.Prober, delivery uplink.Delivery) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var text strings.Builder
	driver.Probe(ctx, uplink.Env{
		Gateway: "gw1", Stream: "line", Uplink: "far", Promise: uplink.Promise{Delivery: delivery}, Log: slog.New(slog.DiscardHandler),
	}, func(s uplink.Step) {
		if s.Err != nil {
			fmt.Fprintf(&text, "FAIL %s: %v\n", s.Name, s.Err)
		} else {
			fmt.Fprintf(&text, "ok %s: %s\n", s.Name, s.Note)
		}
	})
	return text.String()
}

// Mute listens, says hello to whoever comes, and nothing more. It returns its address.
func Mute(t *testing.T, hello string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() }) // ends Accept
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = c.Close() }) // it may have gone by then
			_, _ = c.Write([]byte(hello))
		}
	}()
	return l.Addr().String()
}
