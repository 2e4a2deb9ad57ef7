package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"edgegateway/test/blockcut/blockdev"
)

func TestMain(m *testing.M) {
	blockdev.Main()
	if len(os.Args) > 1 && os.Args[1] == childFlag {
		os.Exit(childMain(os.Args[2:]))
	}
	os.Exit(m.Run())
}

// tiny is a form that measures nothing of worth, but goes through everything.
func tiny() form {
	return form{
		name: "tiny", turn: 5 * time.Millisecond, rounds: 1, steady: 20 * time.Millisecond, backlog: 64 * mib, small: 4,
		wear: 400 * time.Millisecond, raw: mib, fresh: true,
	}
}

// testBench measures in a folder of the test.
func testBench(t *testing.T) (*bench, *strings.Builder) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	d, err := openDisk(deviceLoop, t.TempDir(), "", 0, t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.close(); err != nil {
			t.Error(err)
		}
	})
	var out strings.Builder
	return &bench{disk: d, form: tiny(), self: self, out: &out, log: t.Output()}, &out
}

func TestEveryPartPrintsItsFigures(t *testing.T) {
	b, out := testBench(t)
	if err := b.all(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`^bench (\S+) ratio \S+ \(ours \S+ [^,]+, reference \S+ [^)]+\)( \(goal [≥≤] [0-9.]+\))?$`)
	seen := map[string]bool{}
	for text := range strings.Lines(out.String()) {
		m := line.FindStringSubmatch(strings.TrimSpace(text))
		if m == nil {
			t.Fatalf("line %q is none of a figure", text)
		}
		if seen[m[1]] {
			t.Errorf("figure %s comes twice", m[1])
		}
		seen[m[1]] = true
	}
	want := []string{"restart", "drain", "drain-memory", "segments-after", "outcome", "outcome-allocations"}
	for _, c := range cells() {
		want = append(want, "rate-"+c.String()+"-ours")
		for _, p := range peers() {
			want = append(want, "rate-"+c.String()+"-"+word(p.name))
		}
	}
	for _, n := range []int{2, 4, 8} {
		want = append(want, fmt.Sprintf("lanes-%d-rate", n))
	}
	if b.disk.counted() {
		for _, l := range loads() {
			want = append(want, fmt.Sprintf("written-%d-%s", l.producers, l.kind), fmt.Sprintf("flushes-per-commit-%d-%s", l.producers, l.kind))
		}
		want = append(want, "poller-device", "small-commit-after")
	}
	for _, name := range want {
		if !seen[name] {
			t.Errorf("there is no figure %s", name)
		}
	}
	tables := b.tables()
	for _, p := range peers() {
		if !strings.Contains(tables, "| "+p.name+" |") {
			t.Errorf("the table has no row of %s:\n%s", p.name, tables)
		}
	}
}

func TestPartsStopWhenTheyAreTold(t *testing.T) {
	b, _ := testBench(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.measureRates(ctx); err == nil {
		t.Error("measureRates with an ended context returned nil")
	}
	if err := b.all(t.Context(), []string{"rate"}); err == nil {
		t.Error("a part that does not exist was measured")
	}
}

func TestEachLogCommitsWhatItGets(t *testing.T) {
	b, _ := testBench(t)
	for _, c := range append(peers(), rawLog(mib), b.openLanes(3)) {
		t.Run(word(c.name), func(t *testing.T) {
			dir, err := b.newDir("log")
			if err != nil {
				t.Fatal(err)
			}
			s, err := c.open(dir)
			if err != nil {
				t.Fatal(err)
			}
			p := newPayloads(incompressible)
			if turn, err := takeTurn(b.disk, s, p, 8, 50*time.Millisecond); err != nil || turn.records == 0 {
				t.Errorf("a turn of 8 producers made %d records, %v", turn.records, err)
			}
			record := p.next()
			if err := s.append(record, time.Now().Add(time.Minute)); err != nil {
				t.Error(err)
			}
			if err := s.close(); err != nil {
				t.Error(err)
			}
			if !found(t, dir, record) {
				t.Errorf("no file of %s holds the record", c.name)
			}
		})
	}
}

// found tells whether a file below dir holds data.
func found(t *testing.T, dir string, data []byte) bool {
	t.Helper()
	ok := false
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		ok = ok || strings.Contains(string(text), string(data))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return ok
}

func TestGoals(t *testing.T) {
	for _, c := range []struct {
		f      figure
		line   string
		missed bool
	}{
		{figure{"a", 40, 100, "x/s", atLeast(.45), .4}, "bench a ratio 0.4 (ours 40 x/s, reference 100 x/s) (goal ≥ .45)", true},
		{figure{"a", 50, 100, "x/s", atLeast(.45), .5}, "bench a ratio 0.5 (ours 50 x/s, reference 100 x/s) (goal ≥ .45)", false},
		{figure{"a", 7, 2, "s", atMost(3), 3.5}, "bench a ratio 3.5 (ours 7 s, reference 2 s) (goal ≤ 3)", true},
		{figure{"a", 7, 2, "s", goal{}, 3.5}, "bench a ratio 3.5 (ours 7 s, reference 2 s)", false},
	} {
		if c.f.String() != c.line || c.f.missed() != c.missed {
			t.Errorf("%+v prints %q, missed %v; want %q, %v", c.f, c.f, c.f.missed(), c.line, c.missed)
		}
	}
}

func TestAFlushPadsTheLastPageOfTheChip(t *testing.T) {
	const trace = `# tracer: nop
 ksoftirqd/1-22 [001] ..s.. 11268.173295: block_rq_complete: 7,0 WSM () 229378 + 8 be,0,3 [0]
 ksoftirqd/1-22 [001] ..s.. 11268.173295: block_rq_complete: 7,0 WS () 229390 + 32 be,0,3 [0]
 ksoftirqd/1-22 [001] ..s.. 11268.173614: block_rq_complete: 7,0 FF () 18446744073709551615 + 0 none,0,0 [0]
 ksoftirqd/1-22 [001] d.s1. 11268.173616: block_rq_complete: 7,0 WS () 0 + 0 be,0,4 [0]
 ksoftirqd/1-22 [001] ..s.. 11268.173903: block_rq_complete: 7,0 RSM () 229380 + 16 be,0,3 [0]
 ksoftirqd/1-22 [001] ..s.. 11268.173903: block_rq_complete: 7,0 FF () 18446744073709551615 + 0 none,0,0 [0]
 ksoftirqd/1-22 [001] ..s.. 11268.178537: block_rq_complete: 7,0 FWS () 229380 + 8 be,0,3 [0]
`
	nand, seen := nandBytes(trace)
	// 20 KiB and a flush are two pages, a flush alone none, 4 KiB one.
	if want := (counts{writes: 3, bytes: 24 * kib, flushes: 2}); nand != 48*kib || seen != want {
		t.Errorf("nandBytes = %d, %+v; want %d, %+v", nand, seen, 48*kib, want)
	}
}

func TestTheTablesReplaceWhatIsBetweenTheMarks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "page.md")
	markBegin, markEnd := marks(deviceEMMC)
	if err := os.WriteFile(path, []byte("before\n"+markBegin+"\nold\n"+markEnd+"\nafter\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := writeTables(path, deviceEMMC, "new\n"); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(path)
	if want := "before\n" + markBegin + "\n\nnew\n\n" + markEnd + "\nafter\n"; err != nil || string(got) != want {
		t.Errorf("the page is %q, %v; want %q", got, err, want)
	}
	if err := os.WriteFile(path, []byte("no marks"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := writeTables(path, deviceEMMC, "new"); err == nil {
		t.Error("a page without marks was written")
	}
}

func TestTelemetryHasTheSizeItIsMeasuredWith(t *testing.T) {
	for _, kind := range []string{incompressible, telemetry} {
		for i, p := range newPayloads(kind).all {
			if len(p) != payloadBytes {
				t.Fatalf("%s record %d has %d bytes, want %d", kind, i, len(p), payloadBytes)
			}
		}
	}
	p := newPayloads(telemetry)
	t.Logf("%s", p.next())
	for range 100 {
		if spaces := strings.Count(string(p.next()), " "); spaces > 32 {
			t.Fatalf("a record of telemetry is filled up with %d spaces", spaces)
		}
	}
}

// TestEveryFlushIsCounted appends one record at a time on a device of its own: each takes at least one flush, or what is
// compared is not durable.
func TestEveryFlushIsCounted(t *testing.T) {
	if err := blockdev.Usable(); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	b, _ := testBench(t)
	base := t.TempDir()
	d := &disk{}
	if err := d.mountEMMC(base, 256*mib); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.close(); err != nil {
			t.Error(err)
		}
	})
	d.findDevice()
	b.disk = d
	p := newPayloads(incompressible)
	o := options("")
	for _, c := range append(peers(), rawLog(mib), b.ourLog("ours", o)) {
		t.Run(word(c.name), func(t *testing.T) {
			dir, err := b.newDir("log")
			if err != nil {
				t.Fatal(err)
			}
			s, err := c.open(dir)
			if err != nil {
				t.Fatal(err)
			}
			turn, err := takeTurn(d, s, p, 1, 100*time.Millisecond)
			if err != nil || turn.records == 0 || turn.flushes < turn.records || turn.bytes < turn.records*payloadBytes {
				t.Errorf("one producer: %+v, %v; want a flush and all bytes for each record", turn, err)
			}
			if err := s.close(); err != nil {
				t.Error(err)
			}
		})
	}
}
