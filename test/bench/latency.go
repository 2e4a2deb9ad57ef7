package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"edgegateway/test/rig"
)

// latency measures the time from a reading to its storing in JetStream: from the record's own time, the middle of request
// and reply, to the time that JetStream gave the message. The reference is a publish of the same size with nothing between:
// sent, stored, confirmed.
func (b *bench) latency(ctx context.Context) error {
	slave := rig.Pymodbus(b.tb, map[int][]rig.PymodbusItem{1: {{Table: "holding", Address: 0, Type: "uint16", Value: 17}}})
	host, port, err := net.SplitHostPort(slave.Addr)
	if err != nil {
		return err
	}
	device := fmt.Sprintf("  plant: {driver: modbus, address: \"%s:%s\", units: [{name: one, unit: 1, points: "+
		"[{name: value, table: holding, address: 0, type: uint16, every: 97ms}]}]}", host, port)
	for _, c := range []struct{ name, lane string }{{"poll-to-nats", ""}, {"poll-to-nats-max-delay-10ms", ", max_delay: 10ms"}} {
		progress("%s: from the reading to its storing", c.name)
		far := rig.NATS(b.tb, rig.NATSOptions{SyncAlways: true})
		g, err := b.start(device, c.lane, far.Addr)
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(15 * time.Second):
		}
		g.Stop()
		ours, err := storedAfter(ctx, far.Addr)
		if err != nil {
			return err
		}
		bare, err := bareRoundTrips(ctx, far.Addr)
		if err != nil {
			return err
		}
		far.Stop()
		for _, p := range []struct {
			name  string
			share float64
		}{{"p50", 0.5}, {"p99", 0.99}} {
			figure(c.name+"-"+p.name, milliseconds(percentile(ours, p.share)), milliseconds(percentile(bare, p.share)), "ms")
		}
	}
	return nil
}

// storedAfter returns how long after its time each reading was stored.
func storedAfter(ctx context.Context, address string) ([]time.Duration, error) {
	nc, err := nats.Connect("nats://" + address)
	if err != nil {
		return nil, err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	consumer, err := js.OrderedConsumer(ctx, "BENCH", jetstream.OrderedConsumerConfig{})
	if err != nil {
		return nil, err
	}
	batch, err := consumer.Fetch(10_000, jetstream.FetchMaxWait(2*time.Second))
	if err != nil {
		return nil, err
	}
	var delays []time.Duration
	for msg := range batch.Messages() {
		meta, err := msg.Metadata()
		if err != nil {
			return nil, err
		}
		var record struct {
			Time    time.Time
			Quality string
		}
		if err := json.Unmarshal(msg.Data(), &record); err != nil {
			return nil, err
		}
		if record.Quality == "good" {
			delays = append(delays, meta.Timestamp.Sub(record.Time))
		}
	}
	if len(delays) < 50 {
		return nil, fmt.Errorf("only %d readings arrived", len(delays))
	}
	return delays, batch.Error()
}

// bareRoundTrips publishes with the plain client, one message at a time.
func bareRoundTrips(ctx context.Context, address string) ([]time.Duration, error) {
	nc, err := nats.Connect("nats://" + address)
	if err != nil {
		return nil, err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	payload := make([]byte, 250) // about what a reading takes
	var trips []time.Duration
	for range 150 {
		began := time.Now()
		if _, err := js.Publish(ctx, "bench.main", payload); err != nil {
			return nil, err
		}
		trips = append(trips, time.Since(began))
		time.Sleep(10 * time.Millisecond) // like readings, not like a flood
	}
	return trips, nil
}
