package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"edgegateway/test/rig"
	"edgegateway/uplink"
)

// bench is one run of all measurements.
type bench struct {
	tb      *rig.Main
	dir     string // on the disk of the repository
	rounds  int
	records int
	drain   int // bytes of payload for the memory
	lines   []string
	above   int // figures that miss their goal
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == childFlag {
		if err := child(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, "benchuplinks:", err)
			os.Exit(1)
		}
		return
	}
	memory := flag.Bool("memory", false, "measure memory only, no throughput")
	profile := flag.String("cpuprofile", "", "write a profile of all rounds to this `file`")
	table := flag.String("table", "", "write the table between the marks in this `file`")
	rounds := flag.Int("rounds", 0, "`rounds` of each measurement; 0 for the usual")
	records := flag.Int("records", 0, "`records` of the backlog, and five times as many for Kafka; 0 for the usual")
	throughput := flag.Bool("throughput", false, "measure throughput only, no memory")
	flag.Parse()
	if *table != "" && (*throughput || *memory) {
		fmt.Fprintln(os.Stderr, "benchuplinks: the table has throughput and memory (want -table without -throughput and -memory)")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	b := &bench{tb: &rig.Main{}, rounds: 7, records: 200_000, drain: 1_000_000_000}
	if os.Getenv("BENCH_SHORT") != "" {
		b.rounds, b.records, b.drain = 3, 50_000, 200_000_000
	}
	b.rounds, b.records = cmp.Or(*rounds, b.rounds), cmp.Or(*records, b.records)
	if *throughput {
		b.drain = 0
	}
	defer b.tb.Close()
	if *memory {
		b.rounds = 0
	}
	build := filepath.Join(rig.Root(b.tb), "build")
	err := os.MkdirAll(build, 0o750)
	if err == nil {
		b.dir, err = os.MkdirTemp(build, "benchuplinks")
	}
	if err != nil {
		b.tb.Fatalf("folder for the measurements: %v", err)
	}
	b.tb.Cleanup(func() { _ = os.RemoveAll(b.dir) }) // build/ is not kept
	if *profile != "" {
		f, err := os.Create(*profile)
		if err == nil {
			err = pprof.StartCPUProfile(f)
		}
		if err != nil {
			b.tb.Fatalf("profile: %v", err)
		}
		b.tb.Cleanup(func() { pprof.StopCPUProfile(); _ = f.Close() }) // a measurement more or less
	}
	if err := b.all(ctx, flag.Args()); err != nil {
		b.tb.Fatalf("benchuplinks: %v", err)
	}
	if *memory && b.above > 0 {
		b.tb.Fatalf("benchuplinks: %d of %d uplinks need more than %d MB", b.above, len(b.lines), memoryGoal)
	}
	if *table != "" {
		if err := b.write(*table); err != nil {
			b.tb.Fatalf("benchuplinks: %v", err)
		}
	}
}

// all measures each uplink in each delivery that it has.
func (b *bench) all(ctx context.Context, only []string) error {
	logs := map[int]*backlog{} // by their size
	for _, f := range fars() {
		if len(only) > 0 && !slices.Contains(only, f.name) {
			continue
		}
		records := f.times * b.records
		if b.rounds > 0 && logs[records] == nil {
			log, err := b.backlog(filepath.Join(b.dir, "log"+strconv.Itoa(records)), records)
			if err != nil {
				return err
			}
			defer func() { _ = log.Close() }() // it is thrown away
			logs[records] = log
		}
		server := f.start(b.tb)
		for _, mode := range []uplink.Delivery{uplink.AtLeastOnce, uplink.EffectivelyOnce, uplink.ExactlyOnce} {
			s := subject{far: f, mode: mode, addr: server.Addr}
			if b.rounds == 0 || uplink.CheckPromise(f.driver(s.addr, "x"), s.promise()) != nil {
				continue
			}
			if err := b.throughput(ctx, logs[records], s); err != nil {
				return fmt.Errorf("%s: %w", s.name(), err)
			}
		}
		for _, mode := range []uplink.Delivery{uplink.AtLeastOnce, uplink.ExactlyOnce} {
			s := subject{far: f, mode: mode, addr: server.Addr}
			if b.drain == 0 || uplink.CheckPromise(f.driver(s.addr, "x"), s.promise()) != nil {
				continue
			}
			if err := b.memory(ctx, s); err != nil {
				return fmt.Errorf("memory of %s: %w", s.name(), err)
			}
		}
		server.Stop()
	}
	return nil
}

// throughput sends the backlog and the same bytes by hand, in turns.
func (b *bench) throughput(ctx context.Context, log *backlog, s subject) error {
	var ours, bare, ratios []float64
	for round := range b.rounds {
		var rates [2]float64
		for turn := range 2 {
			which := (round + turn) % 2
			place := fmt.Sprintf("%s-%d-%d", strings.ReplaceAll(s.name(), "_", "-"), round, which)
			if err := s.far.prepare(ctx, s.addr, place, s.mode); err != nil {
				return err
			}
			runtime.GC()
			begun := time.Now()
			var err error
			if which == 0 {
				err = log.send(ctx, s, place)
			} else {
				err = s.far.bare(ctx, s.addr, place, log.payloads)
			}
			if err != nil {
				return err
			}
			rates[which] = float64(len(log.payloads)) / time.Since(begun).Seconds()
			if err := s.far.forget(ctx, s.addr, place); err != nil {
				return err
			}
		}
		ours, bare, ratios = append(ours, rates[0]), append(bare, rates[1]), append(ratios, rates[0]/rates[1])
	}
	b.say(s.name(), median(ratios), median(ours), median(bare), "records/s", "≥ .8")
	return nil
}

// say prints a figure and keeps it for the table.
func (b *bench) say(name string, ratio, ours, reference float64, unit, goal string) {
	fmt.Fprintf(os.Stdout, "bench %s ratio %s (ours %s %s, reference %s %s)\n", name, short(ratio), short(ours), unit, short(reference), unit)
	b.lines = append(b.lines, fmt.Sprintf("| `%s` %s | %s | %s | %s | %s |", name, unit, short(ours), short(reference), short(ratio), goal))
}

// write puts the table between its marks in a page.
func (b *bench) write(path string) error {
	const begin, end = "<!-- bench-uplinks: begin, written by make bench-uplinks -->\n", "<!-- bench-uplinks: end -->\n"
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	head, rest, ok := strings.Cut(string(text), begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		return fmt.Errorf("%s has not both marks, %q and %q", path, begin, end)
	}
	table := fmt.Sprintf("\nMeasured on %s: %s, %d cores, %d records (Kafka: five times as many) in %d rounds.\n\n| figure | ours | reference | ratio | goal |\n|---|---|---|---|---|\n%s\n\n",
		time.Now().UTC().Format("2 January 2006"), runtime.GOARCH, runtime.NumCPU(), b.records, b.rounds, strings.Join(b.lines, "\n"))
	return os.WriteFile(path, []byte(head+begin+table+end+tail), 0o644) //nolint:gosec // a page of the docs
}

// short writes a number with three digits that count.
func short(x float64) string {
	if x >= 100 {
		return strconv.FormatFloat(x, 'f', 0, 64)
	}
	return strconv.FormatFloat(x, 'g', 3, 64)
}

func median(values []float64) float64 {
	v := slices.Sorted(slices.Values(values))
	if n := len(v); n%2 == 0 {
		return (v[n/2-1] + v[n/2]) / 2
	}
	return v[len(v)/2]
}
