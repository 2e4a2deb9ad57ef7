package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"edgegateway/control"
	"edgegateway/pipeline"
	"edgegateway/uplink"
	"edgegateway/wal"
)

// shaped is a far side with the section sending.
type shaped struct {
	*far
	sending uplink.Policy
}

func (s *shaped) SendingPolicy() *uplink.Policy { return &s.sending }

func (s *shaped) Keeps(uplink.Promise) error { return nil }

// newShapedScene is a scene whose uplink has a policy.
func newShapedScene(t *testing.T, dir string, p uplink.Policy, order uplink.Order) *scene {
	t.Helper()
	s := newScene(t, dir, "stop")
	c := *s.g.config
	component := c.Uplinks["far"]
	component.Settings = &shaped{s.f, p}
	c.Uplinks["far"] = component
	stream := c.Streams["main"]
	stream.Order = string(order)
	c.Streams["main"] = stream
	g, err := newGateway(&c, s.g.log)
	if err != nil {
		t.Fatal(err)
	}
	s.g = g
	return s
}

func TestStreamBeginsWhereThePolicySays(t *testing.T) {
	for _, row := range []struct {
		start string
		first bool // whether the oldest record is sent
	}{
		{"oldest", true},
		{"newest", false},
		{time.Now().Add(-time.Hour).Format(time.RFC3339), true},
		{time.Now().Add(time.Hour).Format(time.RFC3339), false},
	} {
		t.Run(row.start, func(t *testing.T) {
			dir := t.TempDir()
			lane := filepath.Join(dir, "lanes", defaultLane)
			log, err := wal.Open(lane, wal.Options{})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := log.Cursor("other", "main", wal.Oldest); err != nil { // keeps the records
				t.Fatal(err)
			}
			m := pipeline.Message{Time: time.Now(), Topic: "n", Value: pipeline.String("old")}
			b := wal.Batch{Entries: []wal.Entry{{Stream: "main", Time: m.Time, Data: pipeline.Encode(nil, &m)}}, Urgent: true}
			done := make(chan error, 1)
			if err := log.Append(t.Context(), b, func(err error) { done <- err }); err != nil || <-done != nil {
				t.Fatal("the first record could not be stored")
			}
			if err := log.Close(); err != nil {
				t.Fatal(err)
			}
			s := newShapedScene(t, dir, uplink.Policy{Start: row.start}, uplink.OrderStrict)
			stop := s.run(t)
			eventually(t, "records flow", func() bool { _, _, got := s.numbers(); return got >= 10 })
			stop()
			if s.f.got["old"] != row.first {
				t.Errorf("the oldest record was sent: %v, want %v", s.f.got["old"], row.first)
			}
		})
	}
}

func TestDailyQuotaIsShownAndOutlivesARestart(t *testing.T) {
	dir := t.TempDir()
	policy := uplink.Policy{BytesPerDay: 20_000}
	s := newShapedScene(t, dir, policy, uplink.OrderStrict)
	stop := s.run(t)
	eventually(t, "the quota is used up", func() bool { return strings.Contains(s.g.gather().Uplinks[0].Limit, "waits for tomorrow") })
	u := s.g.gather().Uplinks[0]
	if u.State != control.Sending || u.Quota != 20_000 || u.QuotaUsed > 20_000 || u.QuotaUsed < 19_000 {
		t.Errorf("the uplink is %+v, want sending with nearly 20000 bytes used", u)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(control.NewCollector(s.g.gather))
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := 0.0
	for _, f := range families {
		if f.GetName() == "edge_gateway_uplink_quota_used_bytes" {
			found = f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	if found != float64(u.QuotaUsed) {
		t.Errorf("the metric says %v, want %d", found, u.QuotaUsed)
	}
	stop()
	if text, err := os.ReadFile(filepath.Join(dir, "quota", "far")); err != nil || len(bytes.Fields(text)) != 3 {
		t.Errorf("the count is %q, %v", text, err)
	}
	again := newShapedScene(t, dir, policy, uplink.OrderStrict)
	stop = again.run(t)
	eventually(t, "it is still used up", func() bool { return strings.Contains(again.g.gather().Uplinks[0].Limit, "waits for tomorrow") })
	if _, _, got := again.numbers(); got > 8 {
		t.Errorf("%d records were sent after the restart, want what was left of the day", got)
	}
	stop()
}

func TestInspectShowsBothPlacesOfASplit(t *testing.T) {
	dir := t.TempDir()
	s := newShapedScene(t, dir, uplink.Policy{Backfill: "live_first"}, uplink.OrderNone)
	lane := s.g.lane(defaultLane)
	if err := lane.open(s.g.epochs); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	log, _ := lane.opened()
	first, err := log.Cursor("far", "main", wal.Oldest)
	if err != nil {
		t.Fatal(err)
	}
	m := pipeline.Message{Time: time.Now(), Topic: "n", Value: pipeline.Int(1)}
	var b wal.Batch
	for range 7 {
		b.Entries = append(b.Entries, wal.Entry{Stream: "main", Time: m.Time, Data: pipeline.Encode(nil, &m)})
	}
	b.Urgent = true
	done := make(chan error, 1)
	if err := log.Append(ctx, b, func(err error) { done <- err }); err != nil || <-done != nil {
		t.Fatal("the records could not be stored")
	}
	after := first.Split()
	if _, err := log.Cursor(wal.SplitName("far", after), "main", wal.After(after)); err != nil {
		t.Fatal(err)
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := inspect(dir, false, &out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"far (backlog, to 7)", "far (new records, from 8)"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("inspect lacks %q:\n%s", want, out.String())
		}
	}
	again := newShapedScene(t, dir, uplink.Policy{Backfill: "live_first"}, uplink.OrderNone)
	stop := again.run(t)
	eventually(t, "the split is over and records flow", func() bool {
		log, _ := again.g.lane(defaultLane).opened()
		_, _, got := again.numbers()
		return log != nil && len(log.Cursors()) == 1 && got > 20
	})
	stop()
	if again.f.seq[7] == "" {
		t.Error("the last record of the backlog is missing")
	}
	if strings.Contains(again.logs.String(), "not in the config") {
		t.Errorf("the second place counts as an uplink that was removed:\n%s", again.logs.String())
	}
}

func TestLiveFirstIsRefusedForStreamsInOrder(t *testing.T) {
	for order, want := range map[uplink.Order]string{
		uplink.OrderStrict: "backfill: live_first sends new records past the backlog", uplink.OrderNone: "",
	} {
		s := newShapedScene(t, t.TempDir(), uplink.Policy{Backfill: "live_first"}, order)
		text := ""
		for _, p := range s.g.config.Check() {
			if p.Path == "streams.main.order" {
				text += p.Text
			}
		}
		if (want == "") != (text == "") || !strings.Contains(text, want) {
			t.Errorf("with order %s: %q, want %q", order, text, want)
		}
	}
}
