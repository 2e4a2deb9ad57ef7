package kafka_test

import (
	"fmt"
	"strconv"
	"strings"
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

// TestWhatABrokerBounds shares one broker, which looks every moment for transactions that are too old and at its quotas.
func TestWhatABrokerBounds(t *testing.T) {
	server := rig.Kafka(t, "transaction.abort.timed.out.transaction.cleanup.interval.ms=200", "quota.window.num=2", "quota.window.size.seconds=1",
		"broker.session.timeout.ms=10000")
	for _, mode := range []uplink.Delivery{uplink.AtLeastOnce, uplink.ExactlyOnce} {
		t.Run("quota "+string(mode), func(t *testing.T) { quota(t, server.Addr, mode) })
	}
	t.Run("a transaction that takes too long", func(t *testing.T) { tooLong(t, server.Addr) })
	t.Run("nothing overtakes a refused record", func(t *testing.T) { overtaken(t, server.Addr) })
}

// overtaken has sessions of at_least_once send on while the broker refuses a record, and wants nothing behind it stored.
func overtaken(t *testing.T, addr string) {
	const first, last = 51, 5000 // of what is sent while the refusal comes
	passed := func(place string, refused uint64) bool {
		for _, r := range readCommitted(t, addr, place) {
			if seq, err := strconv.ParseUint(r.ID[strings.LastIndex(r.ID, "/")+1:], 10, 64); err != nil || seq > refused {
				return true
			}
		}
		return false
	}
	late := time.Now().AddDate(10, 0, 0)
	t.Run("control", func(t *testing.T) { // a bare client goes on behind it
		prepare(t, addr, "overtaken")
		c := connect(t, addr, kgo.ProducerLinger(time.Millisecond))
		for seq := uint64(1); seq < last; seq++ {
			r := &kgo.Record{Topic: "overtaken-gw1", Value: []byte("x"), Headers: []kgo.RecordHeader{{Key: "record-id", Value: fmt.Append(nil, "a/b/7/", seq)}}}
			if seq == first {
				r.Timestamp = late
			}
			c.Produce(t.Context(), r, nil)
			if seq%5 == 0 {
				time.Sleep(time.Millisecond)
			}
		}
		if err := c.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		if !passed("overtaken", first) {
			t.Error("nothing is stored behind the refused record: this run sees nothing")
		}
	})
	for i := range uint64(20) {
		place := fmt.Sprintf("overtaken-%d", i)
		prepare(t, addr, place)
		driver := exactly(addr, place+"-gw1")
		driver.Plain = true
		env := exactEnv()
		env.Promise = uplink.Promise{}
		s := openWith(t, driver, env)
		wantAcks(t, send(t, s, records(1, first-1)))
		refused := first + i
		ended := false
		for next := uint64(first); next < last && !ended; next += 5 {
			recs := records(next, next+4)
			if refused >= next && refused < next+5 {
				recs[refused-next].Message.Time = late
			}
			ended = s.Send(t.Context(), recs, func(uint64, uplink.Outcome) {}) != nil
		}
		s.Close()
		if passed(place, refused) || !ended {
			t.Errorf("session %d: record %d was refused and one behind it was stored, or nobody noticed", i, refused)
		}
	}
}

// quota has a client slowed to a tenth of what it would do: it says so, takes its time, loses nothing and sends nothing twice.
func quota(t *testing.T, addr string, mode uplink.Delivery) {
	const n = 3000
	place := "quota-" + strings.ReplaceAll(string(mode), "_", "-")
	prepare(t, addr, place)
	admin := kadm.NewClient(connect(t, addr))
	limit := func(op kadm.AlterClientQuotaOp) {
		t.Helper()
		done, err := admin.AlterClientQuotas(t.Context(), []kadm.AlterClientQuotaEntry{{
			Entity: kadm.ClientQuotaEntity{{Type: "client-id", Name: &place}}, Ops: []kadm.AlterClientQuotaOp{op},
		}})
		if err != nil || done[0].Err != nil {
			t.Fatalf("quota: %v %+v", err, done)
		}
	}
	limit(kadm.AlterClientQuotaOp{Key: "producer_byte_rate", Value: 100_000})
	driver := exactly(addr, place+"-gw1").Config
	driver.ClientID = place
	env := exactEnv()
	var figures uplink.Figures
	env.Promise.Delivery, env.Figures = mode, &figures
	log := logOf(n)
	slowed, begun, most := "", time.Now(), 0.0
	run(t, driver, env, log, func(s uplink.Status) bool {
		if s.Error != "" {
			t.Errorf("Status.Error = %q under a quota, want none", s.Error)
		}
		if s.Limit != "" {
			slowed = s.Limit
		}
		now, _ := throttled(&figures)
		most = max(most, now)
		return log.Settled() == n && s.Limit == ""
	})
	t.Logf("%d records in %v; in plain words: it %s", n, time.Since(begun).Round(time.Millisecond), slowed)
	if !strings.Contains(slowed, "is slowed by the broker's quota for this client") {
		t.Errorf("Status.Limit = %q, want it to say what slows the sending", slowed)
	}
	now, seconds := throttled(&figures)
	if most != 1 || now != 0 || seconds < 1 {
		t.Errorf("kafka_throttled = %v at the most and %v in the end, kafka_throttled_seconds_total = %v; want 1, 0 and some seconds", most, now, seconds)
	}
	stored := readCommitted(t, addr, place)
	if len(stored) != n || inOrder(stored) != n+1 {
		t.Errorf("%d records are there, %d of them in order, want %d", len(stored), inOrder(stored)-1, n)
	}
}

// throttled returns what the metrics say of a quota.
func throttled(figures *uplink.Figures) (now, seconds float64) {
	for _, f := range figures.List() {
		switch f.Name {
		case "kafka_throttled":
			now = f.Value
		case "kafka_throttled_seconds_total":
			seconds = f.Value
		}
	}
	return now, seconds
}

// tooLong has the broker abort a transaction in front of its commit.
func tooLong(t *testing.T, addr string) {
	prepare(t, addr, "long")
	driver := exactly(addr, "long-gw1")
	driver.Timeout = 2 * time.Second
	commits := 0
	driver.Committing = func() {
		if commits++; commits == 2 {
			time.Sleep(4 * time.Second)
		}
	}
	log := logOf(10)
	run(t, driver, exactEnv(), log, func(uplink.Status) bool { return log.Settled() == 10 })
	for range 10 {
		log.Append(records(1, 1)[0].Message)
	}
	failed := uplink.Status{}
	s := run(t, driver, exactEnv(), log, func(s uplink.Status) bool {
		if strings.Contains(s.Error, "has aborted a transaction that took longer than 2s") {
			failed = s
		}
		return log.Settled() == 20
	})
	t.Logf("in plain words: %s", failed.Error)
	if failed.Error == "" || failed.Config || s.Dropped > 0 {
		t.Errorf("Status = %+v, want it to say that the transaction took too long, and nobody has to mend that", failed)
	}
	if stored := readCommitted(t, addr, "long"); len(stored) != 20 || inOrder(stored) != 21 {
		t.Errorf("%d records are there, %d of them in order, want 20", len(stored), inOrder(stored)-1)
	}
}

// TestABrokerWithoutTransactions has no place for the log of its transactions, for that wants three brokers.
func TestABrokerWithoutTransactions(t *testing.T) {
	server := rig.Kafka(t, "transaction.state.log.replication.factor=3")
	t.Run("no coordinator", func(t *testing.T) {
		prepare(t, server.Addr, "nowhere")
		log := logOf(3)
		s := run(t, exactly(server.Addr, "nowhere-gw1").Config, exactEnv(), log, func(s uplink.Status) bool { return s.Error != "" })
		t.Logf("in plain words: %s", s.Error)
		if !strings.Contains(s.Error, "has no coordinator for transactions yet") || s.Config {
			t.Errorf("Status = %+v, want the coordinator named as missing", s)
		}
	})
	t.Run("topics by message in the order of keys", func(t *testing.T) { keyed(t, server.Addr) })
}

// keyed has the records of one key go to a topic that is missing at first: those of others go on.
func keyed(t *testing.T, addr string) {
	const n = 600
	prepare(t, addr, "keyed.there")
	driver := &kafka.Config{Brokers: []string{addr}, Topic: "keyed.{topic}-{gateway}", ClientID: "edge"}
	env := uplink.Env{Gateway: "gw1", Stream: "line", Epoch: 7, Uplink: "far", Promise: uplink.Promise{Order: uplink.OrderKey}}
	if err := uplink.CheckPromise(driver, env.Promise); err != nil {
		t.Fatalf("CheckPromise = %v, want nil", err)
	}
	log := uplinktest.NewLog()
	for i := range n {
		m := pipeline.Message{Time: time.Now(), Topic: "there", Key: fmt.Sprintf("boiler-%d", i%3), Value: pipeline.Int(int64(i))}
		if i%3 == 2 {
			m.Topic = "missing"
		}
		log.Append(m)
	}
	made, held := false, uplink.Status{}
	run(t, driver, env, log, func(s uplink.Status) bool {
		if !made && s.Held == n/3 && s.Acked == 2*n/3 {
			made, held = true, s
			prepare(t, addr, "keyed.missing")
		}
		return log.Settled() == n
	})
	t.Logf("in plain words: %d held, %s", held.Held, held.HeldFor)
	if !strings.Contains(held.HeldFor, "topic keyed.missing-gw1 does not exist") || held.State != uplink.Sending {
		t.Errorf("Status = %+v, want the records of the missing topic held, and the others sent", held)
	}
	for place, keys := range map[string][]int{"keyed.there": {1, 2}, "keyed.missing": {3}} {
		stored := readCommitted(t, addr, place)
		if len(stored) != n/3*len(keys) {
			t.Errorf("topic %s has %d records, want %d", place, len(stored), n/3*len(keys))
		}
		for _, key := range keys {
			next := key
			for _, s := range stored {
				if s.ID == (pipeline.RecordID{Gateway: "gw1", Stream: "line", Epoch: 7, Seq: uint64(next)}).String() {
					next += 3
				}
			}
			if next != n+key {
				t.Errorf("topic %s: of key boiler-%d, record %d is lost or out of order", place, key-1, next)
			}
		}
	}
}
