package wal

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"go.etcd.io/bbolt"
)

// This file records what a log asks of its disk; medium_test.go rebuilds what a power cut may leave of it.

// event is one thing that the log did to its directory, or a mark of the test's.
type event struct {
	kind eventKind
	file int    // write, flush, grow: number of the file
	off  int64  // write: offset; grow: new size
	data []byte // write
	name string // create, remove, rename
	to   string // rename
}

type eventKind uint8

const (
	mark    eventKind = iota
	create            // a name for a new file
	write             // bytes of a file
	grow              // another size of a file
	flush             // fdatasync or fsync of a file has returned
	rename            // another name
	remove            // a name less
	syncDir           // fsync of the directory has returned
)

// Recorder notes in one line of events what a log does to its directory.
type Recorder struct {
	dir string

	mu     sync.Mutex // guards the fields below
	events []event
	names  map[string]int // the directory as the log sees it
	sizes  []int64        // of the files
	faults []string
}

// NewRecorder returns a recorder for a log in dir.
func NewRecorder(dir string) *Recorder { return &Recorder{dir: dir, names: map[string]int{}} }

// Mark gives the present a number: what carries a smaller one was before it.
func (r *Recorder) Mark() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, event{})
	return len(r.events) - 1
}

// Len returns the number of events so far.
func (r *Recorder) Len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.events)
}

// Faults says what was found that would make the record worthless.
func (r *Recorder) Faults() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.faults
}

// Under returns o with everything that changes the directory recorded.
func (r *Recorder) Under(o Options) Options {
	o.opened = r.opened
	note := func(e event, do func() error) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if err := do(); err != nil {
			return err
		}
		r.events = append(r.events, e)
		return nil
	}
	o.files = systemFiles()
	o.files = fileOps{
		writeAt: o.files.writeAt, syncFile: o.files.syncFile,
		rename: func(from, to string) error {
			e := event{kind: rename, name: filepath.Base(from), to: filepath.Base(to)}
			return note(e, func() error {
				r.names[e.to] = r.names[e.name]
				delete(r.names, e.name)
				return os.Rename(from, to)
			})
		},
		remove: func(path string) error {
			e := event{kind: remove, name: filepath.Base(path)}
			return note(e, func() error { delete(r.names, e.name); return os.Remove(path) })
		},
		sync: func(path string) error {
			e := event{kind: mark} // the directory above
			switch {
			case path == r.dir:
				e.kind = syncDir
			case strings.HasSuffix(path, ".seg"):
				r.mu.Lock()
				e = event{kind: flush, file: r.names[filepath.Base(path)]}
				r.mu.Unlock()
			}
			return note(e, func() error { return syncPath(path) })
		},
	}
	return o
}

// opened follows a file that bbolt has opened for writing. bbolt has flushed what it wrote before.
func (r *Recorder) opened(db *bbolt.DB) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if db.NoSync || db.NoGrowSync {
		r.faults = append(r.faults, "bbolt was told not to flush")
	}
	name := filepath.Base(db.Path())
	n, known := r.names[name]
	if !known {
		content, err := os.ReadFile(db.Path())
		if err != nil {
			r.faults = append(r.faults, err.Error())
		}
		n = r.begun(name, content)
	}
	to, file := writePath(db)
	old := *to
	*to = func(b []byte, off int64) (int, error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if fi, err := file.Stat(); err == nil && fi.Size() != r.sizes[n] {
			r.sizes[n] = fi.Size()
			r.events = append(r.events, event{kind: grow, file: n, off: fi.Size()}, event{kind: flush, file: n})
		}
		// bbolt flushes after the pages and after the meta page, before it does anything else.
		meta := off < 2*pageSize
		if meta {
			r.events = append(r.events, event{kind: flush, file: n})
		}
		r.events = append(r.events, event{kind: write, file: n, off: off, data: append([]byte(nil), b...)})
		if meta {
			r.events = append(r.events, event{kind: flush, file: n})
		}
		return old(b, off)
	}
}

// Killed returns a recorder that goes on, with a copy in dir, after the process ended at the cut: what it wrote is still in
// the page cache.
func (r *Recorder) Killed(cut int, dir string) *Recorder {
	d := r.DiskAt(cut, Control{})
	k := &Recorder{dir: dir, events: slices.Clone(r.events[:cut]), names: d.names(len(d.moves))}
	for _, f := range d.files {
		k.sizes = append(k.sizes, int64(len(f.content(f.waiting))))
	}
	return k
}

// Resume begins with what is in the directory, all of it safe.
func (r *Recorder) Resume() error {
	entries, err := os.ReadDir(r.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		content, err := os.ReadFile(filepath.Join(r.dir, e.Name()))
		if err != nil {
			return err
		}
		r.begun(e.Name(), content)
	}
	r.events = append(r.events, event{kind: syncDir})
	return nil
}

// begun notes a file that is there, and flushed.
func (r *Recorder) begun(name string, content []byte) int {
	n := len(r.sizes)
	r.names[name], r.sizes = n, append(r.sizes, int64(len(content)))
	r.events = append(r.events, event{kind: create, file: n, name: name}, event{kind: grow, file: n, off: int64(len(content))},
		event{kind: write, file: n, data: content}, event{kind: flush, file: n})
	return n
}

// TakeNow returns what Read would, without waiting.
func TakeNow(c *Cursor) ([]Record, error) { return c.take(c.l.o.Window, MaxCommit) }

// KeepOpen has each sealed segment opened at most once until the log is closed.
func KeepOpen(l *Log) {
	for _, s := range l.segs {
		s.hold()
	}
}
