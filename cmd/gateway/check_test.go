package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files")

// TestCheck runs `edge-gateway check` over configs with one kind of mistake each. What it must say stands in the golden
// file: read it as the person would who made the mistake.
func TestCheck(t *testing.T) {
	files, err := filepath.Glob("testdata/check/*.yaml")
	if err != nil || len(files) < 16 {
		t.Fatalf("%d configs, %v", len(files), err)
	}
	var all bytes.Buffer
	for _, file := range files {
		var stdout, stderr bytes.Buffer
		code := command(t.Context(), []string{"check", file}, strings.NewReader(""), &stdout, &stderr)
		good := strings.Contains(file, "00-good")
		if want := map[bool]int{true: exitOK, false: exitConfig}[good]; code != want {
			t.Errorf("%s: exit code %d, want %d\n%s", file, code, want, stderr.String())
		}
		if strings.Contains(stderr.String(), "hunter2") {
			t.Errorf("%s: a secret is shown: %s", file, stderr.String())
		}
		all.WriteString(stdout.String() + stderr.String())
	}
	golden := "testdata/check/golden.txt"
	if *update {
		if err := os.WriteFile(golden, all.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got := all.String(); got != string(want) {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

// TestSchemaKnowsEveryKeyOfTheGoodConfig guards against a schema that is made of something else than what is decoded.
func TestSchemaKnowsEveryKeyOfTheGoodConfig(t *testing.T) {
	var stdout, stderr bytes.Buffer
	if code := command(t.Context(), []string{"schema"}, strings.NewReader(""), &stdout, &stderr); code != exitOK {
		t.Fatalf("exit code %d: %s", code, stderr.String())
	}
	var schema any
	if err := json.Unmarshal(stdout.Bytes(), &schema); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"max_bytes", "address", "word_order", "password_hash", "password_file", "deadband", "brokers", "subject", "session_idle"} {
		if !strings.Contains(stdout.String(), `"`+key+`"`) {
			t.Errorf("the schema has no %q", key)
		}
	}
	if !strings.Contains(stdout.String(), `"default": "512MiB"`) {
		t.Error("the schema has no default of max_bytes")
	}
}

func TestCommandLine(t *testing.T) {
	for _, tt := range []struct {
		name string
		args []string
		code int
		says string
	}{
		{"no command", nil, exitUsage, "usage: edge-gateway"},
		{"an unknown command", []string{"rnu"}, exitUsage, `there is no command "rnu"`},
		{"too few arguments", []string{"check"}, exitUsage, "want 1 arguments, got 0"},
		{"an empty argument", []string{"pause", ""}, exitUsage, "argument 1 is empty"},
		{"no command about dead letters", []string{"deadletters"}, exitUsage, "deadletters purge"},
		{"an unknown command about dead letters", []string{"deadletters", "eat"}, exitUsage, "want list, show, resend or purge"},
		{"an unknown flag", []string{"run", "-x"}, exitUsage, "flag provided but not defined"},
		{"a missing config", []string{"run", "-c", "testdata/none.yaml"}, exitIO, "testdata/none.yaml: no such file"},
		{"a folder as config", []string{"check", "testdata"}, exitOther, "want a regular file"},
		{"an unknown log level", []string{"run", "-log-level", "loud"}, exitOther, "want debug, info, warn or error"},
		{"a folder without a log", []string{"inspect", "testdata"}, exitOther, "no log is here"},
		{"a missing folder", []string{"inspect", "testdata/none"}, exitIO, "no such file"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			code := command(t.Context(), tt.args, strings.NewReader(""), &stdout, &stderr)
			if code != tt.code || !strings.Contains(stderr.String(), tt.says) {
				t.Errorf("exit code %d (want %d), stderr %q (want %q in it)", code, tt.code, stderr.String(), tt.says)
			}
			if stdout.Len() > 0 {
				t.Errorf("an error went to stdout: %s", stdout.String())
			}
		})
	}
}

func TestHashPassword(t *testing.T) {
	var stdout, stderr bytes.Buffer
	if code := command(t.Context(), []string{"hash-password"}, strings.NewReader("correct horse battery\n"), &stdout, &stderr); code != exitOK {
		t.Fatalf("exit code %d: %s", code, stderr.String())
	}
	if hash := strings.TrimSpace(stdout.String()); !strings.HasPrefix(hash, "$") || strings.Contains(hash, "horse") {
		t.Errorf("hash = %q", hash)
	}
}

// Help is about one command, and does nothing else: `run -help` once started the gateway.
func TestHelpOfEachCommand(t *testing.T) {
	for _, name := range []string{
		"run", "check", "schema", "inspect", "verify", "salvage", "export", "status", "deadletters", "pause", "resume", "release", "choose", "probe",
		"hash-password",
	} {
		for _, args := range [][]string{{name, "-help"}, {name, "--help"}, {name, "-h"}, {"help", name}} {
			var stdout, stderr bytes.Buffer
			code := command(t.Context(), args, strings.NewReader("secret\n"), &stdout, &stderr)
			if code != exitOK || stderr.Len() > 0 || !strings.Contains(stdout.String(), "  edge-gateway "+name) || strings.Contains(stdout.String(), "version") {
				t.Errorf("%v: exit code %d, stderr %q, stdout:\n%s", args, code, stderr.String(), stdout.String())
			}
		}
	}
	var stdout, stderr bytes.Buffer
	if code := command(t.Context(), []string{"deadletters", "purge", "--help"}, nil, &stdout, &stderr); code != exitOK || !strings.Contains(stdout.String(), "-before") {
		t.Errorf("exit code %d, stdout:\n%s", code, stdout.String())
	}
}
