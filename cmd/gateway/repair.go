package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"edgegateway/pipeline"
	"edgegateway/wal"
)

// verify reads all of the log in dir, or of each lane below it, and lists what is wrong. It changes and locks nothing.
func verify(dir string, asJSON bool, stdout, stderr io.Writer) error {
	dirs, err := laneDirs(dir)
	if err != nil {
		return err
	}
	var reports []wal.VerifyReport
	var failed error
	for _, d := range dirs {
		p := newProgressLine("verify "+filepath.Base(d), stderr)
		r, err := wal.Verify(d, p.tell)
		p.end()
		if err == nil {
			err = r.Err()
		}
		failed = errors.Join(failed, err)
		reports = append(reports, r)
	}
	if asJSON {
		e := json.NewEncoder(stdout)
		e.SetIndent("", "  ")
		return errors.Join(failed, e.Encode(reports))
	}
	for i := range reports {
		printVerified(stdout, &reports[i])
	}
	return failed
}

func printVerified(w io.Writer, r *wal.VerifyReport) {
	fmt.Fprintf(w, "lane %s (%s)\n", filepath.Base(r.Dir), r.Dir)
	for _, s := range r.Segments {
		for _, p := range s.Problems {
			fmt.Fprintf(w, "  %s: %v\n", s.Name, p)
		}
	}
	for _, p := range r.Problems {
		fmt.Fprintf(w, "  %v\n", p)
	}
	if n := r.Count(); n > 0 {
		fmt.Fprintf(w, "  %d records in %d segments, %d problems; to go on: edge-gateway salvage %s\n", r.Records, len(r.Segments), n, r.Dir)
	} else if len(r.Segments) > 0 {
		fmt.Fprintf(w, "  %d records in %d segments, all sound\n", r.Records, len(r.Segments))
	}
}

// salvage brings the damaged log in dir into a state that opens.
func salvage(dir string, dryRun bool, stdout, stderr io.Writer) error {
	dirs, err := laneDirs(dir)
	if err != nil {
		return err
	}
	if len(dirs) > 1 {
		return fmt.Errorf("%s holds %d lanes: name the one to be salvaged, such as %s", dir, len(dirs), dirs[0])
	}
	p := newProgressLine("salvage "+filepath.Base(dirs[0]), stderr)
	r, err := wal.Salvage(dirs[0], wal.SalvageOptions{DryRun: dryRun}, p.tell)
	p.end()
	if err != nil {
		return err
	}
	printSalvaged(stdout, &r, dryRun)
	return nil
}

func printSalvaged(w io.Writer, r *wal.SalvageReport, dryRun bool) {
	fmt.Fprintf(w, "lane %s (%s)\n", filepath.Base(r.Dir), r.Dir)
	for _, p := range r.Problems {
		fmt.Fprintf(w, "  %s\n", p)
	}
	if len(r.Problems) == 0 {
		fmt.Fprintln(w, "  the log is sound, nothing was changed")
		return
	}
	fmt.Fprintf(w, "  records recovered from damaged files: %d\n", r.Recovered)
	for _, l := range r.Lost {
		fmt.Fprintf(w, "  lost: %s %d to %d\n", l.Stream, l.First, l.Last)
	}
	if len(r.Lost) == 0 {
		fmt.Fprintln(w, "  lost: nothing that an uplink has not confirmed")
	}
	if r.Skipped > 0 {
		fmt.Fprintf(w, "  the end of the log could not be read: the last %d of each range are numbers left out to be sure\n", r.Skipped)
	}
	if r.NoCursors {
		fmt.Fprintln(w, "  where the uplinks stood could not be read: each begins at the oldest record again")
	} else if r.CursorsAt < r.Last {
		fmt.Fprintf(w, "  uplinks and state are as of record %d of %d: some records are sent again\n", r.CursorsAt, r.Last)
	}
	if r.StateIncomplete {
		fmt.Fprintln(w, "  a part of the state (processors, positions of sources) is lost or older")
	}
	if dryRun {
		fmt.Fprintln(w, "  nothing was changed (dry run)")
		return
	}
	for i, k := range r.Kept {
		fmt.Fprintf(w, "  kept: %s as %s\n", r.Damaged[i], k)
	}
	fmt.Fprintln(w, "  salvaged; start the gateway")
}

// export writes the records of a stream as JSON lines.
func export(dir string, sel wal.Selection, file string, stdout, stderr io.Writer) (err error) {
	if sel.Stream == "" {
		return errors.New("which stream? give -stream NAME; edge-gateway inspect lists them")
	}
	dirs, err := laneDirs(dir)
	if err != nil {
		return err
	}
	if len(dirs) > 1 {
		return fmt.Errorf("%s holds %d lanes: name the one to export from, such as %s", dir, len(dirs), dirs[0])
	}
	out := stdout
	if file != "" {
		f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, f.Sync(), f.Close()) }()
		out = f
	}
	w := bufio.NewWriterSize(out, 64<<10)
	p := newProgressLine("export "+sel.Stream, stderr)
	n := int64(0)
	err = wal.Export(dirs[0], sel, func(r wal.Exported) error {
		n++
		p.tell(n, 0)
		return json.NewEncoder(w).Encode(exportedLine(&r))
	})
	err = errors.Join(err, w.Flush())
	p.end()
	fmt.Fprintf(stderr, "%d records\n", n)
	return err
}

// exported is one line of export. The message is as the far side gets it (docs/payload.md), but for the gateway's id, which
// the log does not know.
type exported struct {
	Stream  string          `json:"stream"`
	Epoch   uint64          `json:"epoch"`
	Seq     uint64          `json:"seq"`
	Message json.RawMessage `json:"message,omitempty"`
	Base64  []byte          `json:"base64,omitempty"` // a record that cannot be decoded, as it is stored
}

func exportedLine(r *wal.Exported) exported {
	e := exported{Stream: r.Stream, Epoch: r.Epoch, Seq: r.Seq}
	m, err := pipeline.Decode(r.Data)
	if err != nil {
		e.Base64 = r.Data
		return e
	}
	e.Message = pipeline.AppendJSON(nil, pipeline.RecordID{Stream: r.Stream, Epoch: r.Epoch, Seq: r.Seq}, &m)
	return e
}

// progressLine tells somebody who waits how far a command is: on a terminal in one line that changes, elsewhere every 5 s.
type progressLine struct {
	what     string
	w        io.Writer
	terminal bool
	every    time.Duration
	last     time.Time
	shown    bool
}

func newProgressLine(what string, w io.Writer) *progressLine {
	p := &progressLine{what: what, w: w, every: 5 * time.Second, last: time.Now()}
	if f, ok := w.(*os.File); ok {
		if fi, err := f.Stat(); err == nil && fi.Mode()&os.ModeCharDevice != 0 {
			p.terminal, p.every = true, 200*time.Millisecond
		}
	}
	return p
}

// tell is told how far it is: of a total, or of a total that nobody knows (0).
func (p *progressLine) tell(done, total int64) {
	now := time.Now()
	if now.Sub(p.last) < p.every {
		return
	}
	p.last, p.shown = now, true
	begin, end := "", "\n"
	if p.terminal {
		begin, end = "\r", ""
	}
	if total > 0 {
		fmt.Fprintf(p.w, "%s%s: %d %%%s", begin, p.what, done*100/total, end)
	} else {
		fmt.Fprintf(p.w, "%s%s: %d%s", begin, p.what, done, end)
	}
}

func (p *progressLine) end() {
	if p.shown && p.terminal {
		fmt.Fprintln(p.w)
	}
}
