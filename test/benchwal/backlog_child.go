package main

import (
	"context"
	"errors"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"edgegateway/wal"
)

// buildResult is what building the backlog has shown.
type buildResult struct {
	Payload int64   // bytes
	Seconds float64 // without the small commits
	Small   float64 // bytes on the device for a commit of one record, before there was a backlog
}

// buildBacklog writes size bytes of payload that a cursor waits for.
func buildBacklog(ctx context.Context, d *disk, size int64, small int) (r *buildResult, err error) {
	o := options("")
	l, err := wal.Open(d.dir, o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	p := newPayloads(incompressible)
	r = &buildResult{}
	if r.Small, err = smallCommits(ctx, d, l, p, small); err != nil {
		return nil, err
	}
	began := time.Now()
	failed := make(chan error, 1)
	done := func(err error) {
		if err != nil {
			select {
			case failed <- err:
			default:
			}
		}
	}
	const each = 512
	for r.Payload < size {
		batch := wal.Batch{Entries: make([]wal.Entry, each)}
		for i := range batch.Entries {
			batch.Entries[i] = wal.Entry{Stream: stream, Time: time.Now(), Data: p.next()}
		}
		if err := l.Append(ctx, batch, done); err != nil {
			return nil, err
		}
		r.Payload += each * payloadBytes
		select {
		case err := <-failed:
			return nil, err
		default:
		}
	}
	err = appendUrgent(l, p.next()) // in order: all before it is on the disk too
	r.Seconds = time.Since(began).Seconds()
	return r, err
}

// smallCommits appends records one at a time, each urgent, while an uplink keeps up, and returns the bytes on the
// device for each.
func smallCommits(ctx context.Context, d *disk, l *wal.Log, p *payloads, n int) (bytes float64, err error) {
	u, err := drain(ctx, l)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, u.stop()) }()
	var before counts
	for i := -n / 4; i < n; i++ { // the first ones warm up
		if i == 0 {
			d.settle()
			before = d.counts()
		}
		if err := appendUrgent(l, p.next()); err != nil {
			return 0, err
		}
	}
	d.settle()
	return float64(d.counts().minus(before).bytes) / float64(n), nil
}

// drainResult is what starting with the backlog and draining it has shown. Reading the same files plainly takes turns
// with draining them, so that both get the same disk.
type drainResult struct {
	OpenSeconds        float64 // from wal.Open until the first record was acknowledged
	OpenRead           int64   // bytes read from the device for that
	Drained            int64   // bytes of payload
	DrainSeconds       float64
	PlainBytes         int64
	PlainSeconds       float64
	IdleAnon, MostAnon int64 // bytes
	SegmentsBefore     int
	SegmentsAfter      int
	FreeSeconds        float64 // from the last outcome until there were 3, or 2 s
	Small              float64 // as in buildResult, after the backlog
}

func drainBacklog(ctx context.Context, d *disk, size int64, small int) (r *drainResult, err error) {
	r = &drainResult{SegmentsBefore: len(segments(d.dir))}
	record := make([]byte, payloadBytes)
	before := d.counts()
	began := time.Now()
	o := options("")
	l, err := wal.Open(d.dir, o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	if err := appendUrgent(l, record); err != nil {
		return nil, err
	}
	r.OpenSeconds = time.Since(began).Seconds()
	r.OpenRead = d.counts().minus(before).readBytes
	if err := r.drain(ctx, d, l, size); err != nil {
		return nil, err
	}
	r.Small, err = smallCommits(ctx, d, l, newPayloads(incompressible), small)
	return r, err
}

func (r *drainResult) drain(ctx context.Context, d *disk, l *wal.Log, size int64) error {
	c, err := l.Cursor("far", stream, wal.Oldest)
	if err != nil {
		return err
	}
	defer c.Close()
	buf := make([]byte, mib)
	for i := range buf {
		buf[i] = 1 // so that it is there already when memory is looked at
	}
	debug.FreeOSMemory()
	r.IdleAnon = anonymous()
	stop := watchMemory(&r.MostAnon)
	err = r.chunks(ctx, d, c, size, buf)
	last := time.Now()
	stop()
	for err == nil && len(segments(d.dir)) > 3 && time.Since(last) < 2*time.Second {
		time.Sleep(10 * time.Millisecond)
	}
	r.FreeSeconds, r.SegmentsAfter = time.Since(last).Seconds(), len(segments(d.dir))
	return err
}

// chunks drains size bytes of payload. Before each chunk it reads as much plainly: the files behind the one that the
// cursor is in.
func (r *drainResult) chunks(ctx context.Context, d *disk, c *wal.Cursor, size int64, buf []byte) error {
	chunk := max(size/16, 32*mib)
	for r.Drained < size {
		if err := r.plain(d, chunk, buf); err != nil {
			return err
		}
		began, end := time.Now(), min(r.Drained+chunk, size)
		for r.Drained < end {
			recs, err := c.Read(ctx, 0, 0)
			if err != nil {
				return err
			}
			for i := range recs {
				r.Drained += int64(len(recs[i].Data))
			}
			c.Done(recs...)
		}
		r.DrainSeconds += time.Since(began).Seconds()
	}
	return nil
}

func (r *drainResult) plain(d *disk, chunk int64, buf []byte) error {
	files := segments(d.dir)
	if len(files) < 4 {
		return nil
	}
	files = files[2 : len(files)-1] // not the one in use, nor the next, which may be read ahead, nor the one that was opened
	if err := dropCache(files); err != nil {
		return err
	}
	began, read, n := time.Now(), int64(0), 0
	for n < len(files) && read < chunk {
		m, err := readPlain(files[n:n+1], buf)
		if err != nil {
			return err
		}
		read += m
		n++
	}
	r.PlainBytes, r.PlainSeconds = r.PlainBytes+read, r.PlainSeconds+time.Since(began).Seconds()
	return dropCache(files[:n])
}

// watchMemory keeps the largest RssAnon in most until stop is called.
func watchMemory(most *int64) (stop func()) {
	var over atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for !over.Load() {
			*most = max(*most, anonymous())
			time.Sleep(5 * time.Millisecond)
		}
	})
	return func() { over.Store(true); wg.Wait() }
}
