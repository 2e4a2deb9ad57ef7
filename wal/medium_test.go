package wal

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"go.etcd.io/bbolt"
)

// This file rebuilds the directory as a power cut may leave it.

// Control takes something away that the log relies on, to show that the rig would find it missing.
type Control struct {
	NoDataFlush    bool // the flush between the pages and the meta page
	NoDirSync      bool // flushes of the directory
	NoRecycleFlush bool // of these the one between the end of a file as a segment and its emptying
}

// mediumFile is one file: what is safe, and what a cut may take or leave.
type mediumFile struct {
	safe    []byte
	version int
	waiting []event
}

// Medium is the directory on its disk at one moment.
type Medium struct {
	control Control
	files   []*mediumFile
	safe    map[string]int // names that are safe
	moves   []event        // changes of names that are not
}

// DiskAt returns the disk after the first n events.
func (r *Recorder) DiskAt(n int, c Control) *Medium {
	m := &Medium{control: c, safe: map[string]int{}}
	for i := range n {
		m.Apply(r, i)
	}
	return m
}

// Describe says what event i is.
func (r *Recorder) Describe(i int) string {
	e := r.events[i]
	kind := []string{"mark", "create", "write", "grow", "flush", "failed flush", "rename", "remove", "directory flush"}[e.kind]
	return fmt.Sprintf("event %d of %d (%s %s file %d at %d, %d bytes)", i, len(r.events), kind, e.name, e.file, e.off, len(e.data))
}

// Segments returns how many segments got their name, and how many files were removed.
func (r *Recorder) Segments() (begun, freed int) {
	for _, e := range r.events {
		switch {
		case e.kind == rename && strings.HasSuffix(e.to, ".seg"):
			begun++
		case (e.kind == rename || e.kind == remove) && strings.HasSuffix(e.name, ".seg"):
			freed++
		}
	}
	return begun, freed
}

// Recycled returns how many files were kept to be built anew.
func (r *Recorder) Recycled() int {
	n := 0
	for i := range r.events {
		if r.events[i].recycles() {
			n++
		}
	}
	return n
}

func (e *event) recycles() bool { return e.kind == rename && strings.HasSuffix(e.to, spareSuffix) }

// Changes returns how many events from one on are not marks.
func (r *Recorder) Changes(from int) int {
	n := 0
	for _, e := range r.events[from:] {
		if e.kind != mark {
			n++
		}
	}
	return n
}

// NextChange returns the first event from i on that is not a mark, or the end.
func (r *Recorder) NextChange(i int) int {
	for i < len(r.events) && r.events[i].kind == mark {
		i++
	}
	return i
}

// Apply lets event i happen, and returns false where it is only a mark.
func (m *Medium) Apply(r *Recorder, i int) bool {
	e := r.events[i]
	switch e.kind {
	case mark:
		return false
	case create:
		m.files = append(m.files, &mediumFile{})
		m.moves = append(m.moves, e)
	case write, grow:
		f := m.files[e.file]
		f.waiting = append(f.waiting, e)
	case flush:
		f := m.files[e.file]
		if m.control.NoDataFlush && e.before && f.version > 0 {
			return false
		}
		// What a failed flush was to make safe is clean for the kernel, and lost for the disk.
		f.waiting = slices.DeleteFunc(f.waiting, func(e event) bool { return e.doubt })
		f.safe, f.waiting = apply(f.safe, f.waiting), nil
		f.version++
	case badFlush:
		for i := range m.files[e.file].waiting {
			m.files[e.file].waiting[i].doubt = true
		}
	case rename, remove:
		m.moves = append(m.moves, e)
	case syncDir:
		again := len(m.moves) > 0 && m.moves[len(m.moves)-1].recycles()
		if m.control.NoDirSync || m.control.NoRecycleFlush && again {
			return false
		}
		m.safe, m.moves = m.names(len(m.moves)), nil
	}
	return true
}

// content is the file with the given changes, in buf where it has room.
func (f *mediumFile) content(buf []byte, changes []event) []byte {
	if len(changes) == 0 {
		return f.safe
	}
	return apply(append(buf[:0], f.safe...), changes)
}

// apply makes changes to b.
func apply(b []byte, changes []event) []byte {
	for _, e := range changes {
		size := int64(len(b))
		if e.kind == grow {
			size = e.off
		} else {
			size = max(size, e.off+int64(len(e.data)))
		}
		if size > int64(len(b)) {
			b = append(b, make([]byte, size-int64(len(b)))...)
		}
		b = b[:size]
		copy(b[min(e.off, size):], e.data) // nothing for grow
	}
	return b
}

// names is the directory with the first n of the changes that are not safe.
func (m *Medium) names(n int) map[string]int {
	out := maps.Clone(m.safe)
	for _, e := range m.moves[:n] {
		switch e.kind {
		case create:
			out[e.name] = e.file
		case rename:
			if n, ok := out[e.name]; ok {
				out[e.to] = n
				delete(out, e.name)
			}
		default:
			delete(out, e.name)
		}
	}
	return out
}

// Variant is one of the ways in which a cut may treat what was not flushed.
type Variant string

// The variants.
const (
	Nothing    Variant = "nothing"    // nothing of it has arrived
	Everything Variant = "everything" // all of it has
	OnlyData   Variant = "data"       // the bytes have, the names have not
	OnlyNames  Variant = "names"      // the names have, the bytes have not
	Subset     Variant = "subset"     // some of the writes have, in any order
	Torn       Variant = "torn"       // the writes before one have, and a part of that one
	Sectors    Variant = "sectors"    // each sector of 512 bytes may have
	Garbage    Variant = "garbage"    // as before, and some sectors are neither old nor new
)

// Variants returns those that differ at this moment.
func (m *Medium) Variants() []Variant {
	writes := 0
	for _, f := range m.files {
		writes += len(f.waiting)
	}
	out := []Variant{Nothing}
	if writes+len(m.moves) > 0 {
		out = append(out, Everything)
	}
	if writes > 0 && len(m.moves) > 0 {
		out = append(out, OnlyData, OnlyNames)
	}
	if writes > 1 || len(m.moves) > 1 {
		out = append(out, Subset)
	}
	if writes > 0 {
		out = append(out, Torn, Sectors, Garbage)
	}
	return out
}

const sector = 512

// survivors returns the changes of a file that have arrived under a variant.
func survivors(changes []event, v Variant, safe []byte, rnd *rand.Rand) []event {
	switch v {
	case Nothing, OnlyNames:
		return nil
	case Everything, OnlyData:
		return changes
	default:
	}
	var out []event
	torn := 0
	if len(changes) > 0 {
		torn = rnd.IntN(len(changes))
	}
	for i, e := range changes {
		switch {
		case e.kind == grow, v == Subset:
			if rnd.IntN(2) == 0 || v != Subset {
				out = append(out, e)
			}
		case v == Torn && i < torn:
			out = append(out, e)
		case v == Torn && i == torn:
			e.data = e.data[:sector*rnd.IntN(len(e.data)/sector+1)]
			return append(out, e)
		case v == Sectors, v == Garbage:
			for off := 0; off < len(e.data); off += sector {
				part := event{kind: write, off: e.off + int64(off), data: e.data[off:min(off+sector, len(e.data))]}
				switch n := rnd.IntN(8); {
				case v == Garbage && n < 2:
					part.data = make([]byte, len(part.data))
					for j := range part.data {
						part.data[j] = byte(rnd.Uint32())
					}
				case n < 4:
					continue
				}
				out = append(out, part)
			}
		}
	}
	// Where the size did not arrive, what lies beyond it did not either.
	size := int64(len(safe))
	for _, e := range out {
		if e.kind == grow {
			size = e.off
		}
	}
	return slices.DeleteFunc(out, func(e event) bool { return e.kind == write && e.off >= size })
}

// Replica is a real directory that is brought to one state after the other; what is the same stays.
type Replica struct {
	Dir string

	mu   sync.Mutex        // guards have, which the log's goroutines change too
	have map[string][2]int // file and version that lie under a name unchanged
	buf  []byte            // of Build
}

// NewReplica returns a replica in an empty directory.
func NewReplica(dir string) *Replica { return &Replica{Dir: dir, have: map[string][2]int{}} }

// Under returns o for a log in the replica: without flushes, because the directory is as good as the medium, and so that what
// the log changes is built again.
func (p *Replica) Under(o Options) Options {
	o = Unflushed(o)
	forget := func(path string) {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.have, filepath.Base(path))
	}
	rename, remove, writeAt := o.files.rename, o.files.remove, o.files.writeAt
	o.files.rename = func(from, to string) error { forget(from); forget(to); return rename(from, to) }
	o.files.remove = func(path string) error { forget(path); return remove(path) }
	o.files.writeAt = func(f *os.File, b []byte, off int64) (int, error) { forget(f.Name()); return writeAt(f, b, off) }
	o.opened = func(db *bbolt.DB) {
		write, _ := writePath(db)
		old := *write
		*write = func(b []byte, off int64) (int, error) {
			forget(db.Path())
			return old(b, off)
		}
	}
	return o
}

// Unflushed returns o without flushes, for a directory that is as good as the medium.
func Unflushed(o Options) Options {
	o.files = systemFiles()
	o.files.sync = func(string) error { return nil }
	o.files.syncFile = func(*os.File) error { return nil }
	return o
}

// Build makes the directory what a cut at this moment leaves under a variant.
func (p *Replica) Build(m *Medium, v Variant, rnd *rand.Rand) error {
	n := len(m.moves)
	switch v {
	case Nothing, OnlyData:
		n = 0
	case Everything, OnlyNames:
	case Subset, Torn, Sectors, Garbage:
		n = rnd.IntN(n + 1)
	}
	names := m.names(n)
	entries, err := os.ReadDir(p.Dir)
	if err != nil {
		return err
	}
	there := map[string]bool{}
	for _, e := range entries {
		there[e.Name()] = true
		if _, ok := names[e.Name()]; !ok && e.Name() != lockName {
			delete(p.have, e.Name())
			if err := os.Remove(filepath.Join(p.Dir, e.Name())); err != nil {
				return err
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		f := m.files[names[name]]
		arrived := survivors(f.waiting, v, f.safe, rnd)
		key := [2]int{names[name], f.version}
		if len(arrived) == 0 && there[name] && p.have[name] == key {
			continue
		}
		if p.have[name] = key; len(arrived) > 0 {
			delete(p.have, name)
		}
		content := f.content(p.buf, arrived)
		if len(arrived) > 0 {
			p.buf = content
		}
		if err := overwrite(filepath.Join(p.Dir, name), content); err != nil {
			return fmt.Errorf("build %s: %w", name, err)
		}
	}
	return nil
}

// overwrite is os.WriteFile, which gives the pages of the file back first and takes as many others then.
func overwrite(path string, content []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(content, 0)
	return errors.Join(err, f.Truncate(int64(len(content))), f.Close())
}
