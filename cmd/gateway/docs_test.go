package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var yamlBlock = regexp.MustCompile("(?s)```yaml\n(.*?)```")

// TestTheExamplesInTheDocsAreRight checks every YAML example as `edge-gateway check` would: a reader copies them.
func TestTheExamplesInTheDocsAreRight(t *testing.T) {
	var pages []string
	for _, pattern := range []string{"../../README.md", "../../docs/*.md", "../../docs/uplinks/*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, found...)
	}
	dir := t.TempDir()
	for _, name := range []string{"nats-password", "kafka.password", "redis.password", "sentinel.password", "pulsar.token"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("secret\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	hash, err := makeHash("correct horse battery")
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range yamlBlock.FindAllStringSubmatch(string(text), -1) {
			example := strings.NewReplacer("/etc/edge-gateway", dir, "$2a$10$…", hash).Replace(block[1])
			if !strings.Contains(example, "gateway:\n") {
				example = "gateway: {id: g}\n" + example
			}
			file := filepath.Join(dir, "gateway.yaml")
			if err := os.WriteFile(file, []byte(example), 0o600); err != nil {
				t.Fatal(err)
			}
			var stdout, stderr bytes.Buffer
			if code := command(t.Context(), []string{"check", file}, strings.NewReader(""), &stdout, &stderr); code != exitOK {
				t.Errorf("%s:\n%s\n%s", page, stderr.String(), example)
			}
			checked++
		}
	}
	if checked < 4 {
		t.Errorf("%d examples found, want at least 4", checked)
	}
}
