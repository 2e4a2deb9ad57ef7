package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"edgegateway/test/e2e"
	"edgegateway/test/rig"
)

const (
	memoryGoal = 60 // MB
	sizeGoal   = 25 // MB
)

// memory measures the resident memory of the gateway while it carries 1,000 messages a second to a NATS server.
func (b *bench) memory(ctx context.Context) error {
	const clients, each, during = 10, 100, 20 * time.Second
	progress("rss-1000msgs: resident memory at %d messages/s", clients*each)
	far := rig.NATS(b.tb, rig.NATSOptions{SyncAlways: true})
	g, err := b.start("", "", far.Addr)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, during)
	defer cancel()
	var acked atomic.Int64
	errs := make([]error, clients)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() { errs[i] = g.pace(ctx, i, time.Second/each, &acked) })
	}
	highest := 0.0
	for ctx.Err() == nil {
		rss, err := resident(g.PID())
		if err != nil {
			return err
		}
		highest = max(highest, rss)
		time.Sleep(100 * time.Millisecond)
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	g.Stop()
	far.Stop()
	if rate := float64(acked.Load()) / during.Seconds(); rate < 0.95*clients*each {
		return fmt.Errorf("only %.0f messages/s were acknowledged, which says nothing about the memory at %d", rate, clients*each)
	}
	figure("rss-1000msgs", highest, memoryGoal, "MB")
	return nil
}

// pace publishes one message in each interval until ctx ends.
func (g *gateway) pace(ctx context.Context, i int, interval time.Duration, acked *atomic.Int64) error {
	c, err := e2e.Connect(g.mqtt, "pace"+strconv.Itoa(i), user, password)
	if err != nil {
		return err
	}
	var reader sync.WaitGroup
	defer reader.Wait()
	defer c.Close()
	reader.Go(func() {
		for {
			if a, err := c.ReadAck(); err != nil {
				return // the connection is closed when the time is over
			} else if a.Stored() {
				acked.Add(1)
			}
		}
	})
	payload := []byte(strings.Repeat("x", payloadBytes))
	tick := time.NewTicker(interval)
	defer tick.Stop()
	began, sent := time.Now(), 0
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		for ; time.Duration(sent)*interval < time.Since(began); sent++ { // a busy machine misses ticks
			if _, err := c.Conn.Write(e2e.PublishPacket("bench/pace", payload, 1, uint16(sent%60000+1))); err != nil {
				return err
			}
		}
	}
}

// resident returns the resident memory of a process in MB, with the pages of files that it has mapped.
func resident(pid int) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.ParseFloat(strings.Fields(value)[0], 64)
			return kib * 1024 / 1e6, err
		}
	}
	return 0, errors.New("/proc tells no VmRSS")
}
