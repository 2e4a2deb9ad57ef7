package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"edgegateway/wal"
)

// measureWear is the default poller profile: 100 readings a second that nobody waits for, taken by an uplink as they
// come. A flash chip writes pages of 16 KiB, and each flush makes it pad the last one.
func (b *bench) measureWear(ctx context.Context) (err error) {
	b.progress("wear: 100 readings/s for %s", b.form.wear)
	if !b.disk.counted() {
		b.note("wear: no device below the directory, so nothing can be counted")
		return nil
	}
	dir, err := b.newDir("wear")
	if err != nil {
		return err
	}
	o := options("")
	l, err := wal.Open(dir, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close(), b.empty()) }()
	if !b.form.fresh {
		if err := prefill(l, 5*segmentBytes(o)/2); err != nil { // the files of a new log grow, which costs a flush more
			return err
		}
	}
	u, err := drain(ctx, l)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, u.stop()) }()
	if _, err := poll(ctx, l, min(3*time.Second, b.form.wear/4)); err != nil {
		return err
	}
	b.disk.settle()
	trace, traceErr := traceDevice(b.disk.device)
	before, commits := b.disk.counts(), l.Stats().Commits
	payload, err := poll(ctx, l, b.form.wear)
	if err != nil {
		return err
	}
	b.disk.settle()
	device := b.disk.counts().minus(before)
	nand, exact, err := b.nand(trace, traceErr, device)
	if err != nil {
		return err
	}
	perDay := 86400 / b.form.wear.Seconds() / 1e9
	b.note("poller: %d commits, %d flushes, %s MB of payload, %s MB on the device", l.Stats().Commits-commits, device.flushes,
		short(float64(payload)/1e6), short(float64(device.bytes)/1e6))
	b.report(figure{
		name: "poller-device", ours: float64(device.bytes) * perDay, reference: float64(payload) * perDay, unit: "GB/day",
	})
	name := "poller-nand"
	if !exact {
		name = "poller-nand-estimate"
	}
	b.report(figure{name: name, ours: float64(nand) * perDay, reference: 3.5, unit: "GB/day", goal: atMost(1)})
	return nil
}

// nand returns what a chip of 16 KiB pages writes. Where the device's writes cannot be followed one by one, it is
// estimated: each flush pads half a page.
func (b *bench) nand(t *deviceTrace, traceErr error, device counts) (bytes int64, exact bool, err error) {
	if traceErr == nil {
		var seen counts
		bytes, seen, err = t.close()
		if err == nil && seen.bytes == device.bytes && seen.flushes == device.flushes {
			return bytes, true, nil
		}
		if err == nil {
			b.note("the trace has %d flushes and %d bytes, the device counts %d and %d", seen.flushes, seen.bytes, device.flushes, device.bytes)
		}
		traceErr = err
	}
	if traceErr != nil {
		b.note("no trace of the device: %v", traceErr)
	}
	low, high := max(device.bytes, device.flushes*nandPage), device.bytes+device.flushes*nandPage
	b.note("NAND bytes are estimated from counts: between %s and %s MB", short(float64(low)/1e6), short(float64(high)/1e6))
	return device.bytes + device.flushes*nandPage/2, false, nil
}

// poll appends 100 readings a second for d, and returns their bytes.
func poll(ctx context.Context, l *wal.Log, d time.Duration) (payload int64, err error) {
	const interval = 10 * time.Millisecond
	rnd := rand.New(rand.NewPCG(1, 2))
	failed := make(chan error, 1)
	done := func(err error) {
		if err != nil {
			select {
			case failed <- err:
			default:
			}
		}
	}
	began := time.Now()
	for i := 0; time.Duration(i)*interval < d; i++ {
		time.Sleep(time.Until(began.Add(time.Duration(i) * interval)))
		data := reading(rnd, i, false)
		b := wal.Batch{Entries: []wal.Entry{{Stream: stream, Time: time.Now(), Data: data}}}
		if err := l.Append(ctx, b, done); err != nil {
			return payload, err
		}
		payload += int64(len(data))
		select {
		case err := <-failed:
			return payload, err
		default:
		}
	}
	return payload, nil
}
