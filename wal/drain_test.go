package wal_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"edgegateway/wal"
)

// BenchmarkColdDrain reads a backlog that is not in the page cache, and in the same run, in turns, the same files as they
// lie there. The backlog has 256 MB of data, or DRAIN_MB. anon-MB is the memory that draining takes at the most beyond
// what the program had before: Go's heap and stacks, not the page cache.
func BenchmarkColdDrain(b *testing.B) {
	size := 256 << 20
	if v := os.Getenv("DRAIN_MB"); v != "" {
		n, err := strconv.Atoi(v)
		must(b, err)
		size = n << 20
	}
	for _, kind := range []struct {
		name    string
		codec   wal.Codec
		records int // of a commit
		payload func(n int) []byte
	}{
		{"blocks=large/codec=none", wal.CodecNone, 900, func(n int) []byte { return data("s", n, 1000) }},
		{"blocks=large/codec=s2", wal.CodecS2, 900, telemetry},
		{"blocks=large/codec=zstd", wal.CodecZstd, 900, telemetry},
		{"blocks=small/codec=none", wal.CodecNone, 1, func(n int) []byte { return data("s", n, 1000) }},
	} {
		b.Run(kind.name, func(b *testing.B) {
			total := size
			if kind.records == 1 {
				total = min(size, 32<<20) // each record is a commit
			}
			dir := benchDir(b)
			o := wal.Options{Codec: kind.codec}
			l, err := wal.Open(dir, wal.Unflushed(o))
			must(b, err)
			cursor(b, l, "u", "s")
			last := 0
			for n := 0; n < total; {
				var batch wal.Batch
				for range kind.records {
					last++
					d := kind.payload(last)
					n += len(d)
					batch.Entries = append(batch.Entries, wal.Entry{Stream: "s", Time: time.Unix(1.7e9, int64(last)), Data: d})
				}
				must(b, put(b, l, batch))
			}
			must(b, l.Close())
			var ratios, rates, opens []float64
			var most int64
			for b.Loop() {
				plain := coldRead(b, dir)
				opening, ours, anon := coldDrain(b, dir, o, last)
				opens = append(opens, opening.Seconds()*1e3)
				ratios, rates = append(ratios, plain.Seconds()/ours.Seconds()), append(rates, float64(total)/1e6/ours.Seconds())
				most = max(most, anon)
			}
			b.ReportMetric(median(ratios), "x-plain-read")
			b.ReportMetric(median(rates), "MB/s")
			b.ReportMetric(float64(most)/1e6, "anon-MB")
			b.ReportMetric(median(opens), "open-ms")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// coldRead reads all segments from first to last, as fast as the kernel gives them.
func coldRead(b *testing.B, dir string) time.Duration {
	files := segments(b, dir)
	forget(b, files)
	start := time.Now()
	buf := make([]byte, 1<<20)
	for _, name := range files {
		f, err := os.Open(name)
		must(b, err)
		for err == nil {
			_, err = f.Read(buf)
		}
		if !errors.Is(err, io.EOF) {
			b.Fatal(err)
		}
		must(b, f.Close())
	}
	return time.Since(start)
}

// coldDrain opens the log, which is counted apart, reads all of it and gives each record its outcome.
func coldDrain(b *testing.B, dir string, o wal.Options, last int) (opening, took time.Duration, anon int64) {
	forget(b, segments(b, dir))
	start := time.Now()
	l, err := wal.Open(dir, wal.Unflushed(o))
	must(b, err)
	opening = time.Since(start)
	c := cursor(b, l, fmt.Sprint("u", len(l.Cursors())), "s") // a new one each time; the first keeps the files
	forget(b, segments(b, dir))
	idle := anonymous(b)
	var most atomic.Int64
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			most.Store(max(most.Load(), anonymous(b)-idle))
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	start = time.Now()
	for n := 0; n < last; {
		recs := read(b, c, 1000)
		c.Done(recs...)
		n += len(recs)
	}
	took = time.Since(start)
	close(stop)
	<-stopped
	must(b, l.Close())
	return opening, took, most.Load()
}

// forget has the page cache forget files.
func forget(b *testing.B, files []string) {
	for _, name := range files {
		f, err := os.Open(name)
		must(b, err)
		must(b, f.Sync())
		must(b, unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED))
		must(b, f.Close())
	}
}

// anonymous returns the memory of this process that no file stands behind.
func anonymous(tb testing.TB) int64 {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		tb.Error(err)
	}
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			n, err := strconv.ParseInt(strings.Fields(v)[0], 10, 64)
			if err != nil {
				tb.Error(err)
			}
			return n << 10
		}
	}
	tb.Error("no RssAnon in /proc/self/status")
	return 0
}

// telemetry is a reading as the gateway stores it, of about 256 B: the values are noise, the rest is nearly always the same.
func telemetry(n int) []byte {
	x := uint64(n+1) * 0x9E3779B97F4A7C15
	x ^= x >> 29
	return fmt.Appendf(nil, `{"time":"2026-11-29T12:%02d:%02d.%06dZ","source":"boiler-%d","topic":"plant/hall-%d/boiler/temperature",`+
		`"quality":"good","fields":{"water":%.4f,"burner":%t,"pressure":%.5f,"flow":%.3f,"count":%d},"sequence":%d,"site":"plant-7"}`,
		n/60000%60, n/1000%60, x>>44, x>>8%17, x>>13%3, 60+float64(x>>16&0xffff)/1e4, x&1 == 0, 2+float64(x>>32&0xffff)/1e5,
		100+float64(x>>20&0xfffff)/1e3, x, n)
}
