package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"edgegateway/pipeline"
	"edgegateway/wal"
)

// madeLog makes a log with 60 messages in lanes/default, none of them confirmed.
func madeLog(t *testing.T) (stateDir, dir string) {
	t.Helper()
	stateDir = t.TempDir()
	dir = filepath.Join(stateDir, "lanes", "default")
	l, err := wal.Open(dir, wal.Options{NewEpoch: 7, Codec: wal.CodecNone, SegmentBytes: 64 << 10})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Cursor("cloud", "telemetry", wal.Oldest); err != nil {
		t.Fatal(err)
	}
	for n := range 60 {
		m := pipeline.Message{
			Time: time.Unix(1.7e9+int64(n), 0), Source: "boiler", Topic: "boiler/kettle/water", Value: pipeline.Float(float64(n) / 4), Unit: "°C",
		}
		if n == 7 {
			m.Value = pipeline.Bytes([]byte{0xff, 0, 1})
		}
		data := pipeline.Encode(nil, &m)
		if n == 9 {
			data = []byte{0xee}
		}
		big := append([]byte{0xee}, bytes.Repeat([]byte{byte(n)}, 4000)...)
		done := make(chan error, 1)
		b := wal.Batch{Urgent: true, Entries: []wal.Entry{{Stream: "telemetry", Time: m.Time, Data: data}, {Stream: "filler", Data: big}}}
		if err := l.Append(t.Context(), b, func(err error) { done <- err }); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return stateDir, dir
}

// runCommand runs a command line and returns what it printed, with what differs from run to run replaced.
func runCommand(t *testing.T, dir string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = command(t.Context(), args, strings.NewReader(""), &out, &errs)
	stamp := regexp.MustCompile(`\d{8}T\d{6}\.\d{3}`)
	clean := func(b *bytes.Buffer) string {
		return stamp.ReplaceAllString(strings.ReplaceAll(b.String(), dir, "STATE"), "TIME")
	}
	return code, clean(&out), clean(&errs)
}

// TestRepairCommands goes the way of a technician: look, try, mend, look again, take the records out.
func TestRepairCommands(t *testing.T) {
	state, dir := madeLog(t)
	var all bytes.Buffer
	step := func(want int, args ...string) string {
		t.Helper()
		code, stdout, stderr := runCommand(t, state, args...)
		if code != want {
			t.Errorf("%v: exit code %d, want %d\n%s%s", args, code, want, stdout, stderr)
		}
		all.WriteString("$ edge-gateway " + strings.ReplaceAll(strings.Join(args, " "), state, "STATE") + "\n" + stdout + stderr)
		return stdout
	}
	step(exitOK, "verify", state)
	step(exitOK, "salvage", state)
	out := step(exitOK, "export", dir, "-stream", "telemetry", "-from", "7", "-to", "11")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != 5 {
		t.Fatalf("%d lines, want 5:\n%s", len(lines), out)
	}
	for i, line := range lines {
		var e exported
		if err := json.Unmarshal([]byte(line), &e); err != nil || e.Seq != uint64(7+i) || e.Epoch != 7 || (len(e.Base64) == 1) != (e.Seq == 10) {
			t.Errorf("line %s: %v", line, err)
		}
	}

	files, err := filepath.Glob(filepath.Join(dir, "*.seg"))
	if err != nil || len(files) < 3 {
		t.Fatal(files, err)
	}
	b, err := os.ReadFile(files[1])
	if err != nil {
		t.Fatal(err)
	}
	clear(b[:8192])
	clear(b[5*4096 : 8*4096])
	if err := os.WriteFile(files[1], b, 0o600); err != nil {
		t.Fatal(err)
	}
	step(exitDamaged, "verify", state)
	var reports []wal.VerifyReport
	if err := json.Unmarshal([]byte(step(exitDamaged, "verify", "-json", state)), &reports); err != nil || len(reports) != 1 {
		t.Errorf("verify -json: %v", err)
	}
	all.Reset()
	step(exitDamaged, "verify", state)
	step(exitOK, "salvage", state, "-dry-run")
	step(exitDamaged, "verify", state)
	step(exitOK, "salvage", state)
	step(exitOK, "verify", state)
	golden := filepath.Join("testdata", "repair.txt")
	if *update {
		if err := os.WriteFile(golden, all.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if all.String() != string(want) {
		t.Errorf("got:\n%s\nwant:\n%s", all.String(), want)
	}

	file := filepath.Join(t.TempDir(), "out.jsonl")
	step(exitOK, "export", "-stream", "filler", "-out", file, dir)
	if b, err := os.ReadFile(file); err != nil || bytes.Count(b, []byte("\n")) < 50 {
		t.Errorf("%d lines were written: %v", bytes.Count(b, []byte("\n")), err)
	}
	step(exitIO, "export", "-stream", "filler", "-out", file, dir) // it is there already
	step(exitOther, "export", "-stream", "nothing", dir)
	step(exitIO, "verify", filepath.Join(state, "away"))
	step(exitUsage, "salvage")
	l, err := wal.Open(dir, wal.Options{})
	if err != nil {
		t.Fatal(err)
	}
	step(exitOK, "verify", dir)
	step(exitLocked, "salvage", dir)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}
