package nats_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"edgegateway/pipeline"
	"edgegateway/test/rig"
	"edgegateway/uplink"
	"edgegateway/uplink/nats"
	"edgegateway/uplink/uplinktest"
)

func TestStreamsThatCannotKeepTheCursorAreRefused(t *testing.T) {
	server := rig.NATS(t, rig.NATSOptions{})
	js := connect(t, server.Addr)
	// with makes a stream with the cursor's needs, but for one.
	with := func(place string, spoil func(*jetstream.StreamConfig)) (driver uplink.Driver, mend func()) {
		t.Helper()
		cfg := atomic(place)
		spoil(&cfg)
		makeStream(t, server.Addr, cfg)
		return exactlyOnce(at(server.Addr, place)), func() {
			if _, err := js.UpdateStream(t.Context(), atomic(place)); err != nil {
				t.Fatal(err)
			}
		}
	}
	plain, allowAtomic := with("plain", func(c *jetstream.StreamConfig) { c.AllowAtomicPublish = false })
	noRollup, allowRollup := with("norollup", func(c *jetstream.StreamConfig) { c.AllowRollup = false })
	narrow, widen := with("narrow", func(c *jetstream.StreamConfig) { c.Subjects = c.Subjects[:1] })
	queue, _ := with("queue", func(c *jetstream.StreamConfig) { c.Retention = jetstream.WorkQueuePolicy })
	sealed, _ := with("sealed", func(*jetstream.StreamConfig) {})
	cfg := atomic("sealed")
	cfg.Sealed = true
	if _, err := js.UpdateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	small, _ := with("small", func(*jetstream.StreamConfig) {})
	if _, err := js.Publish(t.Context(), "edge.gw1.small.line.cursor", []byte("hello")); err != nil {
		t.Fatal(err)
	}
	makeStream(t, server.Addr, atomic("parted"))
	makeStream(t, server.Addr, jetstream.StreamConfig{Name: "cursors", Subjects: []string{"cursors.>"}, AllowAtomicPublish: true, AllowRollup: true})
	parted := at(server.Addr, "parted")
	parted.CursorSubject = "cursors.{gateway}.{stream}"
	makeStream(t, server.Addr, jetstream.StreamConfig{Name: "short", Subjects: []string{"short"}, Duplicates: 30 * time.Second})
	short := promised{&nats.Config{Servers: []string{server.Addr}, Subject: "short"}, uplink.EffectivelyOnce}
	uplinktest.RunFaults(t, []uplinktest.Fault{
		{Name: "no atomic batches", Driver: plain, Want: "takes no atomic batches", Config: true, Mend: allowAtomic},
		{Name: "no rollup", Driver: noRollup, Want: "want allow_rollup_hdrs: true", Config: true, Mend: allowRollup},
		{Name: "the cursor's subject is not covered", Driver: narrow, Want: "does not take the subject of the cursor", Config: true, Mend: widen},
		{Name: "the cursor goes to another stream", Driver: exactlyOnce(parted), Want: "goes to the stream cursors", Config: true},
		{Name: "a work queue", Driver: queue, Want: "want retention: limits", Config: true},
		{Name: "a sealed stream", Driver: sealed, Want: "is sealed", Config: true},
		{Name: "something else on the cursor's subject", Driver: small, Want: `"hello" is not EPOCH/SEQUENCE`, Config: true},
		{Name: "a window too short for effectively_once", Driver: short, Want: "for 30s only", Config: true, Mend: func() {
			if _, err := js.UpdateStream(t.Context(), jetstream.StreamConfig{Name: "short", Subjects: []string{"short"}, Duplicates: 2 * time.Minute}); err != nil {
				t.Fatal(err)
			}
		}},
	})
	if n := len(read(t, server.Addr, "plain")); n != 20 {
		t.Errorf("the stream that was refused first holds %d records, want the 20 sent later", n)
	}
}

func TestABatchThatTheServerRefusesSaysWhy(t *testing.T) {
	server := rig.NATS(t, rig.NATSOptions{MaxBatch: 10})
	js := connect(t, server.Addr)
	makeStream(t, server.Addr, atomic("large"))
	if err := send(t, open(t, exactlyOnce(at(server.Addr, "large"))), records(1, 11)); err == nil || !uplink.IsConfig(err) || !strings.Contains(err.Error(), "want a smaller batch") {
		t.Errorf("11 records where a batch has 10 messages: %v", err)
	}
	makeStream(t, server.Addr, atomic("off"))
	s := open(t, exactlyOnce(at(server.Addr, "off")))
	cfg := atomic("off")
	cfg.AllowAtomicPublish = false
	if _, err := js.UpdateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	if err := send(t, s, records(1, 5)); err == nil || !strings.Contains(err.Error(), "takes no atomic batches any more") {
		t.Errorf("after allow_atomic was taken away: %v", err)
	}
	full := atomic("full")
	full.MaxMsgs, full.Discard = 5, jetstream.DiscardNew
	makeStream(t, server.Addr, full)
	if err := send(t, open(t, exactlyOnce(at(server.Addr, "full"))), records(1, 6)); err == nil || !strings.Contains(err.Error(), "is it full?") {
		t.Errorf("to a stream with room for 5: %v", err)
	}
	if n := len(read(t, server.Addr, "full")); n != 0 {
		t.Errorf("%d records of a batch that did not fit are stored, want none", n)
	}
	gone := open(t, exactlyOnce(at(server.Addr, "full")))
	if err := js.DeleteStream(t.Context(), "full"); err != nil {
		t.Fatal(err)
	}
	if err := send(t, gone, records(1, 5)); err == nil || !strings.Contains(err.Error(), "nobody on") {
		t.Errorf("after the stream was deleted: %v", err)
	}
}

func TestAFullStreamHoldsRecordsInTheSameSession(t *testing.T) {
	server := rig.NATS(t, rig.NATSOptions{})
	full := jetstream.StreamConfig{Name: "full", Subjects: []string{"full"}, MaxMsgs: 30, Discard: jetstream.DiscardNew}
	stream := makeStream(t, server.Addr, full)
	log := uplinktest.NewLog()
	r := uplink.New(uplink.RunnerConfig{
		Driver: &nats.Config{Servers: []string{server.Addr}, Subject: "full"}, Cursor: log,
		Env: uplink.Env{
			Gateway: "gw1", Stream: "line", Epoch: epoch, Uplink: "far",
			Promise: uplink.Promise{Delivery: uplink.AtLeastOnce, Order: uplink.OrderNone},
		},
		Timing: uplink.Timing{RetryMin: 20 * time.Millisecond, RetryMax: 100 * time.Millisecond},
	})
	for n := range 50 {
		log.Append(pipeline.Message{Topic: "t", Value: pipeline.Int(int64(n))})
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	var s uplink.Status
	for deadline := time.Now().Add(30 * time.Second); s.Held != 20 || s.Attempts < 2; time.Sleep(time.Millisecond) {
		if s = r.Status(); time.Now().After(deadline) {
			t.Fatalf("Status = %+v, want 20 records held and tried again", s)
		}
	}
	if s.State != uplink.Sending || s.Acked != 30 || !strings.Contains(s.HeldFor, "is it full?") {
		t.Errorf("Status = %+v, want a session that lives on and says why", s)
	}
	full.MaxMsgs = 100
	if _, err := connect(t, server.Addr).UpdateStream(t.Context(), full); err != nil {
		t.Fatal(err)
	}
	if !log.Wait(50, 30*time.Second) {
		t.Errorf("Status = %+v, want all 50 stored when there is room", r.Status())
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run = %v", err)
	}
	info, err := stream.Info(t.Context())
	if err != nil || info.State.Msgs != 50 {
		t.Errorf("%v records are stored (%v), want 50: each once", info.State.Msgs, err)
	}
}

func TestTheDuplicateWindowIsLogged(t *testing.T) {
	server := rig.NATS(t, rig.NATSOptions{})
	makeStream(t, server.Addr, jetstream.StreamConfig{Name: "W", Subjects: []string{"w"}, Duplicates: 7 * time.Minute})
	var text bytes.Buffer
	var figures uplink.Figures
	env := uplink.Env{
		Gateway: "gw1", Stream: "line", Promise: uplink.Promise{Delivery: uplink.EffectivelyOnce}, Log: slog.New(slog.NewTextHandler(&text, nil)),
		Figures: &figures,
	}
	s, err := (&nats.Config{Servers: []string{server.Addr}, Subject: "w"}).Open(t.Context(), env)
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	if got := text.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "level=WARN") || !strings.Contains(got, "duplicate_window=7m0s") {
		t.Errorf("the log says %q, want one warning with the window of 7m0s", got)
	}
	wantFigure(t, &figures, "nats_duplicate_window_seconds", 420)
	// With at_least_once there is no warning, and the metric all the same.
	figures = uplink.Figures{}
	env.Promise.Delivery = uplink.AtLeastOnce
	if s, err = (&nats.Config{Servers: []string{server.Addr}, Subject: "w"}).Open(t.Context(), env); err != nil {
		t.Fatal(err)
	}
	s.Close()
	wantFigure(t, &figures, "nats_duplicate_window_seconds", 420)
}

func wantFigure(t *testing.T, figures *uplink.Figures, name string, want float64) {
	t.Helper()
	for _, f := range figures.List() {
		if f.Name == name {
			if f.Value != want {
				t.Errorf("%s = %v, want %v", name, f.Value, want)
			}
			return
		}
	}
	t.Errorf("no figure %s among %+v, want %v", name, figures.List(), want)
}

func TestRecordsThatComeAgainAfterTheWindowAreSaid(t *testing.T) {
	defer nats.SetShortestWindow(100 * time.Millisecond)()
	server := rig.NATS(t, rig.NATSOptions{})
	for _, test := range []struct {
		name   string
		window time.Duration
		first  int // record of the second session
		want   string
		stored uint64
	}{
		{"in doubt for too long", 100 * time.Millisecond, 15, "first=15 last=20 stream=late-0 duplicate_window=100ms stored_ago=", 36},
		{"nothing was in doubt", 100 * time.Millisecond, 21, "", 30},
		{"within the window", time.Minute, 15, "", 30},
	} {
		t.Run(test.name, func(t *testing.T) {
			place := fmt.Sprintf("late-%d", test.first%5+int(test.window/time.Minute)*2)
			stream := makeStream(t, server.Addr, jetstream.StreamConfig{Name: place, Subjects: []string{place}, Duplicates: test.window})
			var text bytes.Buffer
			var figures uplink.Figures
			env := uplink.Env{
				Gateway: "gw1", Stream: "line", Epoch: epoch, Promise: uplink.Promise{Delivery: uplink.EffectivelyOnce},
				Log: slog.New(slog.NewTextHandler(&text, nil)), Figures: &figures,
			}
			for _, recs := range [][]uplink.Record{records(1, 20), records(test.first, 30)} {
				s, err := (&nats.Config{Servers: []string{server.Addr}, Subject: place}).Open(t.Context(), env)
				if err != nil {
					t.Fatal(err)
				}
				if err := send(t, s, recs); err != nil {
					t.Fatal(err)
				}
				s.Close()
				time.Sleep(300 * time.Millisecond) // longer than the short window
			}
			const said = "may now be stored twice"
			if got := text.String(); strings.Contains(got, said) != (test.want != "") || !strings.Contains(got, test.want) {
				t.Errorf("the log says\n%swant %q", got, test.want)
			}
			info, err := stream.Info(t.Context())
			if err != nil || info.State.Msgs != test.stored {
				t.Errorf("%d messages are stored (%v), want %d", info.State.Msgs, err, test.stored)
			}
			wantFigure(t, &figures, "nats_late_repeats_total", float64(test.stored-30))
		})
	}
}

func TestWhatCanBeKeptFollowsFromTheConfig(t *testing.T) {
	strict := func(d uplink.Delivery) uplink.Promise { return uplink.Promise{Delivery: d, Order: uplink.OrderStrict} }
	for _, test := range []struct {
		name    string
		config  nats.Config
		promise uplink.Promise
		want    string // part of the refusal; empty: it is kept
	}{
		{"by message ids", nats.Config{Subject: "all"}, strict(uplink.EffectivelyOnce), ""},
		{"a cursor for each stream", nats.Config{Subject: "edge.{gateway}.{stream}"}, strict(uplink.ExactlyOnce), ""},
		{"one cursor for all streams", nats.Config{Subject: "edge.{gateway}"}, strict(uplink.ExactlyOnce), "want {stream} in cursor_subject"},
		{"one cursor for all gateways", nats.Config{Subject: "edge.{stream}"}, strict(uplink.ExactlyOnce), "want {gateway} in cursor_subject"},
		{"one subject and many cursors", nats.Config{Subject: "all", CursorSubject: "cursor.{gateway}.{stream}"}, strict(uplink.ExactlyOnce), ""},
		{"by message ids, not in order", nats.Config{Subject: "all"}, uplink.Promise{Delivery: uplink.EffectivelyOnce, Order: uplink.OrderKey}, ""},
		{"a cursor, not in order", nats.Config{Subject: "edge.{gateway}.{stream}"}, uplink.Promise{Delivery: uplink.ExactlyOnce, Order: uplink.OrderNone}, "want order: strict"},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := uplink.CheckPromise(&test.config, test.promise)
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("CheckPromise(%v) = %v, want %q", test.promise, err, test.want)
			}
		})
	}
}

func TestCheckNamesTheMistake(t *testing.T) {
	for _, test := range []struct {
		name   string
		config nats.Config
		path   string
		want   string
	}{
		{"two ways to sign in", nats.Config{Subject: "a", NKeyFile: "x", Token: pipeline.NewSecret("y")}, "user", "want one of user, token, nkey_file and creds_file"},
		{"a password of nobody", nats.Config{Subject: "a", Password: pipeline.NewSecret("y")}, "password", "without a user"},
		{"the cursor among the data", nats.Config{Subject: "a.b", CursorSubject: "a.b"}, "cursor_subject", "the same as subject"},
		{"a cursor on no subject", nats.Config{Subject: "a.b", CursorSubject: "a.>"}, "cursor_subject", "no subject to publish to"},
		{"an unknown placeholder", nats.Config{Subject: "a.b", CursorSubject: "a.{device}"}, "cursor_subject", "unknown placeholder"},
		{"no subject", nats.Config{}, "subject", "no subject to publish to"},
	} {
		t.Run(test.name, func(t *testing.T) {
			problems := test.config.Check()
			if len(problems) != 1 || problems[0].Path != test.path || !strings.Contains(problems[0].Text, test.want) {
				t.Errorf("Check() = %v, want one problem of %s with %q", problems, test.path, test.want)
			}
		})
	}
}
