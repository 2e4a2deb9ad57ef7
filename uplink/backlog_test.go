package uplink_test

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	"edgegateway/pipeline"
	"edgegateway/uplink"
	"edgegateway/wal"
)

// BenchmarkBacklog is what a record costs from the log to the session, with a far side that confirms at once.
func BenchmarkBacklog(b *testing.B) {
	const n = 200_000
	log, err := wal.Open(b.TempDir(), wal.Options{NewEpoch: 7, MaxBytes: 8 << 30})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = log.Close() }) // it is thrown away
	if _, err := log.Cursor("keeper", "line", wal.Oldest); err != nil {
		b.Fatal(err)
	}
	stored := make(chan error, 1)
	for seq := 0; seq < n; {
		batch := wal.Batch{Urgent: true}
		for ; len(batch.Entries) < 2000; seq++ {
			m := pipeline.Message{
				Time: time.Unix(1_700_000_000+int64(seq), 123_456_789).UTC(), Source: "boiler", Topic: fmt.Sprintf("boiler/%d/flow%60d", seq%50, 0),
				Value: pipeline.Float(20 + float64(seq%1000)/7), Unit: "l/min",
			}
			batch.Entries = append(batch.Entries, wal.Entry{Stream: "line", Time: m.Time, Data: pipeline.Encode(nil, &m)})
		}
		if err := log.Append(b.Context(), batch, func(err error) { stored <- err }); err != nil {
			b.Fatal(err)
		}
		if err := <-stored; err != nil {
			b.Fatal(err)
		}
	}
	round, begun := 0, spent(b)
	for b.Loop() {
		round++
		cursor, err := log.Cursor(fmt.Sprint("far", round), "line", wal.Oldest)
		if err != nil {
			b.Fatal(err)
		}
		r := uplink.New(uplink.RunnerConfig{
			Driver: &far{send: ackAll}, Cursor: cursor,
			Env: uplink.Env{Gateway: "gw1", Stream: "line", Epoch: 7, Promise: uplink.Promise{Order: uplink.OrderStrict}},
		})
		ctx, cancel := context.WithCancel(b.Context())
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		for at, end := cursor.Position(); at < end; at, end = cursor.Position() {
			time.Sleep(time.Millisecond)
		}
		cancel()
		if err := <-done; err != nil {
			b.Fatal(err)
		}
		cursor.Close()
		if err := log.Release(fmt.Sprint("far", round), "line"); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64((spent(b)-begun).Nanoseconds())/float64(b.N)/n, "cpu-ns/record")
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/record")
}

// spent returns the time of processors that this process has taken.
func spent(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
