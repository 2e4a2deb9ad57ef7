package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
)

// measureBacklog lets a backlog grow while no uplink reads, starts again from a cold disk, and drains it. What has to
// have clean memory runs in a process of its own.
func (b *bench) measureBacklog(ctx context.Context) error {
	b.progress("backlog: %d MiB", b.form.backlog/mib)
	dir, err := b.newDir("backlog")
	if err != nil {
		return err
	}
	defer func() { _ = b.empty() }()
	size := strconv.FormatInt(b.form.backlog, 10)
	var built buildResult
	if err := b.child(ctx, &built, "build", dir, size, strconv.Itoa(b.form.small)); err != nil {
		return err
	}
	files, err := filepath.Glob(dir + "/*")
	if err == nil {
		err = dropCache(files)
	}
	if err != nil {
		return err
	}
	var r drainResult
	if err := b.child(ctx, &r, "drain", dir, size, strconv.Itoa(b.form.small)); err != nil {
		return err
	}
	b.reportBacklog(&built, &r)
	return nil
}

func (b *bench) reportBacklog(built *buildResult, r *drainResult) {
	const mb = 1e6
	b.note("backlog of %s MB in %d segments, written at %s MB/s; restart read %s MB; segments freed %s s after the last outcome",
		short(float64(built.Payload)/mb), r.SegmentsBefore, short(float64(built.Payload)/mb/built.Seconds), short(float64(r.OpenRead)/mb),
		short(r.FreeSeconds))
	b.report(figure{name: "restart", ours: r.OpenSeconds, reference: 1, unit: "s", goal: atMost(1)})
	if r.PlainSeconds > 0 {
		b.report(figure{
			name: "drain", ours: float64(r.Drained) / mb / r.DrainSeconds, reference: float64(r.PlainBytes) / mb / r.PlainSeconds,
			unit: "MB/s", goal: atLeast(.85),
		})
	}
	b.report(figure{
		name: "drain-memory", ours: float64(r.MostAnon-r.IdleAnon) / mb, reference: 12, unit: "MB above idle", goal: atMost(1),
	})
	b.note("drain: RssAnon %s MB idle, %s MB at most", short(float64(r.IdleAnon)/mb), short(float64(r.MostAnon)/mb))
	b.report(figure{name: "segments-after", ours: float64(r.SegmentsAfter), reference: 3, unit: "files", goal: atMost(1)})
	if built.Small > 0 {
		b.report(figure{name: "small-commit-after", ours: r.Small / 1e3, reference: built.Small / 1e3, unit: "KB", goal: atMost(1.1)})
	}
}

const childFlag = "-child"

// child runs this program again for one step and decodes what it prints.
func (b *bench) child(ctx context.Context, result any, args ...string) error {
	cmd := exec.CommandContext(ctx, b.self, append([]string{childFlag}, args...)...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, b.log
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", args[0], err)
	}
	return json.Unmarshal(out.Bytes(), result)
}

// childMain is the program when it runs as a child: STEP DIR BYTES SMALL.
func childMain(args []string) int {
	result, err := childStep(args)
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(result)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "benchwal:", err)
		return 1
	}
	return 0
}

func childStep(args []string) (any, error) {
	if len(args) != 4 {
		return nil, errors.New("a child wants a step, a directory, bytes and a number of commits")
	}
	size, err := strconv.ParseInt(args[2], 10, 64)
	if err != nil {
		return nil, err
	}
	small, err := strconv.Atoi(args[3])
	if err != nil {
		return nil, err
	}
	d := &disk{dir: args[1]}
	d.findDevice()
	ctx := context.Background()
	switch args[0] {
	case "build":
		return buildBacklog(ctx, d, size, small)
	case "drain":
		return drainBacklog(ctx, d, size, small)
	}
	return nil, fmt.Errorf("there is no step %q", args[0])
}
