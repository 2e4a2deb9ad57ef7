package wal

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"

	"go.etcd.io/bbolt"
)

// This file records what a log asks of its disk; medium_test.go rebuilds what a power cut may leave of it.

// event is one thing that the log did to its directory, or a mark of the test's.
type event struct {
	kind   eventKind
	file   int    // write, flush, grow: number of the file
	off    int64  // write: offset; grow: new size
	data   []byte // write
	name   string // create, remove, rename
	to     string // rename
	before bool   // flush: of bbolt's pages, before the meta page that points to them
	doubt  bool   // write, grow: a flush of it has failed, and what comes later does not make it safe
}

type eventKind uint8

const (
	mark     eventKind = iota
	create             // a name for a new file
	write              // bytes of a file
	grow               // another size of a file
	flush              // fdatasync or fsync of a file has returned
	badFlush           // the same, with an error
	rename             // another name
	remove             // a name less
	syncDir            // fsync of the directory has returned
)

// Call is a kind of call that a log makes of its disk, and that may fail.
type Call string

// The calls.
const (
	PagesWrite Call = "write of pages"
	MetaWrite  Call = "write of a meta page"
	PlainWrite Call = "write of a file that bbolt does not have open"
	Create     Call = "creation of a file"
	FirstWrite Call = "first write of a file that bbolt makes" // can only fail with ENOSPC
	PagesFlush Call = "flush of pages"
	MetaFlush  Call = "flush of a meta page"
	PlainFlush Call = "flush of a file"
	DirFlush   Call = "flush of the directory"
	Rename     Call = "rename"
	Remove     Call = "unlink"
)

// Recorder notes in one line of events what a log does to its directory, and makes calls fail.
type Recorder struct {
	dir  string
	fail func(Call) error // asked before each call, under mu

	mu     sync.Mutex // guards the fields below
	events []event
	names  map[string]int // the directory as the log sees it
	inodes map[uint64]int // of the files that have a name
	sizes  []int64        // of the files
	broken []brokenFile
	faults []string
	failed int // event before which the first call was made to fail; -1: none was
}

// brokenFile is a file whose next flush fails: its number leads elsewhere, and where it led is kept.
type brokenFile struct {
	n, kept int
	file    *os.File
}

// NewRecorder returns a recorder for a log in dir.
func NewRecorder(dir string) *Recorder {
	return &Recorder{
		dir: dir, names: map[string]int{}, inodes: map[uint64]int{}, fail: func(Call) error { return nil }, failed: -1,
	}
}

// OnCall has fail asked before each call. Where it returns an error, the call fails: with this error, or, where a flush of
// bbolt's is to fail, with one that the kernel has.
func (r *Recorder) OnCall(fail func(Call) error) { r.fail = fail }

func (r *Recorder) ask(c Call) error {
	err := r.fail(c)
	if err != nil && r.failed < 0 {
		r.failed = len(r.events)
	}
	return err
}

// FailedAt returns the event before which the first call was made to fail, and false where none was.
func (r *Recorder) FailedAt() (int, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed, r.failed >= 0
}

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

// Faults says what was found that would make the record worthless: the log is closed.
func (r *Recorder) Faults() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mendLocked()
	return append(slices.Clone(r.faults), r.unseen()...)
}

// unseen compares the directory with what was recorded: a file that was changed in another way is a hole in the record.
func (r *Recorder) unseen() (out []string) {
	if slices.ContainsFunc(r.events, func(e event) bool { return e.kind == badFlush }) {
		return nil // the model forgets what the page cache still has
	}
	m := r.DiskAt(len(r.events), Control{})
	names := m.names(len(m.moves))
	for name, n := range names {
		f := m.files[n]
		have, err := os.ReadFile(filepath.Join(r.dir, name))
		if err != nil || !bytes.Equal(have, f.content(nil, f.waiting)) {
			want := f.content(nil, f.waiting)
			at := 0
			for at < len(have) && at < len(want) && have[at] == want[at] {
				at++
			}
			out = append(out, fmt.Sprintf("%s was changed at %d and the recorder did not see it (%d bytes, want %d, %v)",
				name, at, len(have), len(want), err))
		}
	}
	entries, err := os.ReadDir(r.dir)
	if err != nil {
		return append(out, err.Error())
	}
	for _, e := range entries {
		if _, ok := names[e.Name()]; !ok && e.Name() != lockName {
			out = append(out, e.Name()+" was made and the recorder did not see it")
		}
	}
	return out
}

// Under returns o with everything that changes the directory recorded.
func (r *Recorder) Under(o Options) Options {
	o.opened = r.opened
	system := systemFiles()
	o.files = fileOps{
		rename: func(from, to string) error {
			e := event{kind: rename, name: filepath.Base(from), to: filepath.Base(to)}
			return r.note(Rename, e, func() error {
				if err := system.rename(from, to); err != nil {
					return err
				}
				if _, there := r.names[e.to]; there {
					r.forget(e.to) // it has lost its name, and its inode may come again
				}
				r.names[e.to] = r.names[e.name]
				delete(r.names, e.name)
				return nil
			})
		},
		remove: func(path string) error {
			e := event{kind: remove, name: filepath.Base(path)}
			if _, err := os.Lstat(path); err != nil {
				return err
			}
			return r.note(Remove, e, func() error { r.forget(e.name); return system.remove(path) })
		},
		open: r.open,
		sync: func(path string) error {
			if path == r.dir {
				return r.note(DirFlush, event{kind: syncDir}, func() error { return system.sync(path) })
			}
			r.mu.Lock()
			n, known := r.names[filepath.Base(path)]
			r.mu.Unlock()
			if !known {
				return r.note(DirFlush, event{}, func() error { return system.sync(path) }) // the directory above
			}
			return r.note(PlainFlush, event{kind: flush, file: n}, func() error { return system.sync(path) })
		},
		writeAt:  r.plainWrite,
		syncFile: func(f *os.File) error { return r.plainFlush(f, system.syncFile) },
	}
	return o
}

// note records a call that succeeds, and a flush of a file that does not.
func (r *Recorder) note(c Call, e event, do func() error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mendLocked()
	if err := r.ask(c); err != nil {
		if e.kind == flush {
			e.kind = badFlush
			r.events = append(r.events, e)
		}
		return &fs.PathError{Op: string(c), Path: r.dir, Err: err}
	}
	if err := do(); err != nil {
		return err
	}
	r.events = append(r.events, e)
	return nil
}

func (r *Recorder) forget(name string) {
	for ino, n := range r.inodes {
		if n == r.names[name] {
			delete(r.inodes, ino)
		}
	}
	delete(r.names, name)
}

// open lets the creation of a file fail, or what bbolt writes into a new one.
func (r *Recorder) open(path string, flag int, mode os.FileMode) (*os.File, error) {
	if _, err := os.Lstat(path); err == nil || flag&os.O_CREATE == 0 {
		return os.OpenFile(path, flag, mode)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mendLocked()
	if err := r.ask(Create); err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	if err := r.ask(FirstWrite); err != nil {
		path = "/dev/full" // bbolt has no other seam there
	}
	return os.OpenFile(path, flag, mode)
}

func inode(f *os.File) (ino uint64, size int64, err error) {
	fi, err := f.Stat()
	if err != nil {
		return 0, 0, err
	}
	return fi.Sys().(*syscall.Stat_t).Ino, fi.Size(), nil
}

// known returns the number of an open file, which may have got another name meanwhile.
func (r *Recorder) known(f *os.File) (int, bool) {
	ino, _, err := inode(f)
	if err != nil {
		r.faults = append(r.faults, err.Error())
	}
	n, ok := r.inodes[ino]
	return n, ok
}

// plainWrite is a write to a file that bbolt does not have open.
func (r *Recorder) plainWrite(f *os.File, b []byte, off int64) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mendLocked()
	n, ok := r.known(f)
	if !ok {
		n = r.created(f)
	}
	if err := r.ask(PlainWrite); err != nil {
		return 0, &fs.PathError{Op: "write", Path: f.Name(), Err: err}
	}
	r.resized(n, f, false)
	if end := off + int64(len(b)); end > r.sizes[n] {
		r.sizes[n] = end
		r.events = append(r.events, event{kind: grow, file: n, off: end})
	}
	r.events = append(r.events, event{kind: write, file: n, off: off, data: bytes.Clone(b)})
	return f.WriteAt(b, off)
}

func (r *Recorder) plainFlush(f *os.File, do func(*os.File) error) error {
	r.mu.Lock()
	n, ok := r.known(f)
	if !ok {
		n = r.created(f)
	}
	r.resized(n, f, false)
	r.mu.Unlock()
	return r.note(PlainFlush, event{kind: flush, file: n}, func() error { return do(f) })
}

// created notes a file that was made by a plain open, and is empty until something is written to it.
func (r *Recorder) created(f *os.File) int {
	name := filepath.Base(f.Name())
	n := r.number(name, f)
	r.events = append(r.events, event{kind: create, file: n, name: name})
	return n
}

// number gives a file its number.
func (r *Recorder) number(name string, f *os.File) int {
	ino, _, err := inode(f)
	if err != nil {
		r.faults = append(r.faults, err.Error())
	}
	n := len(r.sizes)
	r.names[name], r.inodes[ino], r.sizes = n, n, append(r.sizes, 0)
	return n
}

// resized notes that a file has another size than after the last write. bbolt flushes a file after it has made it longer.
func (r *Recorder) resized(n int, f *os.File, flushed bool) {
	if _, size, err := inode(f); err == nil && size != r.sizes[n] {
		r.sizes[n] = size
		r.events = append(r.events, event{kind: grow, file: n, off: size})
		if flushed {
			r.events = append(r.events, event{kind: flush, file: n})
		}
	}
}

// opened follows a file that bbolt has opened for writing. bbolt has flushed what it wrote before.
func (r *Recorder) opened(db *bbolt.DB) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if db.NoSync || db.NoGrowSync {
		r.faults = append(r.faults, "bbolt was told not to flush")
	}
	to, file := writePath(db)
	n, ok := r.known(file)
	if !ok {
		n = r.begun(filepath.Base(db.Path()), file)
	}
	old := *to
	begun := false  // pages of this commit were written
	failed := false // and their flush is to fail
	*to = func(b []byte, off int64) (int, error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		meta := off < 2*pageSize
		if failed && !meta {
			return r.through(n, b, off)
		}
		first := !begun
		failed, begun = false, !meta
		r.mendLocked()
		r.resized(n, file, true)
		refuse := func(err error) (int, error) {
			begun = false
			return 0, &fs.PathError{Op: "write", Path: db.Path(), Err: err}
		}
		if !meta {
			if err := r.ask(PagesWrite); err != nil {
				return refuse(err)
			}
			// Which write is the last one before the flush is not known here, so the first one decides.
			if first && r.ask(PagesFlush) != nil {
				failed, begun = r.breakFile(n, file), false
				return r.through(n, b, off)
			}
			r.events = append(r.events, event{kind: write, file: n, off: off, data: bytes.Clone(b)})
			return old(b, off)
		}
		// bbolt flushes after the pages and after the meta page, before it does anything else.
		r.events = append(r.events, event{kind: flush, file: n, before: true})
		if err := r.ask(MetaWrite); err != nil {
			return refuse(err)
		}
		if r.ask(MetaFlush) != nil {
			r.breakFile(n, file)
			return r.through(n, b, off)
		}
		r.events = append(r.events, event{kind: write, file: n, off: off, data: bytes.Clone(b)}, event{kind: flush, file: n})
		return old(b, off)
	}
}

// through writes to a broken file.
func (r *Recorder) through(n int, b []byte, off int64) (int, error) {
	r.events = append(r.events, event{kind: write, file: n, off: off, data: bytes.Clone(b)})
	for _, f := range r.broken {
		if f.n == n {
			return syscall.Pwrite(f.kept, b, off)
		}
	}
	return 0, syscall.EIO
}

// breakFile has the next flush of a file fail. bbolt leaves nothing to do that with but the file's number: it leads to a pipe
// for that long.
func (r *Recorder) breakFile(n int, file *os.File) bool {
	var pipe [2]int
	err := syscall.Pipe2(pipe[:], syscall.O_CLOEXEC)
	kept := -1
	if err == nil {
		err = onNumber(file, func(fd int) (err error) {
			if kept, err = syscall.Dup(fd); err != nil {
				return err
			}
			return syscall.Dup3(pipe[0], fd, syscall.O_CLOEXEC)
		})
	}
	_, _ = syscall.Close(pipe[0]), syscall.Close(pipe[1])
	if err != nil {
		r.faults = append(r.faults, err.Error())
		return false
	}
	r.broken = append(r.broken, brokenFile{n, kept, file})
	return true
}

// onNumber calls do with the number of a file, which no other file gets meanwhile. A closed file has none.
func onNumber(f *os.File, do func(fd int) error) (err error) {
	if c, closed := f.SyscallConn(); closed == nil {
		_ = c.Control(func(fd uintptr) { err = do(int(fd)) })
	}
	return err
}

// mendLocked ends what breakFile has begun: the flush has failed by now.
func (r *Recorder) mendLocked() {
	for _, f := range r.broken {
		err := onNumber(f.file, func(fd int) error { return syscall.Dup3(f.kept, fd, syscall.O_CLOEXEC) })
		if err != nil {
			r.faults = append(r.faults, err.Error())
		}
		_ = syscall.Close(f.kept)
		r.events = append(r.events, event{kind: badFlush, file: f.n})
	}
	r.broken = nil
}

// Mend gives broken files their numbers back, before the log is closed.
func (r *Recorder) Mend() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mendLocked()
}

// Killed returns a recorder that goes on, with a copy in dir, after the process ended at the cut: what it wrote is still in
// the page cache.
func (r *Recorder) Killed(cut int, dir string) (*Recorder, error) {
	d := r.DiskAt(cut, Control{})
	k := NewRecorder(dir)
	k.events, k.names = slices.Clone(r.events[:cut]), d.names(len(d.moves))
	for _, f := range d.files {
		k.sizes = append(k.sizes, int64(len(f.content(nil, f.waiting))))
	}
	for name, n := range k.names {
		f, err := os.Open(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		ino, _, err := inode(f)
		if k.inodes[ino] = n; err != nil {
			return nil, err
		}
		_ = f.Close()
	}
	return k, nil
}

// Resume begins with what is in the directory, all of it safe.
func (r *Recorder) Resume() error {
	entries, err := os.ReadDir(r.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		f, err := os.Open(filepath.Join(r.dir, e.Name()))
		if err != nil {
			return err
		}
		r.begun(e.Name(), f)
		_ = f.Close()
	}
	r.events = append(r.events, event{kind: syncDir})
	return nil
}

// begun notes a file that is there, and flushed.
func (r *Recorder) begun(name string, f *os.File) int {
	content, err := os.ReadFile(filepath.Join(r.dir, name))
	if err != nil {
		r.faults = append(r.faults, err.Error())
	}
	n := r.number(name, f)
	r.sizes[n] = int64(len(content))
	r.events = append(r.events, event{kind: create, file: n, name: name}, event{kind: grow, file: n, off: int64(len(content))},
		event{kind: write, file: n, data: content}, event{kind: flush, file: n})
	return n
}

// TakeNow returns what Read would, without waiting.
func TakeNow(c *Cursor) ([]Record, error) { return c.take(nil, c.l.o.Window, MaxCommit) }

// KeepOpen has each sealed segment opened at most once until the log is closed.
func KeepOpen(l *Log) {
	for _, s := range l.segs {
		s.hold()
	}
}
