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

// line is a runner, and records that go into its log.
type line struct {
	*uplink.Runner
	t         *testing.T
	log       *uplinktest.Log
	stop      func() // what is in the log stays there
	stopFeed  func()
	feedEnded chan struct{}
}

// begin has records go to a stream. Every three milliseconds feed may add some.
func (c *cluster) begin(t *testing.T, place string, promise uplink.Promise, feed func(l *line)) *line {
	t.Helper()
	c.t = t
	c.make(streamFor(promise.Delivery, place))
	driver := at("", place)
	driver.Servers = c.addrs
	l := &line{t: t, log: uplinktest.NewLog(), feedEnded: make(chan struct{})}
	l.Runner = uplink.New(uplink.RunnerConfig{
		Driver: driver, Cursor: l.log, Timing: uplink.Timing{RetryMin: 50 * time.Millisecond, RetryMax: time.Second},
		Env: uplink.Env{Gateway: "gw1", Stream: "line", Epoch: epoch, Uplink: "far", Promise: promise},
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()
	feeding, stopFeeding := context.WithCancel(ctx)
	l.stopFeed = func() { stopFeeding(); <-l.feedEnded }
	go func() {
		defer close(l.feedEnded)
		for ; feeding.Err() == nil; time.Sleep(3 * time.Millisecond) {
			feed(l)
		}
	}()
	l.stop = sync.OnceFunc(func() {
		cancel()
		l.stopFeed()
		if err := <-ended; err != nil {
			t.Errorf("Run = %v", err)
		}
		for _, m := range l.log.Mistakes() {
			t.Errorf("the runner's use of the log: %s", m)
		}
	})
	t.Cleanup(l.stop)
	return l
}

// add appends a record.
func (l *line) add() {
	n := l.log.Len() + 1
	l.log.Append(pipeline.Message{Time: time.Now(), Topic: fmt.Sprintf("boiler/%d", n%keys), Value: pipeline.Int(int64(n))})
}

// more waits until so many more records have an outcome.
func (l *line) more(n int) { l.t.Helper(); l.reach(l.log.Settled() + n) }

func (l *line) reach(n int) {
	l.t.Helper()
	if !l.log.Wait(n, 90*time.Second) {
		l.t.Fatalf("%d of %d records have an outcome: %+v", l.log.Settled(), n, l.Status())
	}
}

// end waits for all records, stops the runner, and counts what is there.
func (l *line) end(c *cluster, place string, order uplink.Order) (lost, doubled, disorder int) {
	l.t.Helper()
	l.stopFeed()
	l.reach(l.log.Len())
	l.stop()
	c.leader(place)
	there, doubled, disorder := c.stored(l.t, place, order)
	lost = l.log.Len() - there
	if lost != 0 || doubled != 0 {
		l.t.Errorf("%d records are lost and %d are there twice, of %d", lost, doubled, l.log.Len())
	}
	return lost, doubled, disorder
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
			place := strings.ReplaceAll(string(mode), "_", "-") + "-" + string(order)
			l := c.begin(t, place, promise, (*line).add)
			more := func() { t.Helper(); l.more(100) }
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
			lost, doubled, disorder := l.end(c, place, order)
			t.Logf("cluster nats %s, order: %s: step-downs %d kills %d restarts %d sent %d lost %d doubled %d out of order %d",
				mode, order, stepDowns, kills, restarts, l.log.Len(), lost, doubled, disorder)
			if order != uplink.OrderNone && disorder > 0 {
				t.Errorf("%d records are out of order", disorder)
			}
		})
	}
}

// TestNoRecordOvertakesOneInAStreamWithReplicas has the leader of the stream step down while many records wait.
func TestNoRecordOvertakesOneInAStreamWithReplicas(t *testing.T) {
	t.Parallel() // it waits more than it works
	c := startCluster(t)
	for _, order := range []uplink.Order{uplink.OrderStrict, uplink.OrderKey} {
		t.Run(string(order), func(t *testing.T) {
			place := "overtaken-" + string(order)
			l := c.begin(t, place, uplink.Promise{Delivery: uplink.EffectivelyOnce, Order: order}, func(l *line) {
				for l.log.Len()-l.log.Settled() < 300 {
					l.add()
				}
			})
			const stepDowns = 6
			for range stepDowns {
				l.more(200)
				c.stepDown(place)
			}
			lost, doubled, disorder := l.end(c, place, order)
			t.Logf("cluster nats effectively_once, order: %s, under load: step-downs %d sent %d lost %d doubled %d out of order %d",
				order, stepDowns, l.log.Len(), lost, doubled, disorder)
			if disorder > 0 {
				t.Errorf("%d records are out of order", disorder)
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
		if text := uplinktest.Probed(t, driver, uplink.EffectivelyOnce); !strings.Contains(text, "3 copies, 0 messages, one record at a time to keep the order") {
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
