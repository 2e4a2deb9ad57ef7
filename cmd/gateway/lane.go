package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"edgegateway/pipeline"
	"edgegateway/wal"
)

// laneRun is one lane of the gateway: its log once it could be opened, or the reason why not.
type laneRun struct {
	name   string
	dir    string
	config Lane
	log    *slog.Logger
	quotas map[string]int64 // of its streams
	gaps   map[string]bool  // its streams that want gap records
	medium mediumWatch

	fault func(op string) error // of tests; see wal.Options.Fault

	// One goroutine at a time uses these: the one that keeps the lane open.
	distrusted bool // the log has stopped: it is opened from the medium only
	salvages   int  // in a row

	mu      sync.Mutex // guards the rest
	wal     *wal.Log
	err     error
	letters map[[2]string]uint64 // dead letters of each uplink and stream
	counted int                  // of how many dead letters letters was made
	newest  uint64               // and the number of the newest by then
	running *attached            // what runs on the open log
}

// open opens the lane's log. A lane of a new gateway, or one whose log was lost, begins a new epoch.
func (l *laneRun) open(epochs *epochFile) error {
	epoch := epochs.next()
	log, err := wal.Open(l.dir, l.options(epoch))
	if err == nil && log.Epoch() == epoch {
		// The epoch must be on the disk before a record bears it, or a log lost together with a clock could repeat it.
		if err = epochs.save(epoch); err != nil {
			err = errors.Join(err, log.Close())
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = err
	if err == nil {
		l.wal = log
	}
	return err
}

// options are the lane's settings in the words of the log. What has stopped is not believed until all of it was read from
// the medium.
func (l *laneRun) options(epoch uint64) wal.Options {
	o := wal.Options{
		MaxBytes: int64(l.config.MaxBytes), MaxAge: l.config.MaxAge, Full: wal.Policy(l.config.WhenFull),
		MaxDelay: l.config.MaxDelay, UrgentDelay: l.config.UrgentDelay, Codec: wal.Codec(l.config.Codec),
		Verify: wal.VerifyMode(l.config.Verify), NewEpoch: epoch, Log: l.log, Fault: l.fault,
		Quotas: l.quotas, Gap: l.gapRecord,
	}
	if l.distrusted {
		o.FromMedium, o.Verify = true, wal.VerifyFull
	}
	return o
}

// opened returns the log, or nil and the reason.
func (l *laneRun) opened() (*wal.Log, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.wal, l.err
}

// deadLetters returns how many dead letters an uplink of a stream has. They are counted anew only when there are others
// than at the last call: there may be a megabyte of them, and the page asks once a second.
func (l *laneRun) deadLetters(uplink, stream string) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.wal == nil {
		return 0
	}
	if st := l.wal.Stats(); l.letters == nil || st.DeadLetters != l.counted || st.LastLetter != l.newest {
		l.letters, l.counted, l.newest = make(map[[2]string]uint64), st.DeadLetters, st.LastLetter
		l.wal.DeadLetters(func(d wal.DeadLetter) bool {
			l.letters[[2]string{d.Uplink, d.Stream}]++
			return true
		})
	}
	return l.letters[[2]string{uplink, stream}]
}

// wrapLane is what stands between the pipeline and the log: nothing, but in the build of the negative control (ack_early.go).
var wrapLane = func(l pipeline.Lane) pipeline.Lane { return l }

// walLane is a lane's log as the pipeline sees it.
type walLane struct{ log *wal.Log }

// Append implements pipeline.Lane.
func (w walLane) Append(ctx context.Context, entries []pipeline.Entry, changes []pipeline.Change, urgent bool, done func(error)) error {
	b := wal.Batch{Urgent: urgent, Entries: make([]wal.Entry, len(entries)), State: make([]wal.Change, len(changes))}
	for i, e := range entries {
		b.Entries[i] = wal.Entry(e)
	}
	for i, c := range changes {
		b.State[i] = wal.Change(c)
	}
	return pipelineError(w.log.Append(ctx, b, func(err error) { done(pipelineError(err)) }))
}

// State implements pipeline.Lane.
func (w walLane) State(prefix string, yield func(key string, value []byte) bool) {
	w.log.State(prefix, yield)
}

// pipelineError says an error of the log in the words that sources know.
func pipelineError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, wal.ErrFull):
		return fmt.Errorf("%w: %w", pipeline.ErrFull, err)
	case errors.Is(err, wal.ErrStopped), errors.Is(err, wal.ErrClosed), errors.Is(err, wal.ErrDamaged):
		return fmt.Errorf("%w: %w", pipeline.ErrStopped, err)
	default:
		return err
	}
}

// epochFile remembers the highest epoch that any lane of this gateway was given, so that a lane whose log is lost begins a
// higher one even where the clock has been set back since. The next epoch is the time in seconds since 1970: it also grows
// when the whole disk was replaced.
type epochFile struct {
	path string

	mu    sync.Mutex // guards the two below
	last  uint64     // highest one given out
	saved uint64     // highest one on the disk
}

func openEpochs(stateDir string) (*epochFile, error) {
	e := &epochFile{path: filepath.Join(stateDir, "epoch")}
	text, err := os.ReadFile(e.path)
	if errors.Is(err, os.ErrNotExist) {
		return e, nil
	}
	if err != nil {
		return nil, err
	}
	if e.last, err = strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64); err != nil {
		return nil, fmt.Errorf("%s: %w (want the highest epoch used so far; remove the file if the logs are gone too)", e.path, err)
	}
	return e, nil
}

// next returns an epoch that no lane has had, and gives it to nobody else.
func (e *epochFile) next() uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.last = max(uint64(max(time.Now().Unix(), 0)), buildTime, e.last+1)
	return e.last
}

// save makes epoch durable.
func (e *epochFile) save(epoch uint64) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if epoch <= e.saved {
		return nil
	}
	if err := writeDurably(e.path, []byte(strconv.FormatUint(epoch, 10)+"\n")); err != nil {
		return err
	}
	e.saved = epoch
	return nil
}

// buildTime is a time that has passed wherever this code runs, for machines that start in 1970.
const buildTime = 1793491200 // 2026-11-01

// writeDurably replaces a file so that a power cut leaves the old content or the new one.
func writeDurably(path string, content []byte) error {
	tmp, err := os.OpenFile(path+".tmp", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = tmp.Write(content)
	if err = errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return err
	}
	if err := os.Rename(tmp.Name(), path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
