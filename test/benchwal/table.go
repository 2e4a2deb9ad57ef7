package main

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// marks are what the tables of a device stand between.
func marks(device string) (begin, end string) {
	return "<!-- bench-wal " + device + ": begin, written by make bench-wal -->", "<!-- bench-wal " + device + ": end -->"
}

// writeTables puts text between the two marks of a file.
func writeTables(path, device, text string) error {
	markBegin, markEnd := marks(device)
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	head, rest, ok := strings.Cut(string(old), markBegin)
	_, tail, ok2 := strings.Cut(rest, markEnd)
	if !ok || !ok2 {
		return fmt.Errorf("%s has not both marks, %q and %q", path, markBegin, markEnd)
	}
	return os.WriteFile(path, []byte(head+markBegin+"\n\n"+text+"\n"+markEnd+tail), 0o644)
}

// tables are all figures in Markdown.
func (b *bench) tables() string {
	var s strings.Builder
	var un unix.Utsname
	_ = unix.Uname(&un)
	fmt.Fprintf(&s, "Measured on %s: %s, %d cores, Linux %s, %s.\n\n", time.Now().UTC().Format("2 January 2006"), runtime.GOARCH,
		runtime.NumCPU(), unix.ByteSliceToString(un.Release[:]), b.disk.what)
	if len(b.rates) > 0 {
		b.peerTable(&s)
	}
	s.WriteString("| figure | ours | reference | ratio | goal |\n|---|---|---|---|---|\n")
	for _, f := range b.figures {
		if strings.HasPrefix(f.name, "rate-") && !strings.HasSuffix(f.name, "-ours") && !strings.HasSuffix(f.name, "-ours-none") {
			continue // it stands in the first table
		}
		goal := f.goal.String()
		if f.missed() {
			goal += " **missed**"
		}
		fmt.Fprintf(&s, "| `%s` %s | %s | %s | %s | %s |\n", f.name, f.unit, short(f.ours), short(f.reference), short(f.ratio), goal)
	}
	s.WriteString("\nCounted besides:\n\n")
	for _, n := range b.notes {
		fmt.Fprintf(&s, "- %s\n", n)
	}
	return s.String()
}

// peerTable has a row for each log and three numbers for each load: the ratio of its records/s to the reference's, bytes
// on the device per byte of payload, and flushes per 1000 records.
func (b *bench) peerTable(s *strings.Builder) {
	s.WriteString("| log | used how |")
	for _, c := range b.rates {
		fmt.Fprintf(s, " %d × %s |", c.producers, c.kind)
	}
	s.WriteString("\n|---|---|" + strings.Repeat("---|", len(b.rates)) + "\n")
	for i, first := range b.rates[0].rows {
		fmt.Fprintf(s, "| %s | %s |", first.name, first.how)
		for j := range b.rates {
			r := &b.rates[j].rows[i]
			fmt.Fprintf(s, " **%s** (%s/s)", short(median(r.ratios)), short(median(r.rates)))
			if b.disk.counted() {
				fmt.Fprintf(s, " · %s · %s", short(r.amplification()), short(1000*r.flushesPerRecord()))
			}
			s.WriteString(" |")
		}
		s.WriteString("\n")
	}
	s.WriteString("\n")
}
