package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"edgegateway/uplink"
)

// variants are the drivers in the settings that change what they can promise. The rest is at its default.
var variants = []struct{ name, section string }{
	{"kafka", "{driver: kafka, brokers: [\"b:9092\"], topic: edge}"},
	{"nats", "{driver: nats, servers: [\"n:4222\"]}"},
	{"pulsar", "{driver: pulsar, servers: [\"p:6650\"], topic: edge}"},
	{"redis, as: stream", "{driver: redis, address: \"r:6379\", as: stream}"},
	{"redis, as: list", "{driver: redis, address: \"r:6379\", as: list}"},
	{"redis, as: latest", "{driver: redis, address: \"r:6379\", as: latest}"},
}

// TestTheTableOfPromisesIsThatOfTheCode keeps the table in docs/uplinks.md: what `check` takes and why it does not take the rest.
func TestTheTableOfPromisesIsThatOfTheCode(t *testing.T) {
	page := filepath.Join("..", "..", "docs", "uplinks.md")
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- promises: begin, written by go test ./cmd/gateway -run Promises -update -->\n", "<!-- promises: end -->\n"
	head, rest, ok := strings.Cut(string(text), begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has not both marks, %q and %q", page, begin, end)
	}
	want := head + begin + "\n" + promiseTable(t) + "\n" + end + tail
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil { //nolint:gosec // a page of the docs
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(page); err != nil || string(got) != want {
		t.Errorf("the table of promises in %s is not that of the code (%v); -update writes it:\n%s", page, err, promiseTable(t))
	}
}

func promiseTable(t *testing.T) string {
	t.Helper()
	known := map[string]bool{}
	var rows, reasons []string
	for _, v := range variants {
		kind, driver := driverOf(t, v.section)
		known[kind] = true
		for _, d := range []uplink.Delivery{uplink.AtLeastOnce, uplink.EffectivelyOnce, uplink.ExactlyOnce} {
			row := fmt.Sprintf("| %s | %s |", v.name, d)
			for _, p := range uplink.Promises() {
				if p.Delivery != d {
					continue
				}
				cell := "yes"
				if err := uplink.CheckPromise(driver, p); err != nil {
					cell = fmt.Sprintf("no (%d)", 1+note(&reasons, err.Error()))
				}
				row += " " + cell + " |"
			}
			rows = append(rows, row)
		}
	}
	for name := range drivers["uplink"] {
		if !known[name] {
			t.Errorf("the uplink %s is not in the table of promises: it has no line in variants", name)
		}
	}
	var out strings.Builder
	out.WriteString("| uplink | delivery | order: strict | key | none |\n|---|---|---|---|---|\n" + strings.Join(rows, "\n") + "\n\n")
	for i, r := range reasons {
		fmt.Fprintf(&out, "%d. %s\n", i+1, r)
	}
	return out.String()
}

// note returns the place of a reason in a list that has each once.
func note(reasons *[]string, reason string) int {
	i := slices.Index(*reasons, reason)
	if i < 0 {
		i = len(*reasons)
		*reasons = append(*reasons, reason)
	}
	return i
}

// driverOf returns a driver as a config makes it.
func driverOf(t *testing.T, section string) (kind string, driver uplink.Driver) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "gateway.yaml")
	text := "gateway: {id: g}\nuplinks:\n  far: " + section + "\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := loadConfig(file)
	if err != nil {
		t.Fatalf("%s: %v", section, err)
	}
	far := c.Uplinks["far"]
	driver, ok := far.Settings.(uplink.Driver)
	if !ok {
		t.Fatalf("%s is no uplink: %T", section, far.Settings)
	}
	return far.Driver, driver
}
