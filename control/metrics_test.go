package control_test

import (
	"bytes"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"edgegateway/control"
	"edgegateway/device"
)

func metricsStatus() control.Status {
	return control.Status{
		Gateway: "plant-7", Version: "1.0.0", Started: time.Unix(1_790_000_000, 0),
		Problems: []control.Problem{{Severity: control.Error}, {Severity: control.Warning}, {Severity: control.Warning}},
		Devices: []control.Device{
			{Name: "boiler", Status: device.Status{State: device.Up, Counters: map[string]uint64{"requests_total": 41, "errors_total": 2}}},
			{Name: "broker", Status: device.Status{State: device.Degraded, Counters: map[string]uint64{"requests_total": 7, "Odd name_total": 1, "open": 3}}},
		},
		Streams: []control.Stream{{Name: "plant", Records: 1204, Refused: 1, Waiting: 10, Quota: 20, Dropped: 3, RefusedEver: 4}},
		Flash:   control.Flash{Budget: 1000, Years: 5, Written: 400, PerDay: 10, Lasts: 60 * 24 * time.Hour},
		Uplinks: []control.Uplink{{
			Name: "cloud\xff", Stream: "plant", State: control.Waiting, Acked: 1200, DeadLetters: 1,
			LastAck: time.Unix(1_790_000_100, 500e6), Backlog: control.Backlog{Records: 4, Bytes: 400, Age: 90 * time.Second}, InDoubt: 7 * time.Second,
			Figures: []control.Figure{
				{Name: "nats_duplicate_window_seconds", Help: "A gauge of a driver.", Value: 120},
				{Name: "nats_late_repeats_total", Help: "A counter of a driver.", Counter: true, Value: 3},
			},
		}},
		Lanes: []control.Lane{{Name: "default", State: control.LaneFull, Epoch: 2, Bytes: 10, MaxBytes: 20, Segments: 1, FullIn: time.Minute, Commits: math.MaxUint32, Dropped: 5, Refused: 6, Held: 9, Written: 300, Flash: 400}},
	}
}

func TestMetricsFollowPrometheusConventions(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(control.NewCollector(metricsStatus))
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	if len(families) < 20 {
		t.Errorf("%d families gathered, want at least 20", len(families))
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

func TestMetricsShowTheStatus(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(control.NewCollector(metricsStatus))
	want := `
# HELP edge_gateway_backlog_age_seconds Age of the oldest record not yet confirmed.
# TYPE edge_gateway_backlog_age_seconds gauge
edge_gateway_backlog_age_seconds{stream="plant",uplink="cloud�"} 90
# HELP edge_gateway_device_requests_total Counter of the device's driver: requests_total.
# TYPE edge_gateway_device_requests_total counter
edge_gateway_device_requests_total{device="boiler"} 41
edge_gateway_device_requests_total{device="broker"} 7
# HELP edge_gateway_device_odd_name_total Counter of the device's driver: odd_name_total.
# TYPE edge_gateway_device_odd_name_total counter
edge_gateway_device_odd_name_total{device="broker"} 1
# HELP edge_gateway_lane_state State of the lane: 1 for the state that it is in.
# TYPE edge_gateway_lane_state gauge
edge_gateway_lane_state{lane="default",state="full"} 1
edge_gateway_lane_state{lane="default",state="ok"} 0
edge_gateway_lane_state{lane="default",state="stopped"} 0
# HELP edge_gateway_flash_budget_bytes Bytes that the flash memory may be written in its life (flash_budget).
# TYPE edge_gateway_flash_budget_bytes gauge
edge_gateway_flash_budget_bytes 1000
# HELP edge_gateway_flash_lasts_seconds Forecast until flash_budget is used up, at the present rate.
# TYPE edge_gateway_flash_lasts_seconds gauge
edge_gateway_flash_lasts_seconds 5.184e+06
# HELP edge_gateway_flash_written_bytes_total Bytes that the lanes have cost the flash memory since their logs began, in whole pages of 16 KiB.
# TYPE edge_gateway_flash_written_bytes_total counter
edge_gateway_flash_written_bytes_total 400
# HELP edge_gateway_lane_flash_bytes_total Bytes handed to the disk since the log began, in whole flash pages of 16 KiB.
# TYPE edge_gateway_lane_flash_bytes_total counter
edge_gateway_lane_flash_bytes_total{lane="default"} 400
# HELP edge_gateway_lane_held_bytes Size on disk of what an uplink has not confirmed, and of all that came after it.
# TYPE edge_gateway_lane_held_bytes gauge
edge_gateway_lane_held_bytes{lane="default"} 9
# HELP edge_gateway_stream_quota_bytes Data that may wait for the slowest uplink (quota).
# TYPE edge_gateway_stream_quota_bytes gauge
edge_gateway_stream_quota_bytes{stream="plant"} 20
# HELP edge_gateway_stream_refused_records_total Records refused by the log since it began: lane or quota full.
# TYPE edge_gateway_stream_refused_records_total counter
edge_gateway_stream_refused_records_total{stream="plant"} 4
# HELP edge_gateway_problems Problems that need a person, as the page lists them.
# TYPE edge_gateway_problems gauge
edge_gateway_problems{severity="error"} 1
edge_gateway_problems{severity="warning"} 2
# HELP edge_gateway_stream_records_total Records stored since the log began.
# TYPE edge_gateway_stream_records_total counter
edge_gateway_stream_records_total{stream="plant"} 1204
# HELP edge_gateway_uplink_acked_records_total Records that the far broker confirmed since the start.
# TYPE edge_gateway_uplink_acked_records_total counter
edge_gateway_uplink_acked_records_total{stream="plant",uplink="cloud�"} 1200
# HELP edge_gateway_uplink_in_doubt_seconds For how long the oldest record is on its way of which it is not known whether the far broker has it; 0 for none.
# TYPE edge_gateway_uplink_in_doubt_seconds gauge
edge_gateway_uplink_in_doubt_seconds{stream="plant",uplink="cloud�"} 7
# HELP edge_gateway_uplink_nats_duplicate_window_seconds A gauge of a driver.
# TYPE edge_gateway_uplink_nats_duplicate_window_seconds gauge
edge_gateway_uplink_nats_duplicate_window_seconds{stream="plant",uplink="cloud�"} 120
# HELP edge_gateway_uplink_nats_late_repeats_total A counter of a driver.
# TYPE edge_gateway_uplink_nats_late_repeats_total counter
edge_gateway_uplink_nats_late_repeats_total{stream="plant",uplink="cloud�"} 3
# HELP edge_gateway_uplink_last_ack_timestamp_seconds When the far broker last confirmed a record, as seconds since 1970; 0 if never.
# TYPE edge_gateway_uplink_last_ack_timestamp_seconds gauge
edge_gateway_uplink_last_ack_timestamp_seconds{stream="plant",uplink="cloud�"} 1.7900001005e+09
`
	var names []string
	for line := range strings.Lines(want) {
		if fields := strings.Fields(line); len(fields) > 2 && fields[1] == "TYPE" {
			names = append(names, fields[2])
		}
	}
	if err := testutil.GatherAndCompare(registry, bytes.NewBufferString(want), names...); err != nil {
		t.Error(err)
	}
}
