package kafka_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"edgegateway/pipeline"
	"edgegateway/test/rig"
	"edgegateway/uplink"
	"edgegateway/uplink/kafka"
	"edgegateway/uplink/uplinktest"
)

// The tests below share one broker, because a broker takes long to start.
func TestExactlyOnce(t *testing.T) {
	server := rig.Kafka(t)
	t.Run("the older of two sessions is fenced", func(t *testing.T) { fenced(t, server.Addr) })
	t.Run("the far cursor is moved and read back", func(t *testing.T) { moved(t, server.Addr) })
	t.Run("a backlog goes in large transactions", func(t *testing.T) { backlog(t, server.Addr) })
	t.Run("a connection breaks behind a commit", func(t *testing.T) { brokenBehindCommit(t, server) })
	t.Run("faults", func(t *testing.T) { exactFaults(t, server.Addr) })
}

// exactly returns a driver with a cursor topic of its own: all tests are the same gateway, stream and uplink.
func exactly(addr, topic string) kafka.Exactly {
	return kafka.Exactly{Config: &kafka.Config{
		Brokers: []string{addr}, Topic: topic, CursorTopic: strings.TrimSuffix(topic, "-{gateway}") + "-cursors", ClientID: "edge", Compression: "none",
	}}
}

// readCommitted returns what a read-committed consumer sees, up to the very end: a transaction that hangs would keep it from there.
func readCommitted(t testing.TB, addr, place string) []uplinktest.Stored {
	t.Helper()
	return storedAt(t, place+"-gw1", nil, addr)
}

// brokersAt has a client ask several brokers first.
func brokersAt(addrs []string) kgo.Opt { return kgo.SeedBrokers(addrs...) }

func storedAt(t testing.TB, topic string, brokers kgo.Opt, addr string) []uplinktest.Stored {
	t.Helper()
	options := []kgo.Opt{
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}),
	}
	if brokers != nil {
		options = append(options, brokers)
	}
	c := connect(t, addr, options...)
	var end kadm.ListedOffset
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		ends, err := kadm.NewClient(c).ListEndOffsets(t.Context(), topic)
		listed, ok := ends.Lookup(topic, 0)
		if end = listed; err == nil && ok && end.Err == nil {
			break
		}
		if time.Now().After(deadline) { // a broker that stood still has no leaders for a moment
			t.Fatalf("read back: end of %s: %v %+v", topic, err, end)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var out []uplinktest.Stored
	for at := int64(0); at < end.Offset; {
		fetches := c.PollFetches(ctx)
		if ctx.Err() != nil {
			t.Fatalf("read back: offset %d of %d", at, end.Offset)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			at = r.Offset + 1
			if !r.Attrs.IsControl() {
				out = append(out, uplinktest.Stored{ID: header(r, "record-id"), Payload: string(r.Value)})
			}
		})
	}
	return out
}

func exactEnv() uplink.Env {
	return uplink.Env{
		Gateway: "gw1", Stream: "line", Epoch: 7, Uplink: "far",
		Promise: uplink.Promise{Delivery: uplink.ExactlyOnce, Order: uplink.OrderStrict},
	}
}

func open(t *testing.T, addr, place string) uplink.Session {
	t.Helper()
	return openWith(t, exactly(addr, place+"-gw1"), exactEnv())
}

func records(from, to uint64) []uplink.Record {
	var out []uplink.Record
	for seq := from; seq <= to; seq++ {
		m := pipeline.Message{Time: time.Unix(1_700_000_000, 0).UTC(), Topic: "boiler/1", Key: "boiler", Value: pipeline.Int(int64(seq))}
		id := pipeline.RecordID{Gateway: "gw1", Stream: "line", Epoch: 7, Seq: seq}
		out = append(out, uplink.Record{ID: id, Message: m, JSON: pipeline.AppendJSON(nil, id, &m)})
	}
	return out
}

// send returns the outcomes of records.
func send(t *testing.T, s uplink.Session, recs []uplink.Record) []uplink.Outcome {
	t.Helper()
	outcomes := make(chan uplink.Outcome, len(recs))
	if err := s.Send(t.Context(), recs, func(_ uint64, o uplink.Outcome) { outcomes <- o }); err != nil {
		return []uplink.Outcome{{Err: err}}
	}
	var out []uplink.Outcome
	for range recs {
		select {
		case o := <-outcomes:
			out = append(out, o)
		case <-time.After(30 * time.Second):
			t.Fatalf("%d of %d records have an outcome", len(out), len(recs))
		}
	}
	return out
}

func wantAcks(t *testing.T, outcomes []uplink.Outcome) {
	t.Helper()
	for _, o := range outcomes {
		if o.Verdict != uplink.Ack {
			t.Fatalf("outcome %+v, want ack", o)
		}
	}
}

func fenced(t *testing.T, addr string) {
	prepare(t, addr, "fenced")
	older := open(t, addr, "fenced")
	wantAcks(t, send(t, older, records(1, 100)))
	newer := open(t, addr, "fenced")
	if far := newer.(uplink.Resumer).Far(); far != (uplink.FarCursor{Epoch: 7, Seq: 100}) {
		t.Errorf("the newer begins at %v, want 7/100", far)
	}
	if err := newer.(uplink.Watcher).Alive(t.Context()); err != nil {
		t.Errorf("Alive of the newer = %v, want nil", err)
	}
	if err := older.(uplink.Watcher).Alive(t.Context()); !uplink.IsFenced(err) {
		t.Errorf("Alive of the older = %v, want it to say that it was fenced", err)
	}
	for _, o := range send(t, older, records(101, 110)) {
		if o.Verdict != uplink.Retry || !uplink.IsFenced(o.Err) || !strings.Contains(o.Err.Error(), "another gateway with the id gw1 writes this stream") {
			t.Errorf("the older has outcome %+v, want it to say that it was fenced", o)
		}
	}
	wantAcks(t, send(t, newer, records(101, 200)))
	if n := len(readCommitted(t, addr, "fenced")); n != 200 {
		t.Errorf("%d records are there, want 200", n)
	}
}

// run runs a runner until check is content with its status.
func run(t *testing.T, driver uplink.Driver, env uplink.Env, log *uplinktest.Log, check func(uplink.Status) bool) uplink.Status {
	t.Helper()
	r := uplink.New(uplink.RunnerConfig{Driver: driver, Env: env, Cursor: log, Timing: uplink.Timing{RetryMin: 50 * time.Millisecond, ConfigMin: 50 * time.Millisecond}})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := r.Run(ctx); err != nil {
			t.Errorf("Run = %v", err)
		}
	})
	defer running.Wait()
	defer cancel()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		if s := r.Status(); check(s) {
			return s
		} else if time.Now().After(deadline) {
			t.Fatalf("Status = %+v", s)
		}
	}
}

func logOf(n uint64) *uplinktest.Log {
	log := uplinktest.NewLog()
	for _, r := range records(1, n) {
		log.Append(r.Message)
	}
	return log
}

func moved(t *testing.T, addr string) {
	prepare(t, addr, "moved")
	for _, to := range []uplink.FarCursor{{Epoch: 7, Seq: 900}, {Epoch: 7, Seq: 20}, {Epoch: 8, Seq: 1}} {
		s := open(t, addr, "moved")
		if err := s.(uplink.Resumer).Reset(t.Context(), to); err != nil {
			t.Fatalf("Reset: %v", err)
		}
		s.Close()
		s = open(t, addr, "moved")
		if far := s.(uplink.Resumer).Far(); far != to {
			t.Errorf("Far = %v, want %v", far, to)
		}
		s.Close()
	}
}

// backlog wants transactions to grow: each has one cursor record.
func backlog(t *testing.T, addr string) {
	const n = 60_000
	prepare(t, addr, "backlog")
	commits := 0
	driver := exactly(addr, "backlog-gw1")
	driver.Committed = func() { commits++ }
	log := logOf(n)
	begun := time.Now()
	run(t, driver, exactEnv(), log, func(uplink.Status) bool { return log.Settled() == n })
	t.Logf("%d records in %d transactions, %v", n, commits, time.Since(begun).Round(time.Millisecond))
	if commits > n/1000 {
		t.Errorf("%d transactions for %d records, want at most %d", commits, n, n/1000)
	}
	if got := len(readCommitted(t, addr, "backlog")); got != n {
		t.Errorf("%d records are there, want %d", got, n)
	}
}

// brokenBehindCommit wants a session to end whose connections break as the broker ends its transaction: the next one looks for what that
// left before anything is written on top of it.
func brokenBehindCommit(t *testing.T, server *rig.Server) {
	prepare(t, server.Addr, "broken")
	p := uplinktest.NewProxy(t, server.ProxyAt, server.ProxyTo)
	driver := exactly(p.Addr, "broken-gw1")
	breaks := false
	driver.Committed = func() {
		if breaks {
			p.Down()
			p.Up()
		}
	}
	s := openWith(t, driver, exactEnv())
	wantAcks(t, send(t, s, records(1, 10)))
	breaks = true
	wantAcks(t, send(t, s, records(11, 20)))
	for _, o := range send(t, s, records(21, 30)) {
		if o.Verdict != uplink.Retry || o.Err == nil || !strings.Contains(o.Err.Error(), "broke as it ended a transaction") {
			t.Errorf("outcome %+v, want it to say that a connection broke", o)
		}
	}
	s.Close()
	breaks = false
	s = openWith(t, driver, exactEnv())
	if far := s.(uplink.Resumer).Far(); far.Seq != 20 {
		t.Errorf("the next session begins at %v, want 20", far)
	}
	wantAcks(t, send(t, s, records(21, 30)))
	if n := len(readCommitted(t, server.Addr, "broken")); n != 30 {
		t.Errorf("%d records are there, want 30", n)
	}
}

func exactFaults(t *testing.T, addr string) {
	admin := kadm.NewClient(connect(t, addr))
	policy := "delete"
	if _, err := admin.CreateTopic(t.Context(), 1, 1, map[string]*string{"cleanup.policy": &policy}, "expires"); err != nil {
		t.Fatal(err)
	}
	prepare(t, addr, "faults")
	expires := exactly(addr, "faults-gw1")
	expires.CursorTopic = "expires"
	uplinktest.RunFaults(t, []uplinktest.Fault{
		{Name: "topic missing", Driver: exactly(addr, "not-there"), Want: "topic not-there does not exist", Config: true, Mend: func() {
			if _, err := admin.CreateTopic(t.Context(), 1, 1, nil, "not-there"); err != nil {
				t.Fatal(err)
			}
		}},
		{Name: "cursors that expire", Driver: expires, Want: "so cursors in it expire (want compact)", Config: true, Mend: func() {
			compact := "compact"
			if _, err := admin.AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "cleanup.policy", Value: &compact}}, "expires"); err != nil {
				t.Fatal(err)
			}
		}},
	})
}
