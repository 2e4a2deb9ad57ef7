package nats_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	client "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"edgegateway/pipeline"
	"edgegateway/test/rig"
	"edgegateway/uplink"
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

// TestThreeNodesLoseTheirLeaderAndAreRestartedInTurn has the leader of the stream step down, kills it, and restarts all nodes one
// after the other, while records flow.
func TestThreeNodesLoseTheirLeaderAndAreRestartedInTurn(t *testing.T) {
	t.Parallel() // it waits more than it works
	c := startCluster(t)
	for _, mode := range []uplink.Delivery{uplink.ExactlyOnce, uplink.EffectivelyOnce} {
		t.Run(string(mode), func(t *testing.T) {
			c.t = t
			place := strings.ReplaceAll(string(mode), "_", "-")
			c.make(streamFor(mode, place))
			driver := at("", place)
			driver.Servers = c.addrs
			log := uplinktest.NewLog()
			r := uplink.New(uplink.RunnerConfig{
				Driver: driver, Cursor: log, Timing: uplink.Timing{RetryMin: 50 * time.Millisecond, RetryMax: time.Second},
				Env: uplink.Env{Gateway: "gw1", Stream: "line", Epoch: epoch, Uplink: "far", Promise: uplink.Promise{Delivery: mode, Order: uplink.OrderStrict}},
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
					log.Append(pipeline.Message{Time: time.Now(), Topic: "boiler/1", Value: pipeline.Int(int64(n))})
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
			stored := read(t, c.all(), place)
			there, disorder := map[string]bool{}, 0
			for _, s := range stored {
				id := pipeline.RecordID{Gateway: "gw1", Stream: "line", Epoch: epoch, Seq: uint64(len(there) + 1)}
				if s.ID != id.String() {
					disorder++
				}
				there[s.ID] = true
			}
			t.Logf("cluster nats %s: step-downs %d kills %d restarts %d sent %d lost %d doubled %d out of order %d",
				mode, stepDowns, kills, restarts, log.Len(), log.Len()-len(there), len(stored)-len(there), disorder)
			if len(there) != log.Len() || len(stored) != log.Len() {
				t.Errorf("%d records are there, %d of them once, want %d", len(stored), len(there), log.Len())
			}
			if mode == uplink.ExactlyOnce && disorder > 0 {
				t.Errorf("%d records are out of order", disorder)
			}
			for _, m := range log.Mistakes() {
				t.Errorf("the runner's use of the log: %s", m)
			}
		})
	}
}
