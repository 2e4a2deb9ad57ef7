package uplink_test

import (
	"context"
	"testing"
	"time"

	"edgegateway/uplink"
	"edgegateway/uplink/uplinktest"
)

// BenchmarkRunner is what the Runner itself costs a record, with a far side that confirms at once.
func BenchmarkRunner(b *testing.B) {
	for _, order := range []uplink.Order{uplink.OrderStrict, uplink.OrderKey} {
		b.Run(string(order), func(b *testing.B) {
			const n = 200_000
			for b.Loop() {
				b.StopTimer()
				log := uplinktest.NewLog()
				for range n {
					log.Append(sample)
				}
				r := uplink.New(uplink.RunnerConfig{Driver: &far{send: ackAll}, Cursor: log, Env: uplink.Env{
					Gateway: "gw1", Stream: "line", Epoch: 3, Promise: uplink.Promise{Order: order},
				}})
				ctx, cancel := context.WithCancel(b.Context())
				done := make(chan error, 1)
				b.StartTimer()
				go func() { done <- r.Run(ctx) }()
				if !log.Wait(n, time.Minute) {
					b.Fatal("not all records have an outcome")
				}
				cancel()
				if err := <-done; err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/record")
		})
	}
}
