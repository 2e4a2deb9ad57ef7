package control_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"edgegateway/control"
)

// watched returns what a Monitor makes of a picture.
func watched(t *testing.T, s control.Status) control.Status {
	t.Helper()
	m := control.NewMonitor(func() control.Status { return s })
	first := m.Changed()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx) }()
	<-first
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	return m.Status()
}

func TestWhatAnOperatorHasToSeeIsAProblem(t *testing.T) {
	now := time.Now()
	day := 24 * time.Hour
	for _, test := range []struct {
		name   string
		status control.Status
		want   string // severity and words; empty for no problem
	}{
		{
			"removed, with records",
			control.Status{Removed: []control.Removed{{Uplink: "far", Stream: "main", Backlog: control.Backlog{Records: 7, Bytes: 2048}}}},
			"warning uplink far It is not in the configuration any more, and 7 records (2.05 kB) of stream main are kept for it.",
		},
		{"removed, with nothing yet", control.Status{Removed: []control.Removed{{Uplink: "far", Stream: "main"}}}, "warning uplink far It is not in the configuration any more, and each new record"},
		{"paused", control.Status{Uplinks: []control.Uplink{{Name: "far", Stream: "main", State: control.Paused, Since: now.Add(-time.Hour)}}}, "warning uplink far Paused by an operator for 1 h"},
		{"held", control.Status{Uplinks: []control.Uplink{{Name: "far", Stream: "main", State: control.Sending, Held: 3, HeldFor: "no"}}}, "warning uplink far 3 records of stream main held back: no."},
		{"31 days left", control.Status{Credentials: []control.Credential{{Uplink: "far", Key: "tls.cert_file", File: "c.pem", Expires: now.Add(31 * day)}}}, ""},
		{"29 days left", control.Status{Credentials: []control.Credential{{Uplink: "far", Key: "tls.cert_file", File: "c.pem", Expires: now.Add(29*day + time.Hour)}}}, "warning uplink far Its tls.cert_file (c.pem) expires in 29 d."},
		{"expired", control.Status{Credentials: []control.Credential{{Uplink: "far", Key: "creds_file", File: "c.creds", Expires: now.Add(-3 * day)}}}, "error uplink far Its creds_file (c.creds) expired 3 d ago."},
		{"never ends", control.Status{Credentials: []control.Credential{{Uplink: "far", Key: "creds_file", File: "c.creds"}}}, ""},
		{"unreadable", control.Status{Credentials: []control.Credential{{Uplink: "far", Key: "password_file", File: "p", Error: "no such file"}}}, "warning uplink far Its password_file cannot be read: no such file."},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.status.Time, test.status.Started = now, now
			problems := watched(t, test.status).Problems
			if test.want == "" {
				if len(problems) != 0 {
					t.Errorf("problems %v, want none", problems)
				}
				return
			}
			if len(problems) != 1 || !strings.HasPrefix(string(problems[0].Severity)+" "+problems[0].Where+" "+problems[0].Text, test.want) || problems[0].Hint == "" {
				t.Errorf("problems %v, want %q with a hint", problems, test.want)
			}
		})
	}
}

func TestWhatAnOperatorHasToSeeIsInTheMetrics(t *testing.T) {
	now := time.Now()
	s := control.Status{
		Time: now, Started: now, Unrouted: 5,
		Removed:     []control.Removed{{Uplink: "far", Stream: "main", Backlog: control.Backlog{Records: 7}}},
		Credentials: []control.Credential{{Uplink: "far", Key: "tls.cert_file", File: "c.pem", Expires: now.Add(100 * time.Second)}, {Uplink: "far", Key: "password_file", File: "p", Error: "x"}},
		Uplinks:     []control.Uplink{{Name: "far", Stream: "main!far", State: control.Paused, Held: 2}},
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(control.NewCollector(func() control.Status { return s }))
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			got[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	for name, want := range map[string]float64{
		"edge_gateway_unrouted_messages_total":             5,
		"edge_gateway_removed_uplink_records main far":     7,
		"edge_gateway_credential_expiry_seconds c.pem far": 100,
		"edge_gateway_uplink_state paused main!far far":    1,
		"edge_gateway_uplink_state sending main!far far":   0,
		"edge_gateway_uplink_held_records main!far far":    2,
	} {
		if v, ok := got[name]; !ok || v != want {
			t.Errorf("%s is %v (there: %v), want %v", name, v, ok, want)
		}
	}
	if _, ok := got["edge_gateway_credential_expiry_seconds p far"]; ok {
		t.Error("a file without an end has an expiry")
	}
}
