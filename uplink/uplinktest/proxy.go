package uplinktest

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/Shopify/toxiproxy/v2/toxics"
	"github.com/rs/zerolog"
)

// Proxy is a bad line between a driver and its broker: toxiproxy with the faults by the names that the suite has for them.
type Proxy struct {
	Addr string

	t         testing.TB
	line      *toxiproxy.Proxy
	swallowed *swallow // the last one that was put in; nil for none
}

// NewProxy returns a proxy that listens at an address, leads to another, and ends with the test. Whatever it closes it resets.
func NewProxy(t testing.TB, at, to string) *Proxy {
	t.Helper()
	register()
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	p := &Proxy{t: t, line: toxiproxy.NewProxy(server, t.Name(), at, to)}
	for _, direction := range []string{"upstream", "downstream"} {
		// It is never in force, but where it is known of, a connection that is closed is reset.
		p.put("reset_peer", direction, 0, nil)
	}
	if err := p.line.Start(); err != nil {
		t.Fatalf("proxy: %v", err)
	}
	p.Addr = p.line.Listen
	t.Cleanup(p.line.Stop)
	return p
}

// put puts a fault into one direction of the line, in force with the given likelihood.
func (p *Proxy) put(kind, direction string, toxicity float64, attributes map[string]any) *toxics.ToxicWrapper {
	p.t.Helper()
	text, err := json.Marshal(map[string]any{
		"name": kind + " " + direction, "type": kind, "stream": direction, "toxicity": toxicity, "attributes": attributes,
	})
	if err != nil {
		p.t.Fatalf("proxy: %v", err)
	}
	fault, err := p.line.Toxics.AddToxicJson(strings.NewReader(string(text)))
	if err != nil {
		p.t.Fatalf("proxy: %s: %v", text, err)
	}
	return fault
}

func (p *Proxy) take(kind, direction string) {
	p.t.Helper()
	if err := p.line.Toxics.RemoveToxic(context.Background(), kind+" "+direction); err != nil {
		p.t.Fatalf("proxy: %s %s: %v", kind, direction, err)
	}
}

// Slow makes each direction take so long and bounds its bytes a second.
func (p *Proxy) Slow(latency time.Duration, rate int64) {
	p.t.Helper()
	for _, direction := range []string{"upstream", "downstream"} {
		if latency > 0 {
			p.put("latency", direction, 1, map[string]any{"latency": latency.Milliseconds()})
		}
		if rate > 0 {
			p.put("bandwidth", direction, 1, map[string]any{"rate": max(1, rate/1000)})
		}
	}
}

// Swallow makes replies vanish, or lets them pass again on connections made afterwards; those that have lost one are closed.
func (p *Proxy) Swallow(on bool) {
	p.t.Helper()
	if on {
		p.swallowed = p.put("swallow", "downstream", 1, nil).Toxic.(*swallow)
		return
	}
	p.take("swallow", "downstream")
}

// Swallowed returns how many bytes of replies have vanished since Swallow was last called with true.
func (p *Proxy) Swallowed() int64 { return p.swallowed.bytes.Load() }

// Hole makes all that is sent in either direction vanish while connections stand and new ones are taken. Those that have lost
// something are closed when it ends.
func (p *Proxy) Hole(on bool) {
	p.t.Helper()
	for _, direction := range []string{"upstream", "downstream"} {
		if on {
			p.put("timeout", direction, 1, map[string]any{"timeout": 0})
		} else {
			p.take("timeout", direction)
		}
	}
}

// CutAfter resets each connection when so many more bytes have gone to the broker, in the middle of a request that is longer,
// until Mend is called.
func (p *Proxy) CutAfter(bytes int) {
	p.t.Helper()
	p.put("limit_data", "upstream", 1, map[string]any{"bytes": bytes})
}

// Mend ends CutAfter.
func (p *Proxy) Mend() { p.take("limit_data", "upstream") }

// Down closes all connections and refuses new ones, until Up is called.
func (p *Proxy) Down() { p.line.Stop() }

// Up ends Down.
func (p *Proxy) Up() {
	p.t.Helper()
	if err := p.line.Start(); err != nil {
		p.t.Fatalf("proxy: %v", err)
	}
}

// register makes swallow known to toxiproxy.
var register = sync.OnceFunc(func() { toxics.Register("swallow", new(swallow)) })
