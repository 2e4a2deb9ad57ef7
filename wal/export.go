package wal

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// Selection says which records Export gives out.
type Selection struct {
	Stream   string
	From, To uint64 // sequences; 0 means from the oldest, and to the newest
}

// Exported is one record as Export gives it out.
type Exported struct {
	Record
	Epoch  uint64
	Stream string
}

// Export calls yield for the records of a stream, in order, delivered or not, as far as they are still in the log. It changes
// and locks nothing, and may read a log that a gateway writes to. It goes past what is damaged and returns ErrDamaged at
// the end then. The error of yield ends it.
func Export(dir string, sel Selection, yield func(Exported) error) error {
	e := exporter{dir: dir, sel: sel, yield: yield, next: max(sel.From, 1)}
	// Segments may be freed and begun between listing and reading. What was given out is not given out again.
	for range 50 {
		err := e.run()
		if err == nil || !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, errChanged) {
			if err == nil {
				err = e.damage
			}
			if err != nil && !errors.Is(err, errYield) {
				return fmt.Errorf("export from log %s: %w", dir, err)
			}
			return e.stopped
		}
	}
	return fmt.Errorf("export from log %s: %w", dir, cmp.Or(e.nameless, errChanged))
}

var errYield = errors.New("the receiver wants no more")

type exporter struct {
	dir     string
	sel     Selection
	yield   func(Exported) error
	u       unpacker
	epoch   uint64
	stream  uint32
	next    uint64 // sequence
	pos     uint64 // position up to which all was looked at
	damage  error  // the first that was met
	stopped error  // what yield returned

	nameless error // the log could not be read at all
}

func (e *exporter) run() error {
	entries, err := os.ReadDir(e.dir)
	if err != nil {
		return err
	}
	if err := refusePending(entries); err != nil {
		return err
	}
	numbers, err := segmentNumbers(entries)
	if err != nil {
		return err
	}
	if len(numbers) == 0 {
		return errors.New("no log is here (no .seg files)")
	}
	if err := e.find(numbers); err != nil {
		return err
	}
	for i, n := range numbers {
		path := filepath.Join(e.dir, segmentName(n))
		if err := e.segment(path, i == len(numbers)-1); err != nil {
			return err
		}
		if e.sel.To != 0 && e.next > e.sel.To {
			return nil
		}
	}
	if _, err := os.Stat(filepath.Join(e.dir, segmentName(numbers[len(numbers)-1]+1))); err == nil {
		return errChanged
	}
	return nil
}

// find looks up the number of the stream in the newest segment that says it. Every header is looked at first, so that
// nothing of another version of the format is given out.
func (e *exporter) find(numbers []uint64) error {
	var damage error
	for _, n := range numbers {
		if _, err := readSummary(filepath.Join(e.dir, segmentName(n)), false); errors.Is(err, ErrVersion) || errors.Is(err, fs.ErrNotExist) {
			return err
		} else if err != nil && damage == nil {
			damage = err
		}
	}
	for _, n := range slices.Backward(numbers) {
		s, err := readSummary(filepath.Join(e.dir, segmentName(n)), true)
		if errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err != nil {
			continue
		}
		st, err := loadStore(&s)
		if err != nil {
			continue
		}
		n, ok := st.numbers[e.sel.Stream]
		if !ok {
			return fmt.Errorf("there is no stream %q", e.sel.Stream)
		}
		e.stream, e.epoch = n, s.header.epoch
		return nil
	}
	if damage == nil {
		damage = ErrDamaged
	}
	e.nameless = fmt.Errorf("%w (no segment says which streams there are; salvage first)", damage)
	return errChanged // or all were freed while they were read
}

// segment gives out the records of one file. Of one that is being written the blocks stay where they are, so what was not
// whole is read once more when a commit has come.
func (e *exporter) segment(path string, newest bool) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	for try := 0; ; try++ {
		before, err := readMeta(f)
		if err != nil {
			e.note(fmt.Errorf("%s: %w", path, err))
			return nil
		}
		torn, err := e.blocks(f, before)
		if err != nil {
			return err
		}
		after, err := readMeta(f)
		if torn == nil && (!newest || err != nil || after.txid == before.txid) {
			return nil
		}
		if err != nil || after.txid == before.txid || try == 1000 {
			if torn != nil && !isStill(path, f) {
				return errChanged
			}
			if torn != nil {
				e.note(fmt.Errorf("%s: %w", path, torn))
			}
			return nil
		}
	}
}

func (e *exporter) note(err error) {
	if e.damage == nil {
		e.damage = err
	}
}

// blocks gives out what is in the blocks from e.pos on. It returns what could not be read.
func (e *exporter) blocks(f *os.File, m pageMeta) (torn, err error) {
	if fi, err := f.Stat(); err == nil {
		m.high = min(m.high, uint64(fi.Size()/pageSize))
	}
	r := pageReader{f: f, meta: m}
	note := func(_ uint64, cause error) error {
		if torn == nil {
			torn = cause
		}
		return nil
	}
	tops, _ := r.topBuckets(note) // torn pages are noted
	err = r.blocks(tops, e.pos+1, func(fb foundBlock) error {
		b, err := decodeBlock(fb.raw, &e.u)
		if err != nil || b.first != fb.key {
			if err == nil {
				err = fmt.Errorf("%w: block at %d says that it begins at %d", ErrDamaged, fb.key, b.first)
			}
			return note(0, err)
		}
		if b.last <= e.pos {
			return nil
		}
		if torn == nil {
			e.pos = b.last
		}
		return eachRecord(b, e.record)
	}, note)
	if errors.Is(err, errDone) {
		err = nil
	}
	return torn, err
}

func (e *exporter) record(stream uint32, r Record) error {
	if stream != e.stream || r.Seq < e.next {
		return nil
	}
	if e.sel.To != 0 && r.Seq > e.sel.To {
		e.next = e.sel.To + 1
		return errDone
	}
	e.next = r.Seq + 1
	if err := e.yield(Exported{Record: r, Epoch: e.epoch, Stream: e.sel.Stream}); err != nil {
		e.stopped = err
		return errYield
	}
	return nil
}

var errDone = errors.New("all that was wanted is there")
