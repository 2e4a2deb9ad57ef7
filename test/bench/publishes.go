package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"edgegateway/test/e2e"
	"edgegateway/test/rig"
)

const payloadBytes = 128

// publishes measures acknowledged QoS 1 publishes a second, against one commit for each message: the same program and the
// same client with one message in flight. The far broker is down, so that it does not take part of the machine.
func (b *bench) publishes(ctx context.Context) error {
	g, err := b.start("", "", "127.0.0.1:"+strconv.Itoa(rig.FreePort(b.tb)))
	if err != nil {
		return err
	}
	defer g.Stop()
	for _, c := range []struct {
		name            string
		clients, window int
	}{{"mqtt-qos1-1x1000", 1, 1000}, {"mqtt-qos1-100x10", 100, 10}} {
		progress("%s: acknowledged publishes a second", c.name)
		// The disk has its moods: the reference is taken before and after.
		before, err := g.reference(ctx)
		if err != nil {
			return err
		}
		ours, err := g.flood(ctx, c.clients, c.window, 8*time.Second)
		if err != nil {
			return err
		}
		after, err := g.reference(ctx)
		if err != nil {
			return err
		}
		figure(c.name, ours, (before+after)/2, "acknowledged/s")
	}
	return nil
}

// reference makes sure that it is what it says: at least one commit for each message.
func (g *gateway) reference(ctx context.Context) (float64, error) {
	const commitsTotal = "edge_gateway_lane_commits_total"
	const settled = 1500 * time.Millisecond // the page's picture is a second old at most
	time.Sleep(settled)
	before, err := g.metric(commitsTotal)
	if err != nil {
		return 0, err
	}
	const during = 4 * time.Second
	rate, err := g.flood(ctx, 1, 1, during)
	if err != nil {
		return 0, err
	}
	time.Sleep(settled)
	after, err := g.metric(commitsTotal)
	if err != nil {
		return 0, err
	}
	if messages := rate * during.Seconds(); after-before < 0.9*messages {
		return 0, fmt.Errorf("the reference made %.0f commits for %.0f messages (want one each)", after-before, messages)
	}
	return rate, nil
}

// flood publishes with so many clients, each with so many messages in flight, and returns how many were acknowledged a second.
func (g *gateway) flood(ctx context.Context, clients, window int, during time.Duration) (float64, error) {
	connected := make([]*e2e.Client, clients)
	for i := range connected {
		c, err := e2e.Connect(g.mqtt, "bench"+strconv.Itoa(i), user, password)
		if err != nil {
			return 0, err
		}
		defer c.Close()
		connected[i] = c
	}
	began := time.Now()
	end := began.Add(during)
	var acked atomic.Int64
	errs := make([]error, clients)
	var wg sync.WaitGroup
	for i, c := range connected {
		wg.Go(func() {
			n, err := publishUntil(ctx, c, "bench/"+strconv.Itoa(i), window, end)
			acked.Add(n)
			errs[i] = err
		})
	}
	wg.Wait()
	return float64(acked.Load()) / during.Seconds(), errors.Join(errs...)
}

// publishUntil keeps window messages in flight until end, and returns how many were acknowledged by then. The rest is
// waited for, so that the next measurement begins with an idle gateway.
func publishUntil(ctx context.Context, c *e2e.Client, topic string, window int, end time.Time) (acked int64, err error) {
	payload := []byte(strings.Repeat("x", payloadBytes))
	var id uint16
	var packets []byte
	flying := 0
	for {
		over := ctx.Err() != nil || !time.Now().Before(end)
		if over && flying == 0 {
			return acked, ctx.Err()
		}
		if !over && flying < window {
			packets = packets[:0]
			for ; flying < window; flying++ {
				if id++; id == 0 {
					id = 1
				}
				packets = append(packets, e2e.PublishPacket(topic, payload, 1, id)...)
			}
			if _, err := c.Conn.Write(packets); err != nil {
				return acked, err
			}
		}
		for first := true; first || c.Waiting(); first = false {
			a, err := c.ReadAck()
			if err != nil {
				return acked, err
			}
			if !a.Stored() {
				return acked, fmt.Errorf("publish %d refused: packet %#x, code %#x", a.ID, a.Kind, a.Code)
			}
			flying--
			if !over {
				acked++
			}
		}
	}
}
