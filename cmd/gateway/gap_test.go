package main

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"edgegateway/pipeline"
	"edgegateway/wal"
)

// TestGapRecordIsWhatThePayloadPageSays shows the JSON that the far side gets.
func TestGapRecordIsWhatThePayloadPageSays(t *testing.T) {
	when := time.Date(2026, 11, 29, 20, 56, 12, 0, time.UTC)
	l := &laneRun{gaps: map[string]bool{"telemetry": true}}
	tests := []struct {
		name string
		r    wal.DropRange
		want string
	}{
		{
			name: "a range",
			r:    wal.DropRange{First: 41, Last: 140, Count: 100, When: when, Why: wal.DroppedFull},
			want: `{"gap":{"first":41,"last":140,"count":100,"reason":"drop_oldest","time":"2026-11-29T20:56:12Z"}}`,
		},
		{
			name: "refused records",
			r:    wal.DropRange{Count: 7, When: when, Why: wal.Refused},
			want: `{"gap":{"count":7,"reason":"drop_newest","time":"2026-11-29T20:56:12Z"}}`,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m, err := pipeline.Decode(l.gapRecord("telemetry", tt.r))
			if err != nil {
				t.Fatal(err)
			}
			got := string(pipeline.AppendJSON(nil, pipeline.RecordID{Gateway: "g", Stream: "telemetry", Epoch: 1, Seq: 141}, &m))
			want := `{"id":"g/telemetry/1/141","gateway":"g","stream":"telemetry","epoch":1,"seq":141,"time":"2026-11-29T20:56:12Z",` +
				`"source":"edge-gateway","topic":"edge-gateway/gap","value":` + tt.want + `,"quality":"bad","reason":"gap",` +
				`"headers":[{"name":"content-type","value":"application/vnd.edge-gateway.gap+json"}]}`
			if got != want || !json.Valid([]byte(got)) {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
	if l.gapRecord("alarms", wal.DropRange{First: 1, Last: 1, When: when}) != nil {
		t.Error("a gap record for a stream that does not want one")
	}
}

// TestDoubtsAreLoggedOnce puts a lane on a disk that is too small for it.
func TestDoubtsAreLoggedOnce(t *testing.T) {
	var lines bytes.Buffer
	l := &laneRun{
		dir: filepath.Join(t.TempDir(), "lanes", "default"), config: Lane{MaxBytes: 1 << 60},
		log: slog.New(slog.NewTextHandler(&lines, nil)),
	}
	now := time.Now()
	for i := range 5 {
		found := false
		for _, d := range l.doubts(now.Add(time.Duration(i) * 2 * mediumPeriod)) {
			found = found || d.Kind == "space"
		}
		if !found {
			t.Fatal("a log of an exbibyte has room")
		}
	}
	if n := strings.Count(lines.String(), "kind=space"); n != 1 {
		t.Errorf("%d lines say so, want 1:\n%s", n, lines.String())
	}
}

// TestQuotaAndGapSettingsReachTheLog opens the lane of a config and looks whether the log follows it.
func TestQuotaAndGapSettingsReachTheLog(t *testing.T) {
	dir := t.TempDir()
	text, err := os.ReadFile("testdata/check/00-good.yaml")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "gateway.yaml")
	if err := os.WriteFile(file, bytes.ReplaceAll(text, []byte("state_dir: state"), []byte("state_dir: "+dir)), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := loadConfig(file)
	if err != nil {
		t.Fatal(err)
	}
	g, err := newGateway(c, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	lane := g.lane(defaultLane)
	if err := lane.open(g.epochs); err != nil {
		t.Fatal(err)
	}
	log, _ := lane.opened()
	defer func() { _ = log.Close() }()
	if _, err := log.Cursor("far", "telemetry", wal.Oldest); err != nil {
		t.Fatal(err)
	}
	s := g.gather()
	for _, st := range s.Streams {
		if want := map[string]uint64{"telemetry": 256 << 20}[st.Name]; st.Quota != want {
			t.Errorf("stream %s has a quota of %d, want %d", st.Name, st.Quota, want)
		}
	}
	if s.Flash.Budget != 5<<40 || s.Flash.Years != 10 {
		t.Errorf("flash budget %+v", s.Flash)
	}
	if lane.gapRecord("telemetry", wal.DropRange{Count: 1, When: time.Now()}) == nil || lane.gaps["alarms"] {
		t.Error("gap_records does not reach the lane")
	}
}
