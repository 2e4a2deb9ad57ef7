package nats_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"edgegateway/pipeline"
	"edgegateway/test/rig"
	"edgegateway/uplink"
	"edgegateway/uplink/nats"
	"edgegateway/uplink/uplinktest"
)

// promised is a driver of which a stream asks more than at_least_once.
type promised struct {
	*nats.Config
	delivery uplink.Delivery
}

func (p promised) Open(ctx context.Context, env uplink.Env) (uplink.Session, error) {
	env.Promise.Delivery = p.delivery
	return p.Config.Open(ctx, env)
}

func exactlyOnce(c *nats.Config) uplink.Driver { return promised{c, uplink.ExactlyOnce} }

func at(addr, place string) *nats.Config {
	return &nats.Config{Servers: []string{addr}, Subject: "edge.{gateway}." + place, Stream: place, CursorSubject: "edge.{gateway}." + place + ".{stream}.cursor"}
}

// atomic returns the settings of a stream that can keep the cursor of at.
func atomic(place string) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: place, Subjects: []string{"edge.*." + place, "edge.*." + place + ".*.cursor"}, MaxMsgSize: 4000,
		AllowAtomicPublish: true, AllowRollup: true,
	}
}

func makeStream(t testing.TB, addr string, cfg jetstream.StreamConfig) jetstream.Stream {
	t.Helper()
	s, err := connect(t, addr).CreateStream(t.Context(), cfg)
	if err != nil {
		t.Fatalf("make the stream: %v", err)
	}
	return s
}

const epoch = 7

func open(t *testing.T, d uplink.Driver) uplink.Session {
	t.Helper()
	s, err := d.Open(t.Context(), uplink.Env{Gateway: "gw1", Stream: "line", Epoch: epoch, Uplink: "far"})
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(s.Close)
	return s
}

func records(from, to int) []uplink.Record {
	var out []uplink.Record
	for n := from; n <= to; n++ {
		id := pipeline.RecordID{Gateway: "gw1", Stream: "line", Epoch: epoch, Seq: uint64(n)}
		m := pipeline.Message{Time: time.Unix(int64(n), 0).UTC(), Topic: "boiler/1", Value: pipeline.Int(int64(n))}
		out = append(out, uplink.Record{ID: id, Message: m, JSON: pipeline.AppendJSON(nil, id, &m)})
	}
	return out
}

// send returns when each record is confirmed, or with the first thing that goes wrong.
func send(t *testing.T, s uplink.Session, recs []uplink.Record) error {
	t.Helper()
	var mu sync.Mutex
	acked := map[uint64]bool{}
	end := make(chan error, len(recs)+1)
	err := s.Send(t.Context(), recs, func(seq uint64, o uplink.Outcome) {
		mu.Lock()
		defer mu.Unlock()
		if o.Verdict != uplink.Ack {
			end <- o.Err
			return
		}
		if acked[seq] = true; len(acked) == len(recs) {
			end <- nil
		}
	})
	if err != nil {
		return err
	}
	select {
	case err := <-end:
		return err
	case <-time.After(30 * time.Second):
		t.Fatal("no outcome")
		return nil
	}
}

func far(t *testing.T, s uplink.Session) uplink.FarCursor {
	t.Helper()
	r, ok := s.(uplink.Resumer)
	if !ok {
		t.Fatalf("%T keeps no far cursor", s)
	}
	return r.Far()
}

// Without a record on its way to be committed nobody but Send can say that the session has ended.
func TestASessionThatEndsAsSendReturnsSaysSo(t *testing.T) {
	server := rig.NATS(t, rig.NATSOptions{})
	makeStream(t, server.Addr, atomic("ends"))
	reported := 0
	why := errors.New("gone")
	s := open(t, exactlyOnce(at(server.Addr, "ends")))
	err := nats.SendAsItEnds(t.Context(), s, records(1, 5), func(uint64, uplink.Outcome) { reported++ }, why)
	if err == nil && reported == 0 {
		t.Error("Send returned nil and nothing was reported: the runner would wait")
	}
	s.Close()
	if n := len(read(t, server.Addr, "ends")); n != 0 {
		t.Errorf("%d records were committed by a session that had ended", n)
	}
}

func TestTheOlderOfTwoGatewaysWithOneIDIsFenced(t *testing.T) {
	server := rig.NATS(t, rig.NATSOptions{})
	makeStream(t, server.Addr, atomic("two"))
	driver := exactlyOnce(at(server.Addr, "two"))
	older := open(t, driver)
	if err := send(t, older, records(1, 10)); err != nil {
		t.Fatalf("the first alone: %v", err)
	}
	newer := open(t, driver)
	if got, want := far(t, newer), (uplink.FarCursor{Epoch: epoch, Seq: 10}); got != want {
		t.Fatalf("the newer finds the cursor at %v, want %v", got, want)
	}
	err := send(t, older, records(11, 20))
	if err == nil || !uplink.IsConfig(err) || !strings.Contains(err.Error(), "another gateway with the id gw1 writes this stream") {
		t.Fatalf("the older sends on: %v, want that another gateway with its id writes", err)
	}
	t.Logf("in plain words: %v", err)
	if err := send(t, newer, records(11, 30)); err != nil {
		t.Fatalf("the newer: %v", err)
	}
	wantStored(t, read(t, server.Addr, "two"), 30)
}

func TestAnIdleInstanceLearnsThatItIsFencedAndDoesNotTakeTheCursorBack(t *testing.T) {
	server := rig.NATS(t, rig.NATSOptions{})
	makeStream(t, server.Addr, atomic("idle"))
	driver := exactlyOnce(at(server.Addr, "idle"))
	instance := func() func() (uplink.Session, error) {
		env := uplink.Env{Gateway: "gw1", Stream: "line", Epoch: epoch, Uplink: "far", Claims: &uplink.Claims{}}
		return func() (uplink.Session, error) {
			s, err := driver.Open(t.Context(), env)
			if err == nil {
				t.Cleanup(s.Close)
			}
			return s, err
		}
	}
	alive := func(s uplink.Session) error { return s.(uplink.Watcher).Alive(t.Context()) }
	older, newer := instance(), instance()
	first, err := older()
	if err != nil {
		t.Fatal(err)
	}
	if err := send(t, first, records(1, 10)); err != nil || alive(first) != nil {
		t.Fatalf("alone: %v, %v; want no error", err, alive(first))
	}
	again, err := older() // a new session of the same instance fences the one before, and is no other gateway
	if err != nil || alive(again) != nil || !uplink.IsFenced(alive(first)) {
		t.Fatalf("a second session of the same instance: %v, %v; the first says %v", err, alive(again), alive(first))
	}
	second, err := newer()
	if err != nil {
		t.Fatal(err)
	}
	if err := alive(again); !uplink.IsFenced(err) || !uplink.IsConfig(err) {
		t.Errorf("the older says %v, want that it is fenced", err)
	}
	for n := range 5 { // it tries again and again
		if _, err := older(); !uplink.IsFenced(err) {
			t.Fatalf("the older opens a session: %v, want that it is fenced", err)
		}
		if err := send(t, second, records(11+10*n, 20+10*n)); err != nil || alive(second) != nil {
			t.Fatalf("the newer: %v, %v", err, alive(second))
		}
	}
	wantStored(t, read(t, server.Addr, "idle"), 60)
	restarted := instance()
	if _, err := restarted(); err != nil || !uplink.IsFenced(alive(second)) {
		t.Errorf("the older, started again: %v; the newer says %v, want it fenced now", err, alive(second))
	}
}

func TestABatchEndsBeforeARecordThatIsTooLarge(t *testing.T) {
	server := rig.NATS(t, rig.NATSOptions{})
	makeStream(t, server.Addr, atomic("cut"))
	s := open(t, exactlyOnce(at(server.Addr, "cut")))
	recs := records(1, 10)
	recs[5].JSON = bytes.Repeat([]byte("x"), 5000)
	outcomes := make(chan string, 20)
	if err := s.Send(t.Context(), recs, func(seq uint64, o uplink.Outcome) { outcomes <- fmt.Sprint(seq, o.Verdict) }); err != nil {
		t.Fatal(err)
	}
	var got []string
	for range 6 {
		select {
		case o := <-outcomes:
			got = append(got, o)
		case <-time.After(10 * time.Second):
		}
	}
	time.Sleep(100 * time.Millisecond)
	slices.Sort(got)
	if want := "[1 1 2 1 3 1 4 1 5 1 6 2]"; fmt.Sprint(got) != want || len(outcomes) != 0 {
		t.Errorf("outcomes %v and %d more, want %s: nothing behind the refused record", got, len(outcomes), want)
	}
	if at := far(t, s); at.Seq != 5 {
		t.Errorf("the far cursor is at %v, want it not to pass record 6", at)
	}
	if err := s.(uplink.Resumer).Reset(t.Context(), uplink.FarCursor{Epoch: epoch, Seq: 6}); err != nil {
		t.Fatal(err)
	}
	if err := send(t, s, recs[6:]); err != nil {
		t.Fatal(err)
	}
	if n := len(read(t, server.Addr, "cut")); n != 9 {
		t.Errorf("%d records are stored, want 9", n)
	}
}

func wantStored(t *testing.T, stored []uplinktest.Stored, n int) {
	t.Helper()
	if len(stored) != n {
		t.Fatalf("%d records are stored, want %d", len(stored), n)
	}
	for i, s := range stored {
		if want := fmt.Sprintf("gw1/line/%d/%d", epoch, i+1); s.ID != want {
			t.Fatalf("record %d is %s, want %s", i+1, s.ID, want)
		}
	}
}

func TestAFullBatchIsStoredAndLeavesOneCursor(t *testing.T) {
	server := rig.NATS(t, rig.NATSOptions{})
	stream := makeStream(t, server.Addr, atomic("full"))
	cfg := at(server.Addr, "full")
	cfg.Batch = 999
	s := open(t, exactlyOnce(cfg))
	if err := send(t, s, records(1, 2500)); err != nil {
		t.Fatal(err)
	}
	wantStored(t, read(t, server.Addr, "full"), 2500)
	info, err := stream.Info(t.Context(), jetstream.WithSubjectFilter("edge.gw1.full.line.cursor"))
	if err != nil {
		t.Fatal(err)
	}
	if n := info.State.Subjects["edge.gw1.full.line.cursor"]; n != 1 {
		t.Errorf("%d cursors in the stream, want 1", n)
	}
	if got, want := far(t, s), (uplink.FarCursor{Epoch: epoch, Seq: 2500}); got != want {
		t.Errorf("the cursor is at %v, want %v", got, want)
	}
}

func TestTheCursorIsSetBackOnlyByReset(t *testing.T) {
	server := rig.NATS(t, rig.NATSOptions{})
	stream := makeStream(t, server.Addr, atomic("reset"))
	driver := exactlyOnce(at(server.Addr, "reset"))
	s := open(t, driver)
	if got := far(t, s); got != (uplink.FarCursor{}) {
		t.Errorf("the cursor of a new place is %v, want none", got)
	}
	if err := send(t, s, records(1, 10)); err != nil {
		t.Fatal(err)
	}
	to := uplink.FarCursor{Epoch: epoch, Seq: 4}
	if err := s.(uplink.Resumer).Reset(t.Context(), to); err != nil {
		t.Fatal(err)
	}
	if got := far(t, s); got != to {
		t.Errorf("the cursor is at %v after Reset, want %v", got, to)
	}
	s.Close()
	s = open(t, driver)
	if got := far(t, s); got != to {
		t.Errorf("the next session finds the cursor at %v, want %v", got, to)
	}
	if err := stream.Purge(t.Context(), jetstream.WithPurgeSubject("edge.gw1.reset.line.cursor")); err != nil {
		t.Fatal(err)
	}
	if err := send(t, s, records(5, 6)); err == nil || !strings.Contains(err.Error(), "is gone from the stream reset") {
		t.Errorf("sending on without a cursor: %v, want that it is gone", err)
	}
	if err := send(t, open(t, driver), records(5, 6)); err != nil {
		t.Errorf("the session after it: %v", err)
	}
}
