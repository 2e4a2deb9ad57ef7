package wal

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// recoverFiles brings the log to its last commit:
//
//  1. delete what a cut left half-made (*.tmp); take the spares
//  2. flush the newest segment and the directory
//  3. read what each segment says of itself, by its pages, and check that they follow each other without a gap
//  4. take the state, the cursors and the end from the newest one
//  5. check all pages of the newest one and open it for writing
//  6. begin a new segment where the newest one is of an older version of the format
//  7. raise cursors that point before the oldest segment, and free what no cursor needs
//
// A directory without segments gets its first one, and with it an epoch.
func (l *Log) recoverFiles() error {
	numbers, err := l.list()
	if err != nil {
		return err
	}
	if len(numbers) == 0 {
		return l.create()
	}
	if err := l.settle(numbers[len(numbers)-1]); err != nil {
		return err
	}
	if err := l.examine(numbers); err != nil {
		return err
	}
	var last summary
	var newest int64
	for i, n := range numbers {
		path := filepath.Join(l.dir, segmentName(n))
		sum, err := readSummary(path, i == len(numbers)-1)
		if err != nil {
			return err
		}
		if err := follows(&last, &sum, i == 0, n); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		l.segs = append(l.segs, &segment{
			version: sum.header.version,
			path:    path, number: n, base: sum.header.base, first: sum.header.first, bytes: sum.bytes, disk: onDisk(info),
			created: sum.header.created, newest: sum.control.newest, hollow: sum.header.hollow,
		})
		l.ends.note(&sum.control)
		newest = max(newest, sum.control.newest)
		last = sum
	}
	wall, mono := l.o.clock()
	l.ages.start(l.o.MaxAge, newest, wall, mono)
	l.uuid, l.epoch = last.header.uuid, last.header.epoch
	if err := l.load(&last); err != nil {
		return fmt.Errorf("%s: %w", l.active().path, err)
	}
	a := l.active()
	if err := checkFile(a.path); err != nil {
		return err
	}
	if a.db, a.handle, err = openBolt(a.path, &l.o); err != nil {
		return err
	}
	a.active = true
	if last.header.version >= versionBlocks {
		if l.layout, err = loadLayout(a.db, &l.unpacker); err != nil {
			return fmt.Errorf("%s: %w", a.path, err)
		}
	}
	if last.header.version < versionBlocks {
		// What this program writes does not belong into a segment that says otherwise.
		if err := l.rotate(); err != nil {
			return err
		}
	}
	if err := l.raiseMissing(); err != nil {
		return err
	}
	return l.free()
}

// settle makes durable what a killed process has left in the page cache: a commit that was never flushed, a name that was
// never. It is seen from here on, by readers too, and a power cut must not take it back.
func (l *Log) settle(newest uint64) error {
	if err := l.o.files.sync(filepath.Join(l.dir, segmentName(newest))); err != nil {
		return err
	}
	return l.o.files.sync(l.dir)
}

// list returns the numbers of the segments, ascending, and deletes half-made files.
func (l *Log) list() ([]uint64, error) {
	if err := finishSalvage(l.dir, &l.o); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(l.dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".tmp") {
			if err := l.o.files.remove(filepath.Join(l.dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, err
			}
		}
	}
	if err := l.findSpares(entries); err != nil {
		return nil, err
	}
	return segmentNumbers(entries)
}

func segmentNumbers(entries []os.DirEntry) ([]uint64, error) {
	var out []uint64
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".seg") {
			continue
		}
		n, ok := segmentNumber(e.Name())
		if !ok {
			return nil, fmt.Errorf("%w: %s is not the name of a segment", ErrDamaged, e.Name())
		}
		out = append(out, n)
	}
	slices.Sort(out)
	return out, nil
}

// segmentNumber returns the number that a file's name says.
func segmentNumber(name string) (uint64, bool) {
	n, err := strconv.ParseUint(strings.TrimSuffix(name, ".seg"), 10, 64)
	return n, err == nil && n > 0 && segmentName(n) == name
}

// follows tells what is wrong with s as the segment after prev.
func follows(prev, s *summary, first bool, number uint64) error {
	h := &s.header
	switch {
	case h.number != number:
		return fmt.Errorf("%w: it says that it is segment %d", ErrDamaged, h.number)
	case h.base == 0 || s.control.last+1 < h.base || len(s.control.tails) < len(h.first):
		return fmt.Errorf("%w: its end lies before its beginning", ErrDamaged)
	case first:
		return nil
	case h.uuid != prev.header.uuid || h.epoch != prev.header.epoch:
		return fmt.Errorf("%w: it belongs to another log than segment %d", ErrDamaged, prev.header.number)
	case h.number != prev.header.number+1:
		return fmt.Errorf("%w: segment %d is missing before it", ErrDamaged, h.number-1)
	case h.base != prev.control.last+1:
		return fmt.Errorf("%w: it begins at record %d, the segment before it ends at %d", ErrDamaged, h.base, prev.control.last)
	}
	return nil
}

// load takes state and cursors from what the newest segment says.
func (l *Log) load(s *summary) error {
	st, err := loadStore(s)
	if err != nil {
		return err
	}
	l.st, l.ctl, l.refused = st, s.control, s.control.refused
	return nil
}

func loadStore(s *summary) (store, error) {
	st := newStore()
	// Sorted, so that numbered keys come in ascending order.
	for _, k := range slices.Sorted(maps.Keys(s.state)) {
		if err := st.apply(Change{Key: k, Value: s.state[k]}); err != nil {
			return st, err
		}
	}
	if s.header.version > 1 && st.sum != s.control.stateSum {
		return st, fmt.Errorf("%w: the state is not of the same commit as the records", ErrDamaged)
	}
	if len(st.names) != len(s.control.tails) || slices.Contains(st.names, "") {
		return st, fmt.Errorf("%w: %d streams have names, %d have an end", ErrDamaged, len(st.numbers), len(s.control.tails))
	}
	for i := range s.control.cursors {
		p := &s.control.cursors[i]
		name, ok := st.cursors[p.id]
		if !ok || int(name.stream) >= len(s.control.tails) || p.seq > s.control.tails[name.stream].seq || p.pos > s.control.last {
			return st, fmt.Errorf("%w: cursor %d points nowhere", ErrDamaged, p.id)
		}
	}
	return st, nil
}

// create begins a new log.
func (l *Log) create() error {
	if err := l.o.files.sync(filepath.Dir(filepath.Clean(l.dir))); err != nil {
		return err
	}
	h := header{epoch: l.o.NewEpoch, number: 1, base: 1, created: nanos(time.Now())}
	_, _ = rand.Read(h.uuid[:]) // never fails (crypto/rand)
	s, err := createSegment(l.dir, &l.o, spare{}, h, control{}, nil)
	if err != nil {
		return err
	}
	l.uuid, l.epoch, l.segs = h.uuid, h.epoch, []*segment{s}
	wall, mono := l.o.clock()
	l.ages.start(l.o.MaxAge, 0, wall, mono)
	l.log.Info("log was created", "dir", l.dir, "epoch", h.epoch)
	return nil
}

// raiseMissing moves cursors that point before the oldest segment: somebody has removed files. What they had not passed
// is counted as dropped.
func (l *Log) raiseMissing() error {
	oldest := l.segs[0]
	var t *txn
	gone := map[uint32][]stretch{}
	for i := range l.ctl.cursors {
		stream := l.st.cursors[l.ctl.cursors[i].id].stream
		if int(stream) >= len(oldest.first) || l.ctl.cursors[i].seq >= oldest.first[stream] {
			continue
		}
		if t == nil {
			t = l.begin(false)
		}
		p := &t.ctl.cursors[i]
		gone[stream] = addStretch(gone[stream], stretch{p.seq, l.st.end(p.id, oldest.first[stream])})
		p.seq, p.pos, p.runs = oldest.first[stream], max(p.pos, oldest.base-1), nil
	}
	if t == nil {
		return nil
	}
	for stream, list := range gone {
		for _, s := range list {
			t.drop(stream, s.after+1, s.last, DroppedMissing)
		}
	}
	return t.commit()
}
