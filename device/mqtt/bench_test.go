package mqtt_test

import (
	"testing"
	"time"
)

// BenchmarkPublishQoS1 publishes to a log whose commits take 5 ms: with one message in flight, as a broker does that
// commits each message by itself, and with a window of 1000. It reports both rates of the same run and their ratio.
func BenchmarkPublishQoS1(b *testing.B) {
	sink := newSink().auto(b, 5*time.Millisecond)
	br := start(b, config(b), sink)
	var single, window float64
	for b.Loop() {
		single = publishRate(b, br, 1, 100)
		window = publishRate(b, br, 1000, 50_000)
		sink.mu.Lock()
		sink.stored = nil
		sink.mu.Unlock()
	}
	b.ReportMetric(single, "window1-msg/s")
	b.ReportMetric(window, "window1000-msg/s")
	b.ReportMetric(window/single, "ratio")
}

// publishRate publishes n messages of 128 bytes with window of them in flight and returns the rate of acknowledgements.
func publishRate(b *testing.B, br *broker, window, n int) float64 {
	c := signIn(b, br.Addr(), options{id: "bench"})
	packet := c.publishPacket("dev/bench", string(make([]byte, 128)), 1, 0, 0)
	at := 2 + 2 + len("dev/bench") // of the packet id; the fixed header has two or three bytes
	if packet[1]&0x80 != 0 {
		at++
	}
	sent, acked, out := 0, 0, []byte(nil)
	began := time.Now()
	for acked < n {
		for out = out[:0]; sent < n && sent-acked < window; sent++ {
			id := sent%60000 + 1
			packet[at], packet[at+1] = byte(id>>8), byte(id)
			out = append(out, packet...)
		}
		if len(out) > 0 {
			c.send(out)
		}
		for {
			if p := c.want(puback); int(p.id()) != acked%60000+1 {
				b.Fatalf("acknowledgement of %d, want %d", p.id(), acked%60000+1)
			}
			acked++
			if c.r.Buffered() == 0 {
				break
			}
		}
	}
	rate := float64(n) / time.Since(began).Seconds()
	_ = c.c.Close()
	return rate
}
