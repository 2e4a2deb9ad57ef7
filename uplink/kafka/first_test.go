package kafka_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"edgegateway/test/rig"
	"edgegateway/uplink"
)

// TestTheFirstTransactionOfEachSessionIsThere opens session after session and wants what each has confirmed to be there.
// KAFKA_SESSIONS says how many.
func TestTheFirstTransactionOfEachSessionIsThere(t *testing.T) {
	sessions := 40
	if n, err := strconv.Atoi(os.Getenv("KAFKA_SESSIONS")); err == nil {
		sessions = n
	}
	server := rig.Kafka(t, strings.Fields(os.Getenv("KAFKA_SETTINGS"))...)
	for _, mode := range []string{"clean", "torn", "fresh", "outside"} {
		t.Run(mode, func(t *testing.T) {
			lost := 0
			place := "first-" + mode
			if mode != "fresh" {
				prepare(t, server.Addr, place)
			}
			seq := uint64(0)
			for i := range sessions {
				if mode == "fresh" {
					place = fmt.Sprintf("fresh-%d", i)
					prepare(t, server.Addr, place)
					seq = 0
				}
				var kept kept
				at := endOf(t, server.Addr, place+"-gw1")
				driver := exactly(server.Addr, place+"-gw1")
				driver.Outside = mode == "outside"
				driver.CursorTopic = "first-cursors"
				driver.Logger = kgo.BasicLogger(&kept, kgo.LogLevelDebug, func() string { return time.Now().Format("15:04:05.000000 ") })
				env := exactEnv()
				if mode == "fresh" {
					env.Stream = place
				}
				env.Log = slog.New(slog.NewTextHandler(&kept, nil))
				ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
				s, err := driver.Open(ctx, env)
				cancel()
				if err != nil {
					t.Logf("session %d: Open: %v", i, err)
					continue
				}
				far := s.(uplink.Resumer).Far()
				if mode != "outside" && far.Seq != seq {
					t.Errorf("session %d: far %v, want %d", i, far, seq)
				}
				n := uint64(36)
				out := send(t, s, records(seq+1, seq+n))
				acked := true
				for _, o := range out {
					acked = acked && o.Verdict == uplink.Ack
				}
				if !acked {
					t.Logf("session %d: %v", i, out[0].Err)
				}
				if acked {
					seq += n
				}
				if mode == "torn" { // leaves a transaction open
					ctx, cancel := context.WithCancel(t.Context())
					if err := s.Send(ctx, records(seq+1, seq+20), func(uint64, uplink.Outcome) {}); err != nil {
						t.Logf("session %d: %v", i, err)
					}
					time.Sleep(time.Duration(i%25) * time.Millisecond)
					cancel()
				}
				s.Close()
				if mode == "torn" {
					s, err = driver.Open(t.Context(), env)
					if err != nil {
						t.Fatal(err)
					}
					if far := s.(uplink.Resumer).Far(); far.Seq != seq && far.Seq != seq+20 {
						t.Errorf("session %d: far %v, want %d or 20 more", i, far, seq)
					} else {
						seq = far.Seq
					}
					s.Close()
				}
				if acked {
					if seen, dump := seenFrom(t, server.Addr, place+"-gw1", at); seen < int(n) {
						lost++
						t.Errorf("session %d: %d of %d records are there, from offset %d:\n%s\n%s", i, seen, n, at, dump, kept.String())
					}
				}
			}
			fmt.Printf("first %s: sessions %d lost %d\n", mode, sessions, lost)
		})
	}
}

// kept is what a client has said. It may be written to from anywhere.
type kept struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (k *kept) Write(p []byte) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.text.Write(p)
}

func (k *kept) String() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.text.String()
}

func endOf(t *testing.T, addr, topic string) int64 {
	t.Helper()
	ends, err := kadm.NewClient(connect(t, addr)).ListEndOffsets(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	end, _ := ends.Lookup(topic, 0)
	return end.Offset
}

// seenFrom returns how many records a read-committed reader sees from an offset, and what stands there.
func seenFrom(t *testing.T, addr, topic string, from int64) (int, string) {
	t.Helper()
	end := endOf(t, addr, topic)
	seen, dump := 0, ""
	for _, level := range []kgo.IsolationLevel{kgo.ReadCommitted(), kgo.ReadUncommitted()} {
		c, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.DisableClientMetrics(), kgo.FetchIsolationLevel(level), kgo.KeepControlRecords(),
			kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().At(from)}}))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		for at := from; at < end && ctx.Err() == nil; {
			c.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
				at = r.Offset + 1
				if level == kgo.ReadCommitted() && !r.Attrs.IsControl() {
					seen++
				}
				if level == kgo.ReadUncommitted() && (r.Attrs.IsControl() || seen < 36) {
					dump += fmt.Sprintf("%d pid %d/%d control %v key %x seq %s\n", r.Offset, r.ProducerID, r.ProducerEpoch, r.Attrs.IsControl(), r.Key, header(r, "gw-seq"))
				}
			})
		}
		if ctx.Err() != nil {
			dump += "the end was not reached\n"
		}
		cancel()
		c.Close()
	}
	return seen, dump
}
