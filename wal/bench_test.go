package wal_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"edgegateway/wal"
)

// BenchmarkAppend measures producers that wait for each record of 256 B, and in the same run, in turns, what it is
// compared with: a raw preallocated file with one fdatasync per group, and one bbolt transaction per record.
func BenchmarkAppend(b *testing.B) {
	var noise, readings [4096][]byte
	for i := range noise {
		noise[i], readings[i] = data("s", i, 256), telemetry(i)
	}
	for _, kind := range []struct {
		payload string
		codec   wal.Codec
		records [][]byte
	}{
		{"noise", wal.CodecS2, noise[:]}, {"telemetry", wal.CodecS2, readings[:]}, {"telemetry", wal.CodecZstd, readings[:]},
	} {
		for _, producers := range []int{1, 64, 1024} {
			b.Run(fmt.Sprintf("payload=%s/codec=%s/producers=%d", kind.payload, kind.codec, producers), func(b *testing.B) {
				benchAppend(b, producers, kind.codec, kind.records)
			})
		}
	}
}

func benchAppend(b *testing.B, producers int, codec wal.Codec, records [][]byte) {
	dir := benchDir(b)
	l, err := wal.Open(dir, wal.Options{Codec: codec})
	must(b, err)
	raw := newRawLog(b, dir)
	db, err := bbolt.Open(filepath.Join(dir, "naive.db"), 0o600, nil)
	must(b, err)
	var n atomic.Uint64
	payload := func() []byte { return records[n.Add(1)%uint64(len(records))] }
	ours := func() error {
		done := make(chan error, 1)
		batch := wal.Batch{Entries: []wal.Entry{{Stream: "s", Time: time.Now(), Data: payload()}}, Urgent: true}
		if err := l.Append(b.Context(), batch, func(err error) { done <- err }); err != nil {
			return err
		}
		return <-done
	}
	naive := func() error {
		return db.Update(func(tx *bbolt.Tx) error {
			k, err := tx.CreateBucketIfNotExists([]byte("q"))
			if err != nil {
				return err
			}
			n, _ := k.NextSequence()
			return k.Put(binary.BigEndian.AppendUint64(nil, n), payload())
		})
	}
	const turn = 250 * time.Millisecond
	var toRaw, toNaive, rates []float64
	var cpu, rawCPU time.Duration
	var count, rawCount float64
	before := l.Stats()
	for b.Loop() {
		rawCPU -= cpuTime()
		r := rate(b, producers, turn, func() error { return raw.append(payload()) })
		rawCPU, rawCount = rawCPU+cpuTime(), rawCount+r*turn.Seconds()
		cpu -= cpuTime()
		o := rate(b, producers, turn, ours)
		cpu, count = cpu+cpuTime(), count+o*turn.Seconds()
		n := rate(b, min(producers, 8), turn, naive)
		toRaw, toNaive, rates = append(toRaw, o/r), append(toNaive, o/n), append(rates, o)
	}
	s := l.Stats()
	b.ReportMetric(median(rates), "records/s")
	b.ReportMetric(median(toRaw), "x-raw-append")
	b.ReportMetric(median(toNaive), "x-bbolt-update")
	b.ReportMetric(float64(s.Written-before.Written)/float64(s.Streams[0].Bytes), "write-amplification")
	b.ReportMetric(float64(s.Streams[0].Records)/float64(s.Commits-before.Commits), "records/commit")
	b.ReportMetric(float64(cpu.Microseconds())/count, "cpu-us/record")
	b.ReportMetric(float64(rawCPU.Microseconds())/rawCount, "raw-cpu-us/record")
	must(b, l.Close())
	must(b, db.Close())
	raw.close()
}

// BenchmarkCommit measures what a commit costs the processor, with TMPDIR in memory, by the number of batches in it.
func BenchmarkCommit(b *testing.B) {
	for _, n := range []int{1, 32, 512} {
		for _, codec := range []wal.Codec{wal.CodecNone, wal.CodecS2} {
			b.Run(fmt.Sprintf("batches=%d/codec=%s", n, codec), func(b *testing.B) {
				l, err := wal.Open(b.TempDir(), wal.Options{Codec: codec, MaxDelay: time.Hour})
				must(b, err)
				var batches []wal.Batch
				for i := range n {
					e := wal.Entry{Stream: "s", Time: time.Unix(1.7e9, int64(i)), Data: telemetry(i)}
					batches = append(batches, wal.Batch{Entries: []wal.Entry{e}, Urgent: i == n-1})
				}
				done := make(chan error, 1)
				b.ReportAllocs()
				before := l.Stats().Commits
				for b.Loop() {
					for i := range batches[:n-1] {
						must(b, l.Append(b.Context(), batches[i], nil))
					}
					must(b, l.Append(b.Context(), batches[n-1], func(err error) { done <- err }))
					must(b, <-done)
				}
				b.ReportMetric(float64(l.Stats().Commits-before)/float64(b.N), "commits/op")
				must(b, l.Close())
			})
		}
	}
}

// benchDir is on the disk of the checkout.
func benchDir(b *testing.B) string {
	dir, err := os.MkdirTemp(".", "bench-") //nolint:usetesting // b.TempDir may lie in memory, where a flush costs nothing
	must(b, err)
	b.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func rate(b *testing.B, producers int, d time.Duration, call func() error) float64 {
	var n atomic.Int64
	var wg sync.WaitGroup
	start := time.Now()
	for range producers {
		wg.Go(func() {
			for time.Since(start) < d {
				if err := call(); err != nil {
					b.Error(err)
					return
				}
				n.Add(1)
			}
		})
	}
	wg.Wait()
	return float64(n.Load()) / time.Since(start).Seconds()
}

func median(v []float64) float64 { slices.Sort(v); return v[len(v)/2] }

// rawLog is the least that a durable queue costs: groups appended to a file that is written already, one flush each.
type rawLog struct {
	f       *os.File
	off     int64
	mu      sync.Mutex
	pending []byte
	waiting []chan error
	poke    chan struct{}
	ended   chan struct{}
}

const rawSize = 64 << 20

func newRawLog(b *testing.B, dir string) *rawLog {
	f, err := os.Create(filepath.Join(dir, "raw"))
	must(b, err)
	_, err = f.Write(make([]byte, rawSize))
	must(b, err)
	must(b, f.Sync())
	r := &rawLog{f: f, poke: make(chan struct{}, 1), ended: make(chan struct{})}
	go r.run()
	return r
}

func (r *rawLog) append(p []byte) error {
	done := make(chan error, 1)
	r.mu.Lock()
	r.pending = append(r.pending, p...)
	r.waiting = append(r.waiting, done)
	r.mu.Unlock()
	select {
	case r.poke <- struct{}{}:
	default:
	}
	return <-done
}

func (r *rawLog) run() {
	defer close(r.ended)
	for range r.poke {
		r.mu.Lock()
		p, w := r.pending, r.waiting
		r.pending, r.waiting = nil, nil
		r.mu.Unlock()
		if r.off+int64(len(p)) > rawSize {
			r.off = 0
		}
		_, err := r.f.WriteAt(p, r.off)
		if err == nil {
			err = syscall.Fdatasync(int(r.f.Fd()))
		}
		r.off += (int64(len(p)) + 4095) &^ 4095
		for _, done := range w {
			done <- err
		}
	}
}

func (r *rawLog) close() { close(r.poke); <-r.ended; r.f.Close() }

// BenchmarkDone gives records their outcome one at a time. Each needs a record that was appended and read before, outside
// the measured time, so run it with a count: -benchtime 1000000x. cpu-ns/record is what the calling thread used: it does
// not count the time that other programs had, nor the garbage that appending and reading have left.
func BenchmarkDone(b *testing.B) {
	const n = 50_000
	l, err := wal.Open(b.TempDir(), wal.Options{Window: n, MaxDelay: time.Hour})
	must(b, err)
	c := cursor(b, l, "u", "s")
	b.ReportAllocs()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var cpu time.Duration
	count, next, i := 0, 1, n
	var recs []wal.Record
	for b.Loop() {
		if i >= n {
			b.StopTimer()
			for end := next + n; next < end; next += 1000 {
				must(b, put(b, l, batch("s", next, next+999, 16)))
			}
			for recs = nil; len(recs) < n; {
				recs = append(recs, read(b, c, n)...)
			}
			i = 0
			runtime.GC()
			b.StartTimer()
			cpu -= threadTime(b)
		}
		c.Done(recs[i])
		if i, count = i+1, count+1; i >= n {
			cpu += threadTime(b)
		}
	}
	if i < n {
		cpu += threadTime(b)
	}
	b.ReportMetric(float64(cpu.Nanoseconds())/float64(count), "cpu-ns/record")
	must(b, l.Close())
}

// cpuTime is the processor time that this process has used.
func cpuTime() time.Duration {
	var r syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &r)
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// threadTime is the processor time that this thread has used.
func threadTime(b *testing.B) time.Duration {
	var ts unix.Timespec
	must(b, unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts))
	return time.Duration(ts.Nano())
}

func TestDoneAllocatesNothing(t *testing.T) {
	l := open(t, t.TempDir(), wal.Options{})
	c := cursor(t, l, "u", "s")
	must(t, put(t, l, batch("s", 1, 2000, 16)))
	recs := expect(t, c, "s", 1, 2000, 16)
	i := 0
	if n := testing.AllocsPerRun(1000, func() { c.Done(recs[i]); i++ }); n >= 1 {
		t.Errorf("%v allocations per record, want 0", n)
	}
}

// BenchmarkRead reads records of 256 B that are still in memory.
func BenchmarkRead(b *testing.B) {
	l, err := wal.Open(b.TempDir(), wal.Options{})
	must(b, err)
	c := cursor(b, l, "u", "s")
	must(b, put(b, l, batch("s", 1, 2000, 256)))
	b.ReportAllocs()
	for b.Loop() {
		c.Rewind()
		for got := 0; got < 2000; {
			got += len(read(b, c, 500))
		}
	}
	b.ReportMetric(float64(b.N)*2000/b.Elapsed().Seconds(), "records/s")
	must(b, l.Close())
}
