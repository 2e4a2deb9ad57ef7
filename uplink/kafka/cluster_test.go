package kafka_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"edgegateway/pipeline"
	"edgegateway/test/rig"
	"edgegateway/uplink"
	"edgegateway/uplink/uplinktest"
)

// TestThreeNodesAreRestartedInTurn restarts the nodes of a cluster one after the other, and has the leaders change besides, while
// records flow.
func TestThreeNodesAreRestartedInTurn(t *testing.T) {
	nodes := rig.KafkaCluster(t, 3, rig.KafkaOptions{Settings: []string{"controlled.shutdown.enable=true", "broker.session.timeout.ms=4000"}})
	var addrs []string
	for _, n := range nodes {
		addrs = append(addrs, n.Addr)
	}
	admin := kadm.NewClient(connect(t, addrs[0], brokersAt(addrs)))
	t.Run("a transaction that hangs", func(t *testing.T) { mendOnNodes(t, addrs[0]) })
	coordinator := func() []*rig.Server { // of the transactions of this gateway
		found := admin.FindTxnCoordinators(t.Context(), "gw/gw1/line/far")["gw/gw1/line/far"]
		if found.Err != nil {
			t.Fatalf("coordinator: %v", found.Err)
		}
		return nodes[found.NodeID-1 : found.NodeID]
	}
	for _, test := range []struct {
		name string
		mode uplink.Delivery
		turn func() []*rig.Server // those that end and come back
		end  func(*rig.Server)
	}{
		{"exactly_once", uplink.ExactlyOnce, func() []*rig.Server { return nodes }, (*rig.Server).Stop},
		{"at_least_once", uplink.AtLeastOnce, func() []*rig.Server { return nodes[:1] }, (*rig.Server).Stop},
		{"exactly_once, the coordinator is killed", uplink.ExactlyOnce, coordinator, (*rig.Server).Kill9},
	} {
		mode := test.mode
		t.Run(test.name, func(t *testing.T) {
			topic := strings.NewReplacer("_", "-", ",", "", " ", "-").Replace(test.name) + "-gw1"
			create(t, admin, topic)
			driver := exactly(addrs[0], topic)
			driver.Brokers = addrs
			env := exactEnv()
			env.Promise.Delivery = mode
			log := uplinktest.NewLog()
			timing := uplink.Timing{RetryMin: 50 * time.Millisecond, RetryMax: time.Second}
			r := uplink.New(uplink.RunnerConfig{Driver: driver.Config, Env: env, Cursor: log, Timing: timing})
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
					log.Append(pipeline.Message{Time: time.Now(), Topic: "boiler/1", Key: "boiler", Value: pipeline.Int(int64(n))})
					time.Sleep(time.Millisecond)
				}
			})
			defer running.Wait()
			defer cancel()
			reach(t, r, log, 200)
			turn := test.turn()
			for _, n := range turn {
				test.end(n)
				reach(t, r, log, log.Settled()+200)
				n.Start()
				inStep(t, admin, topic, len(nodes))
				if _, err := admin.ElectLeaders(t.Context(), kadm.ElectPreferredReplica, nil); err != nil {
					t.Errorf("elect: %v", err)
				}
				reach(t, r, log, log.Settled()+200)
			}
			stopFeeding()
			reach(t, r, log, log.Len())
			cancel()
			running.Wait()
			stored := storedAt(t, topic, brokersAt(addrs), addrs[0])
			there := map[string]bool{}
			for _, s := range stored {
				there[s.ID] = true
			}
			t.Logf("cluster kafka %s: restarts %d sent %d lost %d doubled %d", test.name, len(turn), log.Len(), log.Len()-len(there), len(stored)-len(there))
			if len(there) != log.Len() || mode == uplink.ExactlyOnce && len(stored) != log.Len() {
				t.Errorf("%d records are there, %d of them once, want %d", len(stored), len(there), log.Len())
			}
			if next := inOrder(stored); next != log.Len()+1 {
				t.Errorf("the record %d is lost or out of order", next)
			}
		})
	}
}

// create makes a topic on as many nodes as is usual there, as soon as they are up.
func create(t testing.TB, admin *kadm.Client, topic string) {
	t.Helper()
	for deadline := time.Now().Add(60 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		_, err := admin.CreateTopic(t.Context(), 1, -1, nil, topic)
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("make the topic: %v", err)
		}
	}
}

// inStep waits until all replicas are.
func inStep(t *testing.T, admin *kadm.Client, topic string, replicas int) {
	t.Helper()
	for deadline := time.Now().Add(60 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		topics, err := admin.ListTopics(t.Context(), topic)
		if err == nil && len(topics[topic].Partitions) == 1 && len(topics[topic].Partitions[0].ISR) == replicas {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the replicas do not come into step: %v %+v", err, topics)
		}
	}
}

func reach(t *testing.T, r *uplink.Runner, log *uplinktest.Log, n int) {
	t.Helper()
	if !log.Wait(n, 60*time.Second) {
		t.Fatalf("%d of %d records have an outcome: %+v", log.Settled(), n, r.Status())
	}
}

// inOrder returns the number behind the last record that stands, seen for the first time, where it should.
func inOrder(stored []uplinktest.Stored) int {
	seen, next := map[string]bool{}, 1
	for _, s := range stored {
		id := pipeline.RecordID{Gateway: "gw1", Stream: "line", Epoch: 7, Seq: uint64(next)}
		if s.ID == id.String() {
			next++
		} else if !seen[s.ID] {
			return next
		}
		seen[s.ID] = true
	}
	return next
}
