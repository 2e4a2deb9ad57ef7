package wal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
	"golang.org/x/sys/unix"
)

// Buckets of a segment file beside those of queue.go; doc.go draws them.
const (
	bucketHead    = "h"
	bucketControl = "c"
	bucketState   = "s"
)

var errGone = errors.New("segment was freed")

// noSpaceError marks an error after which nothing is lost but the room: the commit did not happen and may be tried again.
type noSpaceError struct{ cause error }

func (e *noSpaceError) Error() string { return e.cause.Error() }
func (e *noSpaceError) Unwrap() error { return e.cause }

func isNoSpace(err error) bool {
	_, ok := errors.AsType[*noSpaceError](err)
	return ok
}

// classify tells a full disk from every other error of a commit. Only a write that was refused counts: the same number
// from a flush may mean that pages were lost.
func classify(err error) error {
	if errors.Is(err, berrors.ErrMaxSizeReached) {
		return &noSpaceError{err}
	}
	if pe, ok := errors.AsType[*fs.PathError](err); ok && pe.Op == "write" && noRoom(err) {
		return &noSpaceError{err}
	}
	return err
}

func noRoom(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// segment is one file of the log. The newest one is active: the committer writes to it. The others are sealed.
type segment struct {
	path   string
	number uint64
	base   uint64   // position of its first record
	first  []uint64 // sequence of the newest record before base, by stream

	created int64  // when it was begun, by the wall clock
	version uint64 // of the format

	// The committer alone changes these, under Log.mu.
	bytes  int64 // used of the file
	disk   int64 // that a file which was used before has on the disk, also where it is not used yet
	empty  int64 // bytes before its first record
	newest int64 // largest time of its records; 0 without any
	hollow bool  // its records are gone (hollow.go); never changes

	mu     sync.Mutex // guards the fields below; held while a reader is in the file
	db     *bbolt.DB  // of the active one
	handle *os.File   // that db has open
	stuck  bool       // a panic has left db in the middle of a commit
	active bool
	gone   bool
	users  int        // cursors that are reading this segment
	file   *blockFile // as readers have it open; nil while nobody reads
}

func segmentName(number uint64) string { return fmt.Sprintf("%08d.seg", number) }

func boltOptions(o *Options) *bbolt.Options {
	return &bbolt.Options{
		Timeout:         time.Second,
		PageSize:        pageSize,
		NoFreelistSync:  true,
		FreelistType:    bbolt.FreelistMapType,
		NoStatistics:    true,
		InitialMmapSize: int(2 * o.SegmentBytes),        // mapping anew would wait for readers
		MaxSize:         int(2*o.SegmentBytes) + 32<<20, // a seat belt; beyond two segments there is only carried state
	}
}

// openBolt opens a file by bbolt, for writing. A panic on a damaged file becomes ErrDamaged, and its lock does not stay
// behind. It also returns the file, which bbolt does not let anybody have: see segment.closeLocked.
func openBolt(path string, o *Options) (db *bbolt.DB, file *os.File, err error) {
	bo := boltOptions(o)
	bo.OpenFile = func(name string, flag int, mode os.FileMode) (*os.File, error) {
		f, err := o.files.open(name, flag, mode)
		file = f
		return f, err
	}
	defer func() {
		if p := recover(); p != nil {
			_ = file.Close()
			db, file, err = nil, nil, fmt.Errorf("%w: %s: %v", ErrDamaged, path, p)
		}
	}()
	db, err = bbolt.Open(path, 0o600, bo)
	switch {
	case errors.Is(err, berrors.ErrInvalid), errors.Is(err, berrors.ErrChecksum), errors.Is(err, berrors.ErrVersionMismatch):
		return nil, nil, fmt.Errorf("%w: %s: %w", ErrDamaged, path, err)
	case err != nil:
		return nil, nil, err
	}
	db.AllocSize = int(min(o.SegmentBytes/4, 4<<20))
	if o.opened != nil {
		o.opened(db)
	}
	return db, file, nil
}

// createSegment builds a segment in a spare, or under a temporary name where from is the zero value, and gives it its own
// name only when all of it is durable, so that a cut can never leave a bad one behind. An error before the name is given
// leaves the log as it was.
func createSegment(dir string, o *Options, from spare, h header, c control, state map[string][]byte) (*segment, error) {
	path := filepath.Join(dir, segmentName(h.number))
	built := from.path
	if built == "" {
		built = strings.TrimSuffix(path, ".seg") + ".tmp"
		if err := o.files.remove(built); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("create segment: %w", err)
		}
	}
	db, file, used, err := buildSegment(built, o, h, c, state)
	if err == nil {
		if err = o.files.rename(built, path); err != nil {
			err = errors.Join(err, db.Close())
		}
	}
	if err != nil {
		_ = o.files.remove(built)
		if noRoom(err) {
			err = &noSpaceError{err}
		}
		return nil, fmt.Errorf("create segment: %w", err)
	}
	if err := o.files.sync(dir); err != nil {
		return nil, errors.Join(fmt.Errorf("create segment: %w", err), db.Close())
	}
	return &segment{
		version: formatVersion,
		path:    path, number: h.number, base: h.base, first: h.first, created: h.created, bytes: used, empty: used, disk: from.disk,
		db: db, handle: file, active: true,
	}, nil
}

func buildSegment(path string, o *Options, h header, c control, state map[string][]byte) (*bbolt.DB, *os.File, int64, error) {
	db, file, err := openBolt(path, o)
	if err != nil {
		return nil, nil, 0, err
	}
	var used int64
	err = db.Update(func(tx *bbolt.Tx) error {
		if err := putSingle(tx, bucketHead, h.encode()); err != nil {
			return err
		}
		if err := putSingle(tx, bucketControl, c.encode()); err != nil {
			return err
		}
		s, err := tx.CreateBucket([]byte(bucketState))
		if err != nil {
			return err
		}
		for k, v := range state {
			if err := s.Put([]byte(k), seal([]byte(k), v)); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		err = db.View(func(tx *bbolt.Tx) error { used = tx.Size(); return nil })
	}
	if err != nil {
		return nil, nil, 0, errors.Join(err, db.Close())
	}
	return db, file, used, nil
}

// putSingle sets the one key of a bucket that has only one.
func putSingle(tx *bbolt.Tx, name string, value []byte) error {
	b, err := tx.CreateBucketIfNotExists([]byte(name))
	if err != nil {
		return err
	}
	return b.Put([]byte(name), seal([]byte(name), value))
}

// write makes one commit: all of it is on stable storage when it returns nil.
func (s *segment) write(p *placement, y *layout, changes []Change, c *control) (size, written int64, err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			s.mu.Lock()
			s.stuck = true
			s.mu.Unlock()
			err = fmt.Errorf("%w: %s: %v", ErrDamaged, s.path, p)
		}
	}()
	tx, err := s.db.Begin(true)
	if err != nil {
		return 0, 0, err
	}
	if err := fill(tx, p, y, changes, c); err != nil {
		return 0, 0, errors.Join(err, tx.Rollback())
	}
	if err := tx.Commit(); err != nil {
		return 0, 0, classify(s.named(err))
	}
	// The transaction keeps its counts after it has ended, but not its size.
	stats := tx.Stats()
	err = s.db.View(func(tx *bbolt.Tx) error { size = tx.Size(); return nil })
	return size, stats.GetPageAlloc() + pageSize, err
}

// named gives an error of the file its name: bbolt knows the one under which the segment was built.
func (s *segment) named(err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return &fs.PathError{Op: pe.Op, Path: s.path, Err: pe.Err}
	}
	return err
}

func fill(tx *bbolt.Tx, p *placement, y *layout, changes []Change, c *control) error {
	s := tx.Bucket([]byte(bucketState))
	if s == nil {
		return fmt.Errorf("%w: bucket %s is missing", ErrDamaged, bucketState)
	}
	if err := p.put(tx, y); err != nil {
		return err
	}
	for _, ch := range changes {
		key := []byte(ch.Key)
		if ch.Value == nil {
			if err := s.Delete(key); err != nil {
				return err
			}
		} else if err := s.Put(key, seal(key, ch.Value)); err != nil {
			return err
		}
	}
	return putSingle(tx, bucketControl, c.encode())
}

// read returns the block that holds the record at pos, checked and unpacked.
func (s *segment) read(pos uint64, u *unpacker) (b block, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return block{}, errGone
	}
	if s.file == nil {
		if s.file, err = openBlockFile(s.path, !s.active); err != nil {
			return block{}, s.unread(err)
		}
	}
	if s.users == 0 {
		defer s.closeFileLocked()
	}
	var raw []byte
	if s.active {
		raw, err = s.findActive(pos)
	} else {
		raw, err = s.file.find(pos)
	}
	switch {
	case err != nil:
		return block{}, s.unread(err)
	case raw == nil:
		return block{}, fmt.Errorf("%w: %s has no record %d", ErrDamaged, s.path, pos)
	}
	if b, err = decodeBlock(raw, u); err != nil {
		return block{}, fmt.Errorf("%s: %w", s.path, err)
	}
	if pos < b.first || pos > b.last {
		return block{}, fmt.Errorf("%w: %s has no record %d", ErrDamaged, s.path, pos)
	}
	return b, nil
}

// unread says what kept a block from being read. An error of the device is damage: nothing but a salvage helps.
func (s *segment) unread(err error) error {
	if errors.Is(err, ErrDamaged) || !errors.Is(err, unix.EIO) {
		return fmt.Errorf("%s: %w", s.path, err)
	}
	return fmt.Errorf("%w: %w", ErrDamaged, s.named(err))
}

// findActive returns a copy of the block of the active segment that holds pos, as the last commit left it.
func (s *segment) findActive(pos uint64) (raw []byte, err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", ErrDamaged, p)
		}
	}()
	err = s.db.View(func(tx *bbolt.Tx) error {
		raw = findBlock(tx, pos, s.file)
		return nil
	})
	return raw, err
}

// hold keeps the file open for a cursor that goes through it; drop lets go of it.
func (s *segment) hold() {
	s.mu.Lock()
	s.users++
	s.mu.Unlock()
}

func (s *segment) drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users--; s.users == 0 {
		s.closeFileLocked()
	}
}

func (s *segment) closeFileLocked() {
	if s.file != nil {
		s.file.close()
		s.file = nil
	}
}

// seal ends writing. Readers open the file again when they come to it.
func (s *segment) seal() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.active = false
	return s.closeLocked()
}

func (s *segment) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone = true
	return s.closeLocked()
}

func (s *segment) closeLocked() error {
	s.closeFileLocked()
	if s.db == nil {
		return nil
	}
	db := s.db
	s.db = nil
	if s.stuck {
		// Its writer never ends, and Close would wait for it. The file's lock goes with the file; the map stays.
		return s.handle.Close()
	}
	return db.Close()
}

// rename closes the segment and gives its file another name.
func (s *segment) rename(to string, o *Options) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone = true
	return errors.Join(s.closeLocked(), o.files.rename(s.path, to))
}

// remove frees the segment's space.
func (s *segment) remove(o *Options) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone = true
	return errors.Join(s.closeLocked(), o.files.remove(s.path))
}
