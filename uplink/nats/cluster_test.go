package nats_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	client "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"edgegateway/pipeline"
	"edgegateway/test/rig"
	"edgegateway/uplink"
	"edgegateway/uplink/nats"
	"edgegateway/uplink/uplinktest"
)

// cluster is three nodes that hold each stream three times.
type cluster struct {
	t     *testing.T
	nodes map[string]*rig.Server
	addrs []string
	nc    *client.Conn
	js    jetstream.JetStream
}

func startCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{t: t, nodes: map[string]*rig.Server{}}
	for i, s := range rig.NATSCluster(t, 3, rig.NATSOptions{}) {
		c.nodes[fmt.Sprintf("n%d", i+1)] = s
		c.addrs = append(c.addrs, s.Addr)
	}
	var err error
	c.nc, err = client.Connect(c.all(), client.MaxReconnects(-1), client.ReconnectWait(50*time.Millisecond))
	if err == nil {
		t.Cleanup(c.nc.Close)
		c.js, err = jetstream.New(c.nc, jetstream.WithDefaultTimeout(2*time.Second))
	}
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	return c
}

func (c *cluster) all() string { return strings.Join(c.addrs, ",") }

// eventually asks again until the cluster gives what is wanted.
func (c *cluster) eventually(what string, try func(ctx context.Context) error) {
	c.t.Helper()
	for deadline := time.Now().Add(60 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(c.t.Context(), 2*time.Second)
		err := try(ctx)
		cancel()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("%s: %v", what, err)
		}
	}
}

func (c *cluster) make(cfg jetstream.StreamConfig) {
	c.t.Helper()
	cfg.Replicas = 3
	c.eventually("make the stream", func(ctx context.Context) error {
		_, err := c.js.CreateStream(ctx, cfg)
		return err
	})
}

// leader returns the node that leads a stream, once all of its copies are in step.
func (c *cluster) leader(place string) (name string) {
	c.t.Helper()
	c.eventually("the copies come into step", func(ctx context.Context) error {
		s, err := c.js.Stream(ctx, place)
		if err != nil {
			return err
		}
		in := s.CachedInfo().Cluster
		if in == nil || in.Leader == "" || len(in.Replicas) != 2 {
			return fmt.Errorf("no leader: %+v", in)
		}
		for _, r := range in.Replicas {
			if r.Offline || !r.Current {
				return fmt.Errorf("%s is not in step", r.Name)
			}
		}
		name = in.Leader
		return nil
	})
	return name
}

func (c *cluster) stepDown(place string) {
	c.t.Helper()
	before := c.leader(place)
	c.eventually("step down", func(ctx context.Context) error {
		_, err := c.nc.RequestWithContext(ctx, "$JS.API.STREAM.LEADER.STEPDOWN."+place, nil)
		return err
	})
	c.eventually("another leader", func(ctx context.Context) error {
		s, err := c.js.Stream(ctx, place)
		if err != nil {
			return err
		}
		if in := s.CachedInfo().Cluster; in.Leader == "" || in.Leader == before {
			return fmt.Errorf("the leader is %q", in.Leader)
		}
		return nil
	})
}

// stored counts the records at the far side, and those that stand behind a later one that they were to come before.
func (c *cluster) stored(t *testing.T, place string, order uplink.Order) (there, doubled, disorder int) {
	t.Helper()
	seen, last := map[uint64]bool{}, map[uint64]uint64{}
	for _, s := range read(t, c.all(), place) {
		_, number, _ := strings.Cut(s.ID, fmt.Sprintf("gw1/line/%d/", epoch))
		seq, err := strconv.ParseUint(number, 10, 64)
		if err != nil {
			t.Fatalf("%s: %v", s.ID, err)
		}
		group := uint64(0)
		if order == uplink.OrderKey {
			group = seq % keys
		}
		switch {
		case seen[seq]:
			doubled++
		case seq < last[group]:
			disorder++
		}
		last[group] = max(seq, last[group])
		seen[seq] = true
	}
	return len(seen), doubled, disorder
}

// keys is how many different ones there are.
const keys = 7

// TestThreeNodesLoseTheirLeaderAndAreRestartedInTurn has the leader of the stream step down, kills it, and restarts all nodes one
// after the other, while records flow.
func TestThreeNodesLoseTheirLeaderAndAreRestartedInTurn(t *testing.T) {
	t.Parallel() // it waits more than it works
	c := startCluster(t)
	for _, promise := range []uplink.Promise{
		{Delivery: uplink.ExactlyOnce, Order: uplink.OrderStrict},
		{Delivery: uplink.EffectivelyOnce, Order: uplink.OrderStrict},
		{Delivery: uplink.EffectivelyOnce, Order: uplink.OrderKey},
		{Delivery: uplink.EffectivelyOnce, Order: uplink.OrderNone},
	} {
		mode, order := promise.Delivery, promise.Order
		t.Run(string(mode)+" "+string(order), func(t *testing.T) {
			c.t = t
			place := strings.ReplaceAll(string(mode), "_", "-") + "-" + string(order)
			c.make(streamFor(mode, place))
			driver := at("", place)
			driver.Servers = c.addrs
			log := uplinktest.NewLog()
			r := uplink.New(uplink.RunnerConfig{
				Driver: driver, Cursor: log, Timing: uplink.Timing{RetryMin: 50 * time.Millisecond, RetryMax: time.Second},
				Env: uplink.Env{Gateway: "gw1", Stream: "line", Epoch: epoch, Uplink: "far", Promise: promise},
			})
			ctx, cancel := context.WithCancel(t.Context())
			var running sync.WaitGroup
			running.Go(func() {
				if err := r.Run(ctx); err != nil {
					t.Errorf("Run = %v", err)
				}
			})
			feeding, stopFeeding := context.WithCancel(ctx)
			running.Go(func() {
				for n := 1; feeding.Err() == nil; n++ {
					log.Append(pipeline.Message{Time: time.Now(), Topic: fmt.Sprintf("boiler/%d", n%keys), Value: pipeline.Int(int64(n))})
					time.Sleep(3 * time.Millisecond)
				}
			})
			defer running.Wait()
			defer cancel()
			more := func() {
				t.Helper()
				if n := log.Settled() + 100; !log.Wait(n, 90*time.Second) {
					t.Fatalf("%d of %d records have an outcome: %+v", log.Settled(), n, r.Status())
				}
			}
			stepDowns, kills, restarts := 2, 1, 3
			for range stepDowns {
				more()
				c.stepDown(place)
			}
			for range kills {
				more()
				leader := c.nodes[c.leader(place)]
				leader.Kill9()
				more()
				leader.Start()
			}
			for _, node := range c.nodes {
				c.leader(place) // all are in step
				node.Stop()
				more()
				node.Start()
			}
			more()
			stopFeeding()
			if !log.Wait(log.Len(), 90*time.Second) {
				t.Fatalf("%d of %d records have an outcome: %+v", log.Settled(), log.Len(), r.Status())
			}
			cancel()
			running.Wait()
			c.leader(place)
			there, doubled, disorder := c.stored(t, place, order)
			t.Logf("cluster nats %s, order: %s: step-downs %d kills %d restarts %d sent %d lost %d doubled %d out of order %d",
				mode, order, stepDowns, kills, restarts, log.Len(), log.Len()-there, doubled, disorder)
			if there != log.Len() || doubled != 0 {
				t.Errorf("%d records are there and %d of them twice, want %d", there, doubled, log.Len())
			}
			if order != uplink.OrderNone && disorder > 0 {
				t.Errorf("%d records are out of order", disorder)
			}
			for _, m := range log.Mistakes() {
				t.Errorf("the runner's use of the log: %s", m)
			}
		})
	}
}

// TestNoRecordOvertakesOneThatALeaderHasDropped has the leader of the stream step down while many records wait. Without waiting for one
// another some come behind later ones.
func TestNoRecordOvertakesOneThatALeaderHasDropped(t *testing.T) {
	t.Parallel() // it waits more than it works
	c := startCluster(t)
	for _, test := range []struct {
		name  string
		order uplink.Order
		wrap  func(*nats.Config) uplink.Driver
	}{
		{"control", uplink.OrderStrict, func(c *nats.Config) uplink.Driver { return nats.Together{Config: c} }},
		{"strict", uplink.OrderStrict, func(c *nats.Config) uplink.Driver { return c }},
		{"key", uplink.OrderKey, func(c *nats.Config) uplink.Driver { return c }},
	} {
		t.Run(test.name, func(t *testing.T) {
			c.t = t
			place := "overtaken-" + test.name
			c.make(streamFor(uplink.EffectivelyOnce, place))
			driver := at("", place)
			driver.Servers = c.addrs
			log := uplinktest.NewLog()
			r := uplink.New(uplink.RunnerConfig{
				Driver: test.wrap(driver), Cursor: log, Timing: uplink.Timing{RetryMin: 50 * time.Millisecond, RetryMax: time.Second},
				Env: uplink.Env{
					Gateway: "gw1", Stream: "line", Epoch: epoch, Uplink: "far",
					Promise: uplink.Promise{Delivery: uplink.EffectivelyOnce, Order: test.order},
				},
			})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var running sync.WaitGroup
			running.Go(func() {
				if err := r.Run(ctx); err != nil {
					t.Errorf("Run = %v", err)
				}
			})
			feeding, stop := context.WithCancel(ctx)
			running.Go(func() {
				for n := 0; feeding.Err() == nil; time.Sleep(5 * time.Millisecond) {
					for ; log.Len()-log.Settled() < 300; n++ {
						log.Append(pipeline.Message{Time: time.Now(), Topic: fmt.Sprintf("boiler/%d", n%keys), Value: pipeline.Int(int64(n))})
					}
				}
			})
			const stepDowns = 6
			for range stepDowns {
				if n := log.Settled() + 200; !log.Wait(n, 90*time.Second) {
					t.Fatalf("%d of %d records have an outcome: %+v", log.Settled(), n, r.Status())
				}
				c.stepDown(place)
			}
			stop()
			if !log.Wait(log.Len(), 90*time.Second) {
				t.Fatalf("%d of %d records have an outcome: %+v", log.Settled(), log.Len(), r.Status())
			}
			cancel()
			running.Wait()
			c.leader(place)
			there, doubled, disorder := c.stored(t, place, test.order)
			t.Logf("nats effectively_once, order: %s, %s: step-downs %d sent %d lost %d doubled %d out of order %d",
				test.order, test.name, stepDowns, log.Len(), log.Len()-there, doubled, disorder)
			if there != log.Len() || doubled != 0 {
				t.Errorf("%d records are there and %d of them twice, want %d", there, doubled, log.Len())
			}
			if (disorder > 0) != (test.name == "control") {
				t.Errorf("%d records are out of order; want none, and some in the control, or it shows nothing", disorder)
			}
		})
	}
	t.Run("behind a refused one", func(t *testing.T) { // for which there is no room, and for the next ones there is
		c.t = t
		cfg := streamFor(uplink.EffectivelyOnce, "refused")
		cfg.Discard, cfg.MaxBytes = jetstream.DiscardNew, 4500
		c.make(cfg)
		driver := at("", "refused")
		driver.Servers = c.addrs
		if text := probed(t, driver, uplink.EffectivelyOnce); !strings.Contains(text, "3 copies, 0 messages, one record at a time to keep the order") {
			t.Errorf("the probe says\n%s", text)
		}
		log := uplinktest.NewLog()
		for n := range 20 {
			m := pipeline.Message{Time: time.Now(), Topic: "boiler/1", Value: pipeline.Int(int64(n))}
			if n == 10 {
				m.Value = pipeline.String(strings.Repeat("x", 2000))
			}
			log.Append(m)
		}
		r := uplink.New(uplink.RunnerConfig{
			Driver: driver, Cursor: log, Timing: uplink.Timing{RetryMin: 50 * time.Millisecond, RetryMax: 100 * time.Millisecond},
			Env: uplink.Env{Gateway: "gw1", Stream: "line", Epoch: epoch, Uplink: "far", Promise: uplink.Promise{Delivery: uplink.EffectivelyOnce}},
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		c.eventually("the record is refused", func(context.Context) error {
			if s := r.Status(); !strings.Contains(s.Error, "is it full?") || s.Attempts < 3 {
				return fmt.Errorf("%+v", s)
			}
			return nil
		})
		if there, _, _ := c.stored(t, "refused", uplink.OrderStrict); there != 10 {
			t.Errorf("%d records are there, want the 10 before the refused one", there)
		}
		cfg.MaxBytes, cfg.Replicas = 1<<20, 3
		c.eventually("make room", func(ctx context.Context) error { _, err := c.js.UpdateStream(ctx, cfg); return err })
		if !log.Wait(20, 30*time.Second) {
			t.Errorf("Status = %+v, want all 20 stored when there is room", r.Status())
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v", err)
		}
		if there, doubled, disorder := c.stored(t, "refused", uplink.OrderStrict); there != 20 || doubled != 0 || disorder != 0 {
			t.Errorf("%d records are there, %d twice and %d out of order, want 20 in order", there, doubled, disorder)
		}
	})
}
