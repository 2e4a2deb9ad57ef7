package kafka_test

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"edgegateway/pipeline"
	"edgegateway/test/rig"
	"edgegateway/uplink"
	"edgegateway/uplink/kafka"
	"edgegateway/wal"
)

// BenchmarkDrain drains a full backlog of 256 B telemetry under a Runner: plain and idempotent, in transactions, and in transactions
// of fixed sizes. Rounds take turns, because the machine is shared, and each figure is the median of what the rounds have for it.
// In the environment, KAFKA_BENCH_RECORDS is the backlog, BENCH_SHORT makes it small and leaves the fixed sizes out, and
// KAFKA_BENCH_TABLE names a page that has marks for the table.
func BenchmarkDrain(b *testing.B) {
	server := rig.Kafka(b, "broker.session.timeout.ms=30000")
	data := telemetry(backlogSize())
	type run struct {
		name    string
		driver  func(topic string) uplink.Driver
		records int
	}
	runs := []run{
		{"idempotent", func(topic string) uplink.Driver {
			return kafka.Exactly{Config: exactly(server.Addr, topic).Config, Plain: true}
		}, len(data)},
		{"exactly-vs-idempotent", func(topic string) uplink.Driver { return exactly(server.Addr, topic) }, len(data)},
	}
	for _, n := range sizes() {
		runs = append(runs, run{fmt.Sprintf("exactly-of-%d-vs-idempotent", n), func(topic string) uplink.Driver {
			driver := exactly(server.Addr, topic)
			driver.Records = n
			return driver
		}, min(len(data), 60*n)})
	}
	rates, ratios := make([][]float64, len(runs)), make([][]float64, len(runs))
	admin := kadm.NewClient(connect(b, server.Addr))
	round := 0
	for b.Loop() {
		round++
		now := make([]float64, len(runs))
		for i := range runs {
			if i < 2 && round%2 == 0 {
				i = 1 - i
			}
			topic := fmt.Sprintf("drain-%d-%d", round, i)
			create(b, admin, topic)
			now[i] = float64(runs[i].records) / drain(b, runs[i].driver(topic), data[:runs[i].records]).Seconds()
			if _, err := admin.DeleteTopic(b.Context(), topic); err != nil {
				b.Fatal(err)
			}
		}
		for i := range runs {
			rates[i], ratios[i] = append(rates[i], now[i]), append(ratios[i], now[i]/now[0])
		}
	}
	var lines []string
	for i, r := range runs[1:] {
		ratio, ours, reference := median(ratios[i+1]), median(rates[i+1]), median(rates[0])
		fmt.Fprintf(os.Stderr, "bench kafka-%s ratio %.2f (ours %.0f records/s, reference %.0f records/s)\n", r.name, ratio, ours, reference)
		goal := ""
		if i == 0 {
			goal = "≥ .9"
		}
		lines = append(lines, fmt.Sprintf("| `kafka-%s` records/s | %.0f | %.0f | %.2f | %s |", r.name, ours, reference, ratio, goal))
	}
	b.ReportMetric(median(ratios[1]), "of-idempotent")
	if page := os.Getenv("KAFKA_BENCH_TABLE"); page != "" {
		const table = "\nMeasured on %s: %s, %d cores, %d records in %d rounds.\n\n" +
			"| figure | ours | reference | ratio | goal |\n|---|---|---|---|---|\n%s\n\n"
		writeTable(b, page, fmt.Sprintf(table,
			time.Now().UTC().Format("2 January 2006"), runtime.GOARCH, runtime.NumCPU(), len(data), round, strings.Join(lines, "\n")))
	}
}

// writeTable puts a table between its marks in a page.
func writeTable(b *testing.B, page, table string) {
	const begin, end = "<!-- bench-kafka: begin, written by make bench-uplinks -->\n", "<!-- bench-kafka: end -->\n"
	text, err := os.ReadFile(page)
	if err != nil {
		b.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(text), begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		b.Fatalf("%s has not both marks, %q and %q", page, begin, end)
	}
	if err := os.WriteFile(page, []byte(head+begin+table+end+tail), 0o644); err != nil { //nolint:gosec // a page of the docs
		b.Fatal(err)
	}
}

func median(values []float64) float64 {
	v := slices.Sorted(slices.Values(values))
	if n := len(v); n%2 == 0 {
		return (v[n/2-1] + v[n/2]) / 2
	}
	return v[len(v)/2]
}

// telemetry returns records in a log, whose payload has 256 bytes.
func telemetry(n int) []wal.Record {
	out := make([]wal.Record, 0, n)
	for i := range n {
		id := pipeline.RecordID{Gateway: "gw1", Stream: "line", Epoch: 7, Seq: uint64(i + 1)}
		m := pipeline.Message{Time: time.Now(), Source: "boiler", Topic: "boiler/1/temperature", Key: "boiler", Value: pipeline.Float(float64(i) / 7), Unit: "°C"}
		if short := 256 - len(pipeline.AppendJSON(nil, id, &m)); short > 0 {
			m.Source += strings.Repeat("x", short)
		}
		out = append(out, wal.Record{Seq: id.Seq, Time: m.Time, Data: pipeline.Encode(nil, &m)})
	}
	return out
}

// drain runs a Runner over a log that is full already.
func drain(b *testing.B, driver uplink.Driver, recs []wal.Record) time.Duration {
	log := &full{records: recs, end: make(chan struct{})}
	runtime.GC()
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

// backlogSize is how many records are drained.
func backlogSize() int {
	if n, err := strconv.Atoi(os.Getenv("KAFKA_BENCH_RECORDS")); err == nil {
		return n
	}
	if os.Getenv("BENCH_SHORT") != "" {
		return 200_000
	}
	return 1_000_000
}

// sizes are the transactions of fixed sizes. BENCH_SHORT in the environment leaves them out.
func sizes() []int {
	if os.Getenv("BENCH_SHORT") != "" {
		return nil
	}
	return []int{100, 500, 2000, 10_000}
}
