package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"edgegateway/pipeline"
	"edgegateway/wal"
)

// inspect shows the log in dir, or each lane where dir is the gateway's state folder or its folder of lanes. It changes and
// locks nothing.
func inspect(dir string, asJSON bool, w io.Writer) error {
	reports, failed := inspectLanes(dir)
	if asJSON {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return errors.Join(failed, e.Encode(reports))
	}
	for i := range reports {
		failed = errors.Join(failed, printReport(w, &reports[i]))
	}
	return failed
}

// inspectLanes reads the logs in dir. Of a damaged one it returns what could be read.
func inspectLanes(dir string) (reports []wal.Report, failed error) {
	dirs, err := laneDirs(dir)
	if err != nil {
		return nil, err
	}
	for _, d := range dirs {
		r, err := wal.Inspect(d)
		failed = errors.Join(failed, err)
		if len(r.Segments) > 0 {
			reports = append(reports, r)
		}
	}
	return reports, failed
}

func laneName(r *wal.Report) string { return filepath.Base(r.Dir) }

func laneDirs(dir string) ([]string, error) {
	if lanes := filepath.Join(dir, "lanes"); isDir(lanes) {
		dir = lanes
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var below []string
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".seg") {
			return []string{dir}, nil
		}
		if e.IsDir() {
			below = append(below, filepath.Join(dir, e.Name()))
		}
	}
	if len(below) == 0 {
		return []string{dir}, nil // the log says what is missing
	}
	return below, nil
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

func printReport(w io.Writer, r *wal.Report) error {
	holder := "not in use"
	if r.Holder != 0 {
		holder = fmt.Sprintf("in use by process %d", r.Holder)
	}
	fmt.Fprintf(w, "lane %s (%s, %s)\n", laneName(r), r.Dir, holder)
	fmt.Fprintf(w, "  epoch %d, %d records in %d segments, %s on disk, state %d keys of %s, refused %d\n",
		r.Epoch, r.Records, len(r.Segments), bytesText(r.Bytes), r.StateKeys, bytesText(int64(r.StateBytes)), r.Refused)
	fmt.Fprintf(w, "  written since it began %s, in flash pages %s\n", bytesText(int64(r.Written)), bytesText(int64(r.Flash)))
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "  SEGMENT\tFIRST\tLAST\tSIZE\tCREATED\tNEWEST RECORD")
	for _, s := range r.Segments {
		fmt.Fprintf(t, "  %s\t%d\t%d\t%s\t%s\t%s\n", s.Name, s.First, s.Last, bytesText(s.Bytes), timeText(s.Created), timeText(s.Newest))
	}
	fmt.Fprintln(t, "  STREAM\tRECORDS\tBYTES\tDROPPED\tREFUSED\t")
	for _, s := range r.Streams {
		fmt.Fprintf(t, "  %s\t%d\t%s\t%d\t%d\t\n", s.Name, s.Records, bytesText(int64(s.Bytes)), s.Dropped, s.Refused)
	}
	fmt.Fprintln(t, "  CURSOR\tSTREAM\tUP TO\tBACKLOG\t\t")
	for _, c := range r.Cursors {
		name, after, second := wal.ParseSplit(c.Uplink)
		switch { // new records go beside a backlog (backfill: live_first)
		case second:
			name += fmt.Sprintf(" (new records, from %d)", after+1)
		case c.Until > 0:
			name += fmt.Sprintf(" (backlog, to %d)", c.Until)
		}
		fmt.Fprintf(t, "  %s\t%s\t%d\t%d\t\t\n", name, c.Stream, c.Seq, c.Lag.Records)
	}
	err := t.Flush()
	for _, d := range r.Ranges {
		fmt.Fprintf(w, "  dropped: %s %d to %d at %s (%v)\n", d.Stream, d.First, d.Last, timeText(d.When), d.Why)
	}
	for _, d := range r.Letters {
		fmt.Fprintf(w, "  dead letter: %s of %s, record %d, refused %s: %s\n", d.Stream, d.Uplink, d.Seq, timeText(d.Refused), d.Reason)
	}
	if r.Lost > 0 {
		fmt.Fprintf(w, "  dead letters that went because there were too many: %d\n", r.Lost)
	}
	return err
}

func bytesText(n int64) string {
	for _, unit := range []pipeline.Size{1 << 30, 1 << 20, 1 << 10} {
		if n >= int64(unit) {
			return fmt.Sprintf("%.1f%s", float64(n)/float64(unit), unit.String()[1:])
		}
	}
	return fmt.Sprintf("%dB", n)
}

func timeText(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.Local().Format(time.DateTime)
}
