package main

import (
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// sizeTarget is an architecture with the environment that builds for it.
type sizeTarget struct {
	name string
	env  []string
}

// sizeBuild is a choice of drivers: the tags that leave others out.
type sizeBuild struct{ name, tags string }

// The goals, in MB.
const (
	coreGoal = 20 // without any uplink, arm v7
	allGoal  = 45
	sizeSlip = 0.03 // what a figure in the docs may be off
)

// TestBinarySize keeps docs/binary-size.md: what the program weighs with each uplink left out. By itself it builds two of them
// for ARM v7; SIZE_ALL=1 builds all, and -update writes the page.
func TestBinarySize(t *testing.T) {
	page := filepath.Join("..", "..", "docs", "binary-size.md")
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	targets := []sizeTarget{
		{"arm v7", []string{"GOARCH=arm", "GOARM=7"}},
		{"amd64", []string{"GOARCH=amd64"}},
		{"arm64", []string{"GOARCH=arm64"}},
		{"riscv64", []string{"GOARCH=riscv64"}},
		{"mipsle", []string{"GOARCH=mipsle", "GOMIPS=softfloat"}},
	}
	builds := sizeBuilds()
	all := os.Getenv("SIZE_ALL") != ""
	if !all {
		targets, builds = targets[:1], builds[:2]
	}
	sizes := map[string]float64{} // MB, by build and target
	for _, target := range targets {
		for _, b := range builds {
			sizes[b.name+" "+target.name] = sizeOf(t, target, b)
		}
	}
	if mb := sizes["core arm v7"]; mb > coreGoal {
		t.Errorf("the core for arm v7 has %.1f MB, want at most %d", mb, coreGoal)
	}
	for _, target := range targets {
		if mb := sizes["all "+target.name]; mb > allGoal {
			t.Errorf("all for %s have %.1f MB, want at most %d", target.name, mb, allGoal)
		}
	}
	if all && *update {
		writeSizes(t, page, string(text), targets, builds, sizes)
		return
	}
	for key, mb := range sizes {
		if said, ok := saidSize(string(text), key); !ok || math.Abs(said-mb) > sizeSlip*mb {
			t.Errorf("%s has %.1f MB, %s says %.1f (make size writes it anew)", key, mb, page, said)
		}
	}
}

// sizeBuilds are all drivers, no uplink, and each uplink left out.
func sizeBuilds() []sizeBuild {
	var uplinks, none []string
	for name := range drivers["uplink"] {
		uplinks = append(uplinks, name)
	}
	slices.Sort(uplinks)
	for _, name := range uplinks {
		none = append(none, "no_"+name)
	}
	builds := []sizeBuild{{"all", ""}, {"core", strings.Join(none, ",")}}
	for _, name := range uplinks {
		builds = append(builds, sizeBuild{"without " + name, "no_" + name})
	}
	return builds
}

func sizeOf(t *testing.T, target sizeTarget, b sizeBuild) float64 {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "gateway")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags", "-s -w", "-tags", b.tags, "-o", binary, ".")
	cmd.Env = append(append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux"), target.env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s for %s: %v\n%s", b.name, target.name, err, out)
	}
	info, err := os.Stat(binary)
	if err != nil {
		t.Fatal(err)
	}
	return float64(info.Size()) / 1e6
}

const sizeBegin, sizeEnd = "<!-- sizes: begin, written by make size -->\n", "<!-- sizes: end -->\n"

func writeSizes(t *testing.T, page, text string, targets []sizeTarget, builds []sizeBuild, sizes map[string]float64) {
	t.Helper()
	head, rest, ok := strings.Cut(text, sizeBegin)
	_, tail, ok2 := strings.Cut(rest, sizeEnd)
	if !ok || !ok2 {
		t.Fatalf("%s has not both marks", page)
	}
	var table strings.Builder
	table.WriteString("\n| MB |")
	for _, target := range targets {
		fmt.Fprintf(&table, " %s |", target.name)
	}
	table.WriteString("\n|---|" + strings.Repeat("---|", len(targets)) + "\n")
	for _, b := range builds {
		fmt.Fprintf(&table, "| %s |", b.name)
		for _, target := range targets {
			fmt.Fprintf(&table, " %.1f |", sizes[b.name+" "+target.name])
		}
		table.WriteString("\n")
	}
	if err := os.WriteFile(page, []byte(head+sizeBegin+table.String()+"\n"+sizeEnd+tail), 0o644); err != nil { //nolint:gosec // a page of the docs
		t.Fatal(err)
	}
}

var sizeRow = regexp.MustCompile(`(?m)^\| (.+?) \|(.*) \|$`)

// saidSize finds the figure of BUILD TARGET in the page's table.
func saidSize(text, key string) (float64, bool) {
	var targets []string
	for _, m := range sizeRow.FindAllStringSubmatch(text, -1) {
		cells := strings.Split(m[2], "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if m[1] == "MB" {
			targets = cells
			continue
		}
		for i, target := range targets {
			if i < len(cells) && m[1]+" "+target == key {
				mb, err := strconv.ParseFloat(cells[i], 64)
				return mb, err == nil
			}
		}
	}
	return 0, false
}
