package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"edgegateway/wal"
)

// load is one steady state: what is counted under it per payload and per commit.
type load struct {
	producers int
	kind      string
	wear      goal // bytes on the device per byte of payload
}

func loads() []load {
	return []load{
		{1, incompressible, atMost(64)},
		{64, incompressible, atMost(3)},
		{1024, incompressible, atMost(1.25)},
		{1, telemetry, goal{}},
		{64, telemetry, goal{}},
		{1024, telemetry, atMost(.5)},
	}
}

// measureSteady counts what reaches the device while a log is appended to, read, drained and rotates.
func (b *bench) measureSteady(ctx context.Context) error {
	if !b.disk.counted() {
		b.note("steady: no device below the directory, so nothing can be counted")
		return nil
	}
	for _, l := range loads() {
		b.progress("steady: %d producers, %s", l.producers, l.kind)
		if err := b.steady(ctx, l); err != nil {
			return fmt.Errorf("%d producers: %w", l.producers, err)
		}
	}
	return nil
}

func (b *bench) steady(ctx context.Context, ld load) (err error) {
	dir, err := b.newDir("steady")
	if err != nil {
		return err
	}
	o := options("")
	l, err := wal.Open(dir, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close(), b.empty()) }()
	d, err := drain(ctx, l)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.stop()) }()

	p, s := newPayloads(ld.kind), ours{l}
	if !b.form.fresh {
		if err := prime(l, dir, ld); err != nil {
			return err
		}
	}
	b.disk.settle()
	device, commits, rotations := b.disk.counts(), l.Stats().Commits, newestSegment(dir)
	records, err := b.untilRotation(ctx, dir, s, p, ld.producers, b.form.steady)
	if err != nil {
		return err
	}
	b.disk.settle() // what the journal still holds is ours too
	device, rotations = b.disk.counts().minus(device), newestSegment(dir)-rotations
	commits = l.Stats().Commits - commits - uint64(rotations) // the log counts the making of a segment as one
	b.reportSteady(ld, records, int64(commits), rotations, device)
	return nil
}

// prime brings a log to where its files have been in use for a while: two rotations, and the next one near for a single
// producer, who would take minutes to fill a segment. So he meets more of them than he would in the long run.
func prime(l *wal.Log, dir string, ld load) error {
	o := options("")
	size := segmentBytes(o)
	if err := prefill(l, 5*size/2); err != nil {
		return err
	}
	if ld.producers > 1 {
		return nil
	}
	for now := newestSegment(dir); newestSegment(dir) == now; {
		if err := prefill(l, 256*kib); err != nil {
			return err
		}
	}
	return prefill(l, size-size/20-256*kib)
}

// untilRotation appends for d, and goes on for up to three times as long until there were two rotations, or one of a
// single producer.
func (b *bench) untilRotation(
	ctx context.Context, dir string, s subject, p *payloads, producers int, d time.Duration,
) (records int64, err error) {
	rotations := min(producers, 2)
	first, began := newestSegment(dir), time.Now()
	slice := min(d, 500*time.Millisecond)
	for {
		n, err := appendFor(s, p, producers, slice)
		records += n
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return records, err
		}
		took := time.Since(began)
		if took >= d && newestSegment(dir)-first >= rotations || took >= 3*d {
			return records, nil
		}
	}
}

// appendFor has producers append for d.
func appendFor(s subject, p *payloads, producers int, d time.Duration) (int64, error) {
	until := time.Now().Add(d)
	counts, errs := make([]int64, producers), make([]error, producers)
	var wg sync.WaitGroup
	for i := range producers {
		wg.Go(func() {
			for time.Now().Before(until) && errs[i] == nil {
				if errs[i] = s.append(p.next(), until); errs[i] == nil {
					counts[i]++
				}
			}
		})
	}
	wg.Wait()
	var n int64
	for _, c := range counts {
		n += c
	}
	return n, errors.Join(errs...)
}

func (b *bench) reportSteady(ld load, records, commits int64, rotations int, device counts) {
	payload := float64(records * payloadBytes)
	name := fmt.Sprintf("%d-%s", ld.producers, ld.kind)
	b.note("%s: %d records in %d commits, %d rotations, %d flushes, %s MB", name, records, commits, rotations, device.flushes,
		short(float64(device.bytes)/1e6))
	b.report(figure{
		name: "written-" + name, ours: float64(device.bytes) / 1e6, reference: payload / 1e6, unit: "MB", goal: ld.wear,
	})
	b.report(figure{
		name: "flushes-per-commit-" + name, ours: float64(device.flushes), reference: float64(commits), unit: "times", goal: atMost(2.3),
	})
}
