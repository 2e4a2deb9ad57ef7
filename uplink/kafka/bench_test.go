package kafka_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"edgegateway/pipeline"
	"edgegateway/test/rig"
	"edgegateway/uplink"
	"edgegateway/uplink/kafka"
	"edgegateway/wal"
)

// BenchmarkDrain drains a full backlog of 256 B telemetry: the driver under its Runner in both modes, transactions of fixed sizes,
// and a bare client that sends the same bytes. Rounds take turns, because the machine is shared; the figures are of the
// quickest of each.
func BenchmarkDrain(b *testing.B) {
	server := rig.Kafka(b)
	data := telemetry(200_000)
	bytes := 0
	for _, d := range data {
		bytes += len(d.JSON)
	}
	type run struct {
		name string
		do   func(topic string, recs []uplink.Record) time.Duration
	}
	runs := []run{
		{"bare", func(topic string, recs []uplink.Record) time.Duration { return bare(b, server.Addr, topic, recs) }},
		{"at_least_once", func(topic string, recs []uplink.Record) time.Duration {
			return drain(b, kafka.Exactly{Config: exactly(server.Addr, topic).Config, Plain: true}, recs)
		}},
		{"exactly_once", func(topic string, recs []uplink.Record) time.Duration {
			return drain(b, exactly(server.Addr, topic), recs)
		}},
	}
	for _, n := range sizes() {
		runs = append(runs, run{fmt.Sprintf("exactly_once of %d", n), func(topic string, recs []uplink.Record) time.Duration {
			driver := exactly(server.Addr, topic)
			driver.Records = n
			return drain(b, driver, recs[:min(len(recs), 60*n)])
		}})
	}
	best := make([]float64, len(runs))
	admin := kadm.NewClient(connect(b, server.Addr))
	round := 0
	for b.Loop() {
		for i, r := range runs {
			round++
			topic := fmt.Sprintf("drain-%d", round)
			if _, err := admin.CreateTopic(b.Context(), 1, 1, nil, topic); err != nil {
				b.Fatal(err)
			}
			recs := data
			if i > 2 {
				recs = data[:min(len(data), 60*[]int{100, 500, 2000, 10_000}[i-3])]
			}
			best[i] = max(best[i], float64(len(recs))/r.do(topic, recs).Seconds())
			if _, err := admin.DeleteTopic(b.Context(), topic); err != nil {
				b.Fatal(err)
			}
		}
	}
	for i, r := range runs[1:] {
		reference := best[0]
		if i > 0 {
			reference = best[1]
		}
		fmt.Fprintf(os.Stderr, "bench kafka-%s ratio %.2f (ours %.0f records/s, reference %.0f records/s)\n", r.name, best[i+1]/reference, best[i+1], reference)
	}
	b.ReportMetric(best[1]/best[0], "of-bare")
	b.ReportMetric(best[2]/best[1], "of-at-least-once")
}

// telemetry returns records whose payload has 256 bytes.
func telemetry(n int) []uplink.Record {
	out := make([]uplink.Record, 0, n)
	for i := range n {
		id := pipeline.RecordID{Gateway: "gw1", Stream: "line", Epoch: 7, Seq: uint64(i + 1)}
		m := pipeline.Message{Time: time.Now(), Source: "boiler", Topic: "boiler/1/temperature", Key: "boiler", Value: pipeline.Float(float64(i) / 7), Unit: "°C"}
		if short := 256 - len(pipeline.AppendJSON(nil, id, &m)); short > 0 {
			m.Source += string(bytes.Repeat([]byte("x"), short))
		}
		out = append(out, uplink.Record{ID: id, Message: m, JSON: pipeline.AppendJSON(nil, id, &m)})
	}
	return out
}

// bare sends the same keys, values and headers as fast as the client can.
func bare(b *testing.B, addr, topic string, recs []uplink.Record) time.Duration {
	c := connect(b, addr, kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.DefaultProduceTopic(topic))
	defer c.Close()
	if err := c.Ping(b.Context()); err != nil {
		b.Fatal(err)
	}
	begun := time.Now()
	var mu sync.Mutex
	var failed error
	for i := range recs {
		r := &recs[i]
		c.Produce(b.Context(), &kgo.Record{
			Key: []byte(r.Message.PartitionKey()), Value: r.JSON, Timestamp: r.Message.Time,
			Headers: []kgo.RecordHeader{
				{Key: "gw-id", Value: []byte("gw1")},
				{Key: "gw-stream", Value: []byte("line")},
				{Key: "gw-epoch", Value: []byte("7")},
				{Key: "content-type", Value: []byte("application/json")},
				{Key: "gw-seq", Value: fmt.Append(nil, r.ID.Seq)},
				{Key: "record-id", Value: []byte(r.ID.String())},
				{Key: "quality", Value: []byte("good")},
			},
		}, func(_ *kgo.Record, err error) {
			if err != nil {
				mu.Lock()
				failed = err
				mu.Unlock()
			}
		})
	}
	if err := c.Flush(b.Context()); err != nil {
		b.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if failed != nil {
		b.Fatal(failed)
	}
	return time.Since(begun)
}

// drain runs a Runner over a log that is full already.
func drain(b *testing.B, driver uplink.Driver, recs []uplink.Record) time.Duration {
	log := &full{end: make(chan struct{})}
	for i := range recs {
		log.records = append(log.records, wal.Record{Seq: recs[i].ID.Seq, Time: recs[i].Message.Time, Data: pipeline.Encode(nil, &recs[i].Message)})
	}
	env := exactEnv()
	env.Uplink = fmt.Sprintf("far-%d", time.Now().UnixNano())
	if e, ok := driver.(kafka.Exactly); ok && e.Plain {
		env.Promise = uplink.Promise{}
	}
	r := uplink.New(uplink.RunnerConfig{Driver: driver, Env: env, Cursor: log})
	ctx, cancel := context.WithCancel(b.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := r.Run(ctx); err != nil {
			b.Errorf("Run = %v", err)
		}
	})
	<-log.end
	took := time.Since(log.begun)
	cancel()
	running.Wait()
	if log.done != len(recs) {
		b.Fatalf("%d of %d confirmed; %+v", log.done, len(recs), r.Status())
	}
	return took
}

// full is a cursor of a log that is full already, as quick as can be.
type full struct {
	mu      sync.Mutex
	records []wal.Record
	begun   time.Time // when the first was read: a session is there
	next    int
	done    int
	end     chan struct{}
}

func (l *full) Read(ctx context.Context, records, bytes int) ([]wal.Record, error) {
	l.mu.Lock()
	if l.begun.IsZero() {
		l.begun = time.Now()
	}
	from, size := l.next, 0
	for l.next < len(l.records) && l.next-from < records && size < bytes {
		size += len(l.records[l.next].Data)
		l.next++
	}
	out := l.records[from:l.next]
	l.mu.Unlock()
	if len(out) > 0 {
		return out, nil
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

func (l *full) Done(recs ...wal.Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.done += len(recs); l.done == len(l.records) {
		close(l.end)
	}
}

func (l *full) Refuse(wal.Record, wal.Refusal) { panic("a record was refused") }
func (l *full) Rewind() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next = l.done
}

// sizes are the transactions of fixed sizes. KAFKA_BENCH_SHORT in the environment leaves them out.
func sizes() []int {
	if os.Getenv("KAFKA_BENCH_SHORT") != "" {
		return nil
	}
	return []int{100, 500, 2000, 10_000}
}
