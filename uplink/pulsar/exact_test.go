package pulsar_test

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"edgegateway/pipeline"
	"edgegateway/uplink"
	"edgegateway/uplink/pulsar"
	"edgegateway/uplink/uplinktest"
)

// gateway is a log and a runner.
type gateway struct {
	*uplink.Runner
	t    *testing.T
	log  *uplinktest.Log
	stop func()
}

func run(t *testing.T, driver uplink.Driver, log *uplinktest.Log, choice uplink.Choice) *gateway {
	t.Helper()
	return runOver(t, driver, log, log, choice)
}

// runOver is run with a cursor that may be another one than the log's own.
func runOver(t *testing.T, driver uplink.Driver, cursor uplink.Cursor, log *uplinktest.Log, choice uplink.Choice) *gateway {
	t.Helper()
	r := uplink.New(uplink.RunnerConfig{
		Driver: driver, Cursor: cursor, Env: uplink.Env{Gateway: "gw1", Stream: "line", Epoch: 7, Uplink: "far"},
		Choice: func() (c uplink.Choice) { c, choice = choice, ""; return c },
		Timing: uplink.Timing{
			RetryMin: 10 * time.Millisecond, RetryMax: 50 * time.Millisecond, ConfigMin: 10 * time.Millisecond, ConfigMax: 50 * time.Millisecond,
			Drain: time.Second, Stall: time.Hour, // a session says itself that it has ended
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	stopped := false
	g := &gateway{Runner: r, t: t, log: log, stop: func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v, want nil", err)
		}
		for _, m := range log.Mistakes() {
			t.Error(m)
		}
	}}
	t.Cleanup(g.stop)
	return g
}

func (g *gateway) append(n int) {
	for range n {
		g.log.Append(pipeline.Message{Topic: fmt.Sprintf("t%d", (g.log.Len()+1)%3), Value: pipeline.Int(int64(g.log.Len() + 1))})
	}
}

// filled returns a log of n messages whose cursor stands at the beginning: what a crash leaves.
func filled(n int) *uplinktest.Log {
	g := gateway{log: uplinktest.NewLog()}
	g.append(n)
	return g.log
}

// send appends n messages and waits until all have an outcome.
func (g *gateway) send(n int) {
	g.t.Helper()
	g.append(n)
	g.settle()
}

func (g *gateway) settle() {
	g.t.Helper()
	if !g.log.Wait(g.log.Len(), patient) {
		g.t.Fatalf("%d of %d records have an outcome; %+v", g.log.Settled(), g.log.Len(), g.Status())
	}
}

// says waits until the status says the text, and returns the status.
func (g *gateway) says(text string) uplink.Status {
	g.t.Helper()
	for deadline := time.Now().Add(patient); ; time.Sleep(time.Millisecond) {
		s := g.Status()
		if strings.Contains(s.Error, text) {
			g.t.Logf("in plain words: %s", s.Error)
			return s
		}
		if time.Now().After(deadline) {
			g.t.Fatalf("Status = %+v, want an error with %q", s, text)
		}
	}
}

// holds wants these sequences in a topic, in this order.
func holds(t *testing.T, topic string, want ...int) {
	t.Helper()
	stored := read(t, broker().Addr, topic)
	for i, s := range stored {
		if i < len(want) && s.ID != fmt.Sprintf("gw1/line/7/%d", want[i]) {
			t.Fatalf("%s: record %s stands where %d should", topic, s.ID, want[i])
		}
	}
	if len(stored) != len(want) {
		t.Errorf("%s holds %d records, want %d", topic, len(stored), len(want))
	}
}

func upTo(n int) (all []int) {
	for i := range n {
		all = append(all, i+1)
	}
	return all
}

func exactly(topic string) (*pulsar.Config, uplink.Driver) {
	c := at(broker().Addr, topic)
	return c, promised{c, uplink.ExactlyOnce}
}

func TestTheOlderOfTwoGatewaysGivesWay(t *testing.T) {
	_, driver := exactly("two")
	older := run(t, driver, uplinktest.NewLog(), "")
	older.send(50)
	_, driver = exactly("two")
	newer := run(t, driver, filled(100), "") // over a copy of the older one's disk
	newer.settle()
	older.append(1)
	if s := older.says("another gateway with the id gw1 writes this stream"); !s.Config {
		t.Errorf("Status = %+v, want an error that a person must mend", s)
	}
	newer.send(50)
	newer.stop()
	holds(t, "two", upTo(150)...)
	must(t, broker().Admin(http.MethodDelete, "persistent/public/default/two-cursor?force=true", nil)) // as a lack of retention does
	for range 3 {
		time.Sleep(time.Until(older.Status().NextTry) + 10*time.Millisecond)
		older.says("another gateway with the id gw1 writes this stream")
	}
	older.stop()
}

func TestAnIdleSessionHearsOfTheNewerOne(t *testing.T) {
	env := uplink.Env{Gateway: "gw1", Stream: "line", Epoch: 7, Uplink: "far"}
	_, driver := exactly("idle")
	older, err := driver.Open(t.Context(), env)
	must(t, err)
	defer older.Close()
	must(t, older.(uplink.Watcher).Alive(t.Context()))
	_, driver = exactly("idle")
	begun := time.Now()
	type opened struct {
		uplink.Session
		error
	}
	second := make(chan opened, 1)
	go func() {
		s, err := driver.Open(t.Context(), env)
		second <- opened{s, err}
	}()
	for err == nil {
		if time.Since(begun) > 10*time.Second {
			t.Fatal("the older session does not notice within 10 s")
		}
		time.Sleep(10 * time.Millisecond)
		err = older.(uplink.Watcher).Alive(t.Context())
	}
	if !uplink.IsConfig(err) || !strings.Contains(err.Error(), "another gateway with the id gw1") {
		t.Errorf("Alive = %v, want what a person must mend", err)
	}
	older.Close() // as the Runner does
	newer := <-second
	must(t, newer.error)
	newer.Close()
}

func TestConfirmedRecordsTheLogDoesNotKnowOfAreNotSentAgain(t *testing.T) {
	_, driver := exactly("lag")
	g := run(t, driver, uplinktest.NewLog(), "")
	g.send(100)
	g.stop()
	_, driver = exactly("lag")
	g = run(t, driver, filled(120), "") // the same log, whose cursor has not moved
	g.settle()
	g.stop()
	holds(t, "lag", upTo(120)...)
}

func TestAnOldCopyOfTheDiskIsNoticedAndTheOperatorRestarts(t *testing.T) {
	_, driver := exactly("old")
	g := run(t, driver, uplinktest.NewLog(), "")
	g.send(100)
	g.stop()
	_, driver = exactly("old")
	g = run(t, driver, uplinktest.NewLog(), "")
	g.append(40)
	if s := g.says("an old copy of the gateway's disk was put back"); !s.Config {
		t.Errorf("Status = %+v, want an error that a person must mend", s)
	}
	g.stop()
	holds(t, "old", upTo(100)...)
	log := g.log
	_, driver = exactly("old")
	g = run(t, driver, log, uplink.Restart)
	g.settle()
	g.send(20)
	g.stop()
	want := append(upTo(100), upTo(60)...)
	holds(t, "old", want...)
	// What was set back stays so, also for the next session, and nothing is taken for a repeat.
	_, driver = exactly("old")
	g = run(t, driver, log, "")
	g.send(60)
	g.stop()
	holds(t, "old", append(upTo(100), upTo(120)...)...)
}

func TestTheCursorStaysWhereResetPutsIt(t *testing.T) {
	_, driver := exactly("reset")
	env := uplink.Env{Gateway: "gw1", Stream: "line", Epoch: 7, Uplink: "far"}
	open := func() (uplink.Session, uplink.Resumer) {
		s, err := driver.Open(t.Context(), env)
		if err != nil {
			t.Fatalf("Open = %v", err)
		}
		return s, s.(uplink.Resumer)
	}
	record := func(seq uint64) uplink.Record {
		m := pipeline.Message{Topic: "t", Value: pipeline.Int(int64(seq))}
		id := pipeline.RecordID{Gateway: "gw1", Stream: "line", Epoch: 7, Seq: seq}
		return uplink.Record{ID: id, Message: m, JSON: pipeline.AppendJSON(nil, id, &m)}
	}
	send := func(s uplink.Session, seqs ...uint64) {
		t.Helper()
		acks := make(chan uplink.Outcome, len(seqs))
		for _, seq := range seqs {
			if err := s.Send(t.Context(), []uplink.Record{record(seq)}, func(_ uint64, o uplink.Outcome) { acks <- o }); err != nil {
				t.Fatalf("Send(%d) = %v", seq, err)
			}
		}
		for range seqs {
			select {
			case o := <-acks:
				if o.Verdict != uplink.Ack {
					t.Fatalf("outcome %+v, want ack", o)
				}
			case <-time.After(patient):
				t.Fatal("no outcome")
			}
		}
	}
	want := func(r uplink.Resumer, seq uint64) {
		t.Helper()
		if far := r.Far(); far != (uplink.FarCursor{Epoch: 7, Seq: seq}) {
			t.Errorf("Far = %v, want 7/%d", far, seq)
		}
	}
	reset := func(r uplink.Resumer, seq uint64) {
		t.Helper()
		if err := r.Reset(t.Context(), uplink.FarCursor{Epoch: 7, Seq: seq}); err != nil {
			t.Fatalf("Reset(%d) = %v", seq, err)
		}
	}
	s, r := open()
	send(s, 1, 2, 3)
	reset(r, 4) // a dead letter
	s.Close()
	s, r = open()
	want(r, 4)
	send(s, 5, 6)
	reset(r, 7)
	send(s, 8)
	s.Close()
	s, r = open()
	want(r, 8)
	reset(r, 6) // an operator
	send(s, 7, 8)
	s.Close()
	s, r = open()
	want(r, 8)
	reset(r, 2)
	s.Close()
	s, r = open()
	want(r, 2)
	send(s, 3, 4)
	s.Close()
	_, r = open()
	want(r, 4)
	holds(t, "reset", 1, 2, 3, 5, 6, 8, 7, 8, 3, 4)
}

// inEachMode runs a test in all that keep the order and store a record once; topic is one that is not used yet.
func inEachMode(t *testing.T, name string, do func(t *testing.T, topic string, driver uplink.Driver)) {
	for _, of := range []struct {
		delivery uplink.Delivery
		pack     int
	}{{uplink.EffectivelyOnce, 1}, {uplink.EffectivelyOnce, 100}, {uplink.ExactlyOnce, 1}, {uplink.ExactlyOnce, 100}} {
		topic := fmt.Sprintf("%s-%s-%d", name, strings.ReplaceAll(string(of.delivery), "_", ""), of.pack)
		c := at(broker().Addr, topic)
		c.Pack = of.pack
		t.Run(fmt.Sprintf("%s in packs of %d", of.delivery, of.pack), func(t *testing.T) { do(t, topic, promised{c, of.delivery}) })
	}
}

func TestATopicOfSeveralPartitionsTakesAStreamIntoOne(t *testing.T) {
	b := broker()
	inEachMode(t, "parts", func(t *testing.T, topic string, driver uplink.Driver) {
		must(t, b.Admin(http.MethodPut, "persistent/public/default/"+topic+"/partitions", 3))
		for _, n := range []int{60, 100} {
			g := run(t, driver, filled(n), "") // a cursor that did not reach the disk
			g.settle()
			g.stop()
		}
		used := 0
		for i := range 3 {
			if part := fmt.Sprintf("%s-partition-%d", topic, i); len(read(t, b.Addr, part)) > 0 {
				holds(t, part, upTo(100)...)
				used++
			}
		}
		if used != 1 {
			t.Errorf("%d partitions hold records, want 1", used)
		}
	})
}

func TestABundleThatMovesInMidFlow(t *testing.T) {
	b := broker()
	inEachMode(t, "moving", func(t *testing.T, topic string, driver uplink.Driver) {
		g := run(t, driver, uplinktest.NewLog(), "")
		for range 4 {
			g.append(2000)
			must(t, b.Admin(http.MethodPut, "namespaces/public/default/unload", nil))
		}
		g.settle()
		g.stop()
		holds(t, topic, upTo(8000)...)
	})
}

func TestTheLastMessageOutlivesANamespaceThatRetainsNothing(t *testing.T) {
	b := broker()
	if err := b.Admin(http.MethodPut, "namespaces/public/bare", map[string]any{
		"retention_policies": map[string]int{"retentionTimeInMinutes": 0, "retentionSizeInMB": 0},
	}); err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{50, 80} {
		_, driver := exactly("public/bare/kept")
		g := run(t, driver, filled(n), "") // a cursor that did not reach the disk
		g.settle()
		g.stop()
		if err := b.Admin(http.MethodPut, "persistent/public/bare/kept/unload", nil); err != nil { // closes the ledger
			t.Fatal(err)
		}
	}
	holds(t, "public/bare/kept", upTo(80)...)
}

func TestCloseLeavesNoGoroutines(t *testing.T) {
	_, driver := exactly("tidy")
	run(t, driver, uplinktest.NewLog(), "").send(1) // what the library keeps for the process
	c, driver := exactly("tidy2")
	before := runtime.NumGoroutine()
	for i := range 5 {
		g := run(t, driver, filled(20+20*i), "")
		g.settle()
		g.stop()
	}
	c.WaitClosed()
	var after int
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if after = runtime.NumGoroutine(); after <= before || time.Now().After(deadline) {
			break
		}
	}
	if after > before {
		buf := make([]byte, 1<<16)
		t.Errorf("%d goroutines after Close, %d before:\n%s", after, before, buf[:runtime.Stack(buf, true)])
	}
}
