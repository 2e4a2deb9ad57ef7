package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"edgegateway/test/blockcut/blockdev"
)

// bench is one run of all measurements.
type bench struct {
	disk    *disk
	form    form
	self    string // the program itself, started again where memory has to be clean
	out     io.Writer
	log     io.Writer
	made    int
	figures []figure
	notes   []string
	rates   []cellResult
}

// form says how long everything takes.
type form struct {
	name    string
	turn    time.Duration // of one subject in one round
	rounds  int
	steady  time.Duration // for each load of the steady state
	backlog int64         // bytes of payload
	small   int           // commits of one record before and after the backlog
	wear    time.Duration
	image   int64 // bytes of the device
	raw     int64 // bytes of the reference's file
	fresh   bool  // leave logs as they are when new
}

const (
	kib = 1 << 10
	mib = 1 << 20
	gib = 1 << 30
)

func forms() (full, brief form) {
	full = form{
		name: "full", turn: 250 * time.Millisecond, rounds: 9, steady: 8 * time.Second, backlog: gib, small: 400,
		wear: time.Minute, image: 3 * gib / 2, raw: 192 * mib,
	}
	brief = form{
		name: "short", turn: 100 * time.Millisecond, rounds: 3, steady: 1500 * time.Millisecond, backlog: 128 * mib, small: 100,
		wear: 8 * time.Second, image: 640 * mib, raw: 64 * mib,
	}
	return full, brief
}

func main() {
	blockdev.Main()
	if len(os.Args) > 1 && os.Args[1] == childFlag {
		os.Exit(childMain(os.Args[2:]))
	}
	err := run()
	if err != nil {
		fmt.Fprintln(os.Stderr, "benchwal:", err)
		os.Exit(1)
	}
}

func run() error {
	device := flag.String("device", deviceLoop, "`kind` of device to make: loop, or emmc, in memory and as slow as a flash chip")
	dir := flag.String("dir", "", "measure in this `directory`, on a device made by somebody else")
	table := flag.String("table", "", "write the tables between the marks in this `file`; not in the short form")
	strict := flag.Bool("strict", false, "exit with 1 when a figure falls short of its goal")
	flag.Parse()
	f, brief := forms()
	if os.Getenv("BENCH_SHORT") != "" {
		f = brief
	}
	if text := os.Getenv("BENCH_GB"); text != "" {
		n, err := strconv.ParseFloat(text, 64)
		if err != nil || n <= 0 {
			return fmt.Errorf("BENCH_GB is %q (want a number of gigabytes, such as 1)", text)
		}
		f.image += int64(n*gib) - f.backlog
		f.backlog = int64(n * gib)
	}
	if *device != deviceLoop && *device != deviceEMMC {
		return fmt.Errorf("-device is %q (want %s or %s)", *device, deviceLoop, deviceEMMC)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	b := &bench{form: f, self: self, out: os.Stdout, log: os.Stderr}
	if b.disk, err = openDisk(*device, *dir, filepath.Join(root(), "build"), f.image, b.progress); err != nil {
		return err
	}
	err = b.all(ctx, flag.Args())
	err = errors.Join(err, b.disk.close())
	if err != nil {
		return err
	}
	if *table != "" && f.name == "full" && flag.NArg() == 0 {
		if err := writeTables(*table, *device, b.tables()); err != nil {
			return err
		}
	}
	missed := b.missed()
	fmt.Fprintf(b.log, "%d figures, %d short of their goal\n", len(b.figures), len(missed))
	if *strict && len(missed) > 0 {
		return fmt.Errorf("short of their goal: %q", missed)
	}
	return nil
}

// part is a group of figures that can be measured alone.
type part struct {
	name    string
	measure func(context.Context) error
}

// all makes the measurements, or those that are named.
func (b *bench) all(ctx context.Context, names []string) error {
	parts := []part{
		{"rates", b.measureRates},
		{"steady", b.measureSteady},
		{"backlog", b.measureBacklog},
		{"lanes", b.measureLanes},
		{"outcomes", b.measureOutcomes},
		{"wear", b.measureWear},
	}
	for _, name := range names {
		if !slices.ContainsFunc(parts, func(p part) bool { return p.name == name }) {
			return fmt.Errorf("there is no part %q", name)
		}
	}
	for _, p := range parts {
		if len(names) > 0 && !slices.Contains(names, p.name) {
			continue
		}
		began := time.Now()
		if err := p.measure(ctx); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		b.progress("%s: %s", p.name, time.Since(began).Round(100*time.Millisecond))
	}
	return nil
}

func (b *bench) missed() []string {
	var out []string
	for _, f := range b.figures {
		if f.missed() {
			out = append(out, f.name)
		}
	}
	return out
}

// newDir makes an empty directory on the device. What is in it has to be gone again before the next part needs the room.
func (b *bench) newDir(name string) (string, error) {
	b.made++
	dir := filepath.Join(b.disk.dir, fmt.Sprintf("%03d-%s", b.made, name))
	return dir, os.Mkdir(dir, 0o750)
}

// root is the repository's folder: two above the program's when it runs there, as make has it, or the present one.
func root() string {
	if _, err := os.Stat("../../wal"); err == nil {
		return "../.."
	}
	return "."
}
