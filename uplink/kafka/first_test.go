package kafka_test

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"edgegateway/test/rig"
	"edgegateway/uplink"
)

// TestOldRecordsOutliveTheirArrival sends records that are older than what a topic keeps, as a gateway does after a long outage, to
// a broker that looks for what to delete all the time (as a rule it does so every five minutes). It deletes a whole segment when the
// newest time in it is too old: with transactions, what arrived before the first marker, so a first transaction. That was taken
// for a commit that did not happen before it was understood. KAFKA_SESSIONS in the environment is the number of sessions.
func TestOldRecordsOutliveTheirArrival(t *testing.T) {
	sessions := 10
	if n, err := strconv.Atoi(os.Getenv("KAFKA_SESSIONS")); err == nil {
		sessions = n
	}
	server := rig.Kafka(t, "log.initial.task.delay.ms=50", "log.retention.check.interval.ms=10")
	t.Run("control", func(t *testing.T) { // what a bare client says was stored is gone
		prepare(t, server.Addr, "bare")
		c := connect(t, server.Addr)
		old := &kgo.Record{Topic: "bare-gw1", Value: []byte("x"), Timestamp: time.Unix(1_700_000_000, 0)}
		if err := c.ProduceSync(t.Context(), old).FirstErr(); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			begins, err := kadm.NewClient(c).ListStartOffsets(t.Context(), "bare-gw1")
			if begin, ok := begins.Lookup("bare-gw1", 0); err == nil && ok && begin.Offset == 1 {
				return
			}
			if time.Now().After(deadline) {
				t.Fatal("the broker deletes nothing: this run sees nothing")
			}
		}
	})
	for _, mode := range []string{"at_least_once", "exactly_once", "torn"} {
		t.Run(mode, func(t *testing.T) {
			const each = 36
			lost := 0
			for i := range sessions {
				place := fmt.Sprintf("old-%s-%d", mode, i)
				prepare(t, server.Addr, place)
				driver := exactly(server.Addr, place+"-gw1").Config
				driver.CursorTopic = "old-cursors"
				env := exactEnv()
				env.Uplink = place
				if mode == "at_least_once" {
					env.Promise = uplink.Promise{}
				}
				if mode == "torn" {
					tear(t, driver, env, time.Duration(i%25)*time.Millisecond)
				}
				s := openWith(t, driver, env)
				from := uint64(0)
				if r, ok := s.(uplink.Resumer); ok {
					from = r.Far().Seq
				}
				wantAcks(t, send(t, s, records(from+1, from+each)))
				s.Close()
				time.Sleep(20 * time.Millisecond) // the broker looks
				if seen := len(readCommitted(t, server.Addr, place)); seen != int(from)+each {
					lost++
					t.Errorf("session %d: %d of %d records are there", i, seen, int(from)+each)
				}
			}
			t.Logf("old %s: sessions %d lost %d", mode, sessions, lost)
		})
	}
}

// tear leaves a transaction open, or ends one nobody knows how.
func tear(t *testing.T, driver uplink.Driver, env uplink.Env, after time.Duration) {
	t.Helper()
	s := openWith(t, driver, env)
	ctx, cancel := context.WithCancel(t.Context())
	var sending sync.WaitGroup
	sending.Go(func() {
		_ = s.Send(ctx, records(1, 20), func(uint64, uplink.Outcome) {}) // it may have been too late
	})
	time.Sleep(after)
	cancel()
	s.Close()
	sending.Wait()
}

func openWith(t *testing.T, driver uplink.Driver, env uplink.Env) uplink.Session {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for {
		s, err := driver.Open(ctx, env)
		if err == nil {
			t.Cleanup(s.Close)
			return s
		}
		if uplink.IsConfig(err) || ctx.Err() != nil {
			t.Fatalf("Open: %v", err)
		}
		time.Sleep(50 * time.Millisecond) // a broker that has just started knows of no coordinator yet
	}
}
