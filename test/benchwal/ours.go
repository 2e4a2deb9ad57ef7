package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"edgegateway/wal"
)

const stream = "telemetry"

// options are the gateway's defaults, with another codec where one is named.
func options(codec wal.Codec) wal.Options { return wal.Options{Codec: codec} }

// ourLog is the log with its defaults, each record urgent: somebody waits for it. Two rotations lie behind it already,
// because a log is new only once.
func (b *bench) ourLog(name string, o wal.Options) contender {
	how := "defaults (s2), each record urgent"
	if o.Codec == wal.CodecNone {
		how = "without compression, each record urgent"
	}
	return contender{name: name, how: how, open: func(dir string) (subject, error) {
		l, err := wal.Open(dir, o)
		if err != nil {
			return nil, err
		}
		if !b.form.fresh {
			err = prefill(l, 5*segmentBytes(o)/2)
		}
		if err != nil {
			return nil, errors.Join(err, l.Close())
		}
		return ours{l}, nil
	}}
}

func segmentBytes(o wal.Options) int64 {
	if o.SegmentBytes == 0 {
		return 16 * mib
	}
	return o.SegmentBytes
}

// prefill appends size bytes in large commits. Nobody reads them, so they go with their segments.
func prefill(l *wal.Log, size int64) error {
	const each = 512
	p := newPayloads(incompressible)
	for ; size > 0; size -= each * payloadBytes {
		b := wal.Batch{Entries: make([]wal.Entry, each), Urgent: true}
		for i := range b.Entries {
			b.Entries[i] = wal.Entry{Stream: stream, Time: time.Now(), Data: p.next()}
		}
		if err := l.Append(context.Background(), b, nil); err != nil {
			return err
		}
	}
	return appendUrgent(l, p.next()) // in order: all before it is on the disk then
}

type ours struct{ *wal.Log }

func (s ours) append(p []byte, _ time.Time) error { return appendUrgent(s.Log, p) }
func (s ours) close() error                       { return s.Close() }

func appendUrgent(l *wal.Log, p []byte) error {
	done := make(chan error, 1)
	b := wal.Batch{Entries: []wal.Entry{{Stream: stream, Time: time.Now(), Data: p}}, Urgent: true}
	if err := l.Append(context.Background(), b, func(err error) { done <- err }); err != nil {
		return err
	}
	return <-done
}

// drainer reads a log as an uplink does and confirms all that it gets.
type drainer struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup
	err    error // read after stop
}

// drain opens a cursor and starts to read.
func drain(ctx context.Context, l *wal.Log) (*drainer, error) {
	c, err := l.Cursor("far", stream, wal.Oldest)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	d := &drainer{cancel: cancel}
	d.wg.Go(func() {
		defer c.Close()
		for {
			recs, err := c.Read(ctx, 0, 0)
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				d.err = fmt.Errorf("read: %w", err)
				return
			}
			c.Done(recs...)
		}
	})
	return d, nil
}

func (d *drainer) stop() error {
	d.cancel()
	d.wg.Wait()
	return d.err
}

// segments returns the paths of the segment files, oldest first.
func segments(dir string) []string {
	names, _ := filepath.Glob(filepath.Join(dir, "*.seg")) // in order: the names have leading zeroes
	return names
}

// newestSegment returns the number of the newest segment: it grows by one with each rotation.
func newestSegment(dir string) int {
	n := 0
	if names := segments(dir); len(names) > 0 {
		_, _ = fmt.Sscanf(filepath.Base(names[len(names)-1]), "%d.seg", &n)
	}
	return n
}
