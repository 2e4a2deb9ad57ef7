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
	segment   int64 // 0: the default
	wear      goal  // bytes on the device per byte of payload
}

// loads has small segments for one producer: with the default ones it would take minutes to fill a single one. Each
// rotation costs flushes and bytes, so that counts against us.
func loads() []load {
	const small = mib
	return []load{
		{1, incompressible, small, atMost(64)}, {64, incompressible, 0, atMost(3)}, {1024, incompressible, 0, atMost(1.25)},
		{1, telemetry, small, goal{}}, {64, telemetry, 0, goal{}}, {1024, telemetry, 0, atMost(.5)},
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
	o, _ := options("")
	o.SegmentBytes = ld.segment
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
	// The first segment is the dearest: its file grows.
	if _, err := b.untilRotation(ctx, dir, s, p, ld.producers, b.form.steady/2, 1); err != nil {
		return err
	}
	b.disk.settle()
	device, commits, rotations := b.disk.counts(), l.Stats().Commits, newestSegment(dir)
	records, err := b.untilRotation(ctx, dir, s, p, ld.producers, b.form.steady, 2)
	if err != nil {
		return err
	}
	b.disk.settle() // what the journal still holds is ours too
	device, rotations = b.disk.counts().minus(device), newestSegment(dir)-rotations
	commits = l.Stats().Commits - commits - uint64(rotations) // the log counts the making of a segment as one
	b.reportSteady(ld, records, int64(commits), rotations, device)
	return nil
}

// untilRotation appends for d, and goes on for up to three times as long until there were that many rotations.
func (b *bench) untilRotation(
	ctx context.Context, dir string, s subject, p *payloads, producers int, d time.Duration, rotations int,
) (records int64, err error) {
	first, began := newestSegment(dir), time.Now()
	slice := min(d, 500*time.Millisecond)
	for {
		t, err := run1(s, p, producers, slice)
		records += t
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

// run1 has producers append for d.
func run1(s subject, p *payloads, producers int, d time.Duration) (int64, error) {
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
	b.note("%d records in %d commits, %d rotations, %d flushes, %s MB", records, commits, rotations, device.flushes,
		short(float64(device.bytes)/1e6))
	name := fmt.Sprintf("%d-%s", ld.producers, ld.kind)
	b.report(figure{
		name: "written-" + name, ours: float64(device.bytes) / 1e6, reference: payload / 1e6, unit: "MB", goal: ld.wear,
	})
	b.report(figure{
		name: "flushes-per-commit-" + name, ours: float64(device.flushes), reference: float64(commits), unit: "times", goal: atMost(2.3),
	})
}
