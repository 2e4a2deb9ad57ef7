package wal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"time"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
	"golang.org/x/sys/unix"
)

// Buckets of a segment file; doc.go draws them.
const (
	bucketHead    = "h"
	bucketControl = "c"
	bucketQueue   = "q"
	bucketState   = "s"

	// plainBlock is the size up to which a block is a plain value. A larger one lives alone in a bucket of its own,
	// because bbolt keeps at least two keys in a leaf and would write it again with the next commit.
	plainBlock = 1500
	blockKey   = "b"

	// fillPercent of the leaves: keys only ever come at the end.
	fillPercent = 0.95
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

	// The committer alone changes these, under Log.mu.
	bytes  int64 // used of the file
	empty  int64 // bytes before its first record
	newest int64 // largest time of its records; 0 without any
	hollow bool  // its records are gone (hollow.go); never changes

	mu     sync.Mutex // guards the fields below; held while a reader is in the file
	db     *bbolt.DB  // nil while a sealed segment is not being read
	active bool
	gone   bool
	sound  bool // its pages were checked
	users  int  // cursors that are reading this segment
}

func segmentName(number uint64) string { return fmt.Sprintf("%08d.seg", number) }

func boltOptions(o *Options, readOnly bool) *bbolt.Options {
	bo := &bbolt.Options{
		Timeout:        time.Second,
		PageSize:       pageSize,
		NoFreelistSync: true,
		FreelistType:   bbolt.FreelistMapType,
		NoStatistics:   true,
		ReadOnly:       readOnly,
	}
	if !readOnly {
		bo.InitialMmapSize = int(2 * o.SegmentBytes) // mapping anew would wait for readers
		bo.MaxSize = int(2*o.SegmentBytes) + 32<<20  // a seat belt; beyond two segments there is only carried state
	}
	return bo
}

// openBolt opens a file by bbolt. A panic on a damaged file becomes ErrDamaged, and its lock does not stay behind.
func openBolt(path string, o *Options, readOnly bool) (db *bbolt.DB, err error) {
	var file *os.File
	bo := boltOptions(o, readOnly)
	bo.OpenFile = func(name string, flag int, mode os.FileMode) (*os.File, error) {
		f, err := os.OpenFile(name, flag, mode)
		file = f
		return f, err
	}
	defer func() {
		if p := recover(); p != nil {
			_ = file.Close()
			db, err = nil, fmt.Errorf("%w: %s: %v", ErrDamaged, path, p)
		}
	}()
	db, err = bbolt.Open(path, 0o600, bo)
	switch {
	case errors.Is(err, berrors.ErrInvalid), errors.Is(err, berrors.ErrChecksum), errors.Is(err, berrors.ErrVersionMismatch):
		return nil, fmt.Errorf("%w: %s: %w", ErrDamaged, path, err)
	case err != nil:
		return nil, err
	}
	if !readOnly {
		db.AllocSize = int(min(o.SegmentBytes/4, 4<<20))
		if o.opened != nil {
			o.opened(db)
		}
	}
	return db, nil
}

// createSegment builds a segment under a temporary name and gives it its own only when all of it is durable, so that a
// cut can never leave a bad one behind. An error before the name is given leaves the log as it was.
func createSegment(dir string, o *Options, h header, c control, state map[string][]byte) (*segment, error) {
	path := filepath.Join(dir, segmentName(h.number))
	tmp := path[:len(path)-len(".seg")] + ".tmp"
	db, used, err := buildSegment(tmp, o, h, c, state)
	if err != nil {
		_ = o.files.remove(tmp)
		if noRoom(err) {
			err = &noSpaceError{err}
		}
		return nil, fmt.Errorf("create segment: %w", err)
	}
	if err := o.files.rename(tmp, path); err != nil {
		return nil, errors.Join(fmt.Errorf("create segment: %w", err), db.Close())
	}
	if err := o.files.sync(dir); err != nil {
		return nil, errors.Join(fmt.Errorf("create segment: %w", err), db.Close())
	}
	return &segment{path: path, number: h.number, base: h.base, first: h.first, bytes: used, empty: used, db: db, active: true}, nil
}

func buildSegment(tmp string, o *Options, h header, c control, state map[string][]byte) (*bbolt.DB, int64, error) {
	if err := o.files.remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, 0, err
	}
	db, err := openBolt(tmp, o, false)
	if err != nil {
		return nil, 0, err
	}
	var used int64
	err = db.Update(func(tx *bbolt.Tx) error {
		if err := putSingle(tx, bucketHead, h.encode()); err != nil {
			return err
		}
		if err := putSingle(tx, bucketControl, c.encode()); err != nil {
			return err
		}
		if _, err := tx.CreateBucket([]byte(bucketQueue)); err != nil {
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
		err = db.Sync()
	}
	if err == nil {
		err = db.View(func(tx *bbolt.Tx) error { used = tx.Size(); return nil })
	}
	if err != nil {
		return nil, 0, errors.Join(err, db.Close())
	}
	return db, used, nil
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
func (s *segment) write(blocks []block, changes []Change, c *control) (size, written int64, err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %s: %v", ErrDamaged, s.path, p)
		}
	}()
	tx, err := s.db.Begin(true)
	if err != nil {
		return 0, 0, err
	}
	if err := fill(tx, blocks, changes, c); err != nil {
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

func fill(tx *bbolt.Tx, blocks []block, changes []Change, c *control) error {
	q, s := tx.Bucket([]byte(bucketQueue)), tx.Bucket([]byte(bucketState))
	if q == nil || s == nil {
		return fmt.Errorf("%w: a bucket is missing", ErrDamaged)
	}
	q.FillPercent = fillPercent
	for _, b := range blocks {
		key := binary.BigEndian.AppendUint64(nil, b.first)
		if len(b.raw) <= plainBlock {
			if err := q.Put(key, b.raw); err != nil {
				return err
			}
			continue
		}
		own, err := q.CreateBucket(key)
		if err != nil {
			return err
		}
		if err := own.Put([]byte(blockKey), b.raw); err != nil {
			return err
		}
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

// read returns the block that holds the record at pos, copied and checked.
func (s *segment) read(pos uint64, o *Options) (b block, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return block{}, errGone
	}
	if s.db == nil {
		if !s.sound {
			if err := checkFile(s.path); err != nil {
				return block{}, err
			}
			s.sound = true
		}
		if s.db, err = openBolt(s.path, o, true); err != nil {
			return block{}, err
		}
		defer func() {
			if s.users == 0 {
				_ = s.closeLocked() // it was only read
			}
		}()
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %s: %v", ErrDamaged, s.path, p)
		}
	}()
	var raw []byte
	err = s.db.View(func(tx *bbolt.Tx) error {
		raw = findBlock(tx, pos)
		return nil
	})
	if err != nil {
		return block{}, err
	}
	if raw == nil {
		return block{}, fmt.Errorf("%w: %s has no record %d", ErrDamaged, s.path, pos)
	}
	if b, err = checkBlock(raw); err != nil {
		return block{}, fmt.Errorf("%s: %w", s.path, err)
	}
	if pos < b.first || pos > b.last {
		return block{}, fmt.Errorf("%w: %s has no record %d", ErrDamaged, s.path, pos)
	}
	return b, nil
}

// findBlock returns a copy of the last block that begins at or before pos.
func findBlock(tx *bbolt.Tx, pos uint64) []byte {
	q := tx.Bucket([]byte(bucketQueue))
	if q == nil {
		return nil
	}
	c := q.Cursor()
	k, v := c.Seek(binary.BigEndian.AppendUint64(nil, pos))
	switch {
	case k == nil:
		k, v = c.Last()
	case len(k) != 8 || binary.BigEndian.Uint64(k) > pos:
		k, v = c.Prev()
	}
	if k == nil {
		return nil
	}
	if v == nil {
		own := q.Bucket(k)
		if own == nil {
			return nil
		}
		v = own.Get([]byte(blockKey))
	}
	return bytes.Clone(v)
}

// hold keeps a sealed segment's file open for a cursor that goes through it; drop lets go of it.
func (s *segment) hold() {
	s.mu.Lock()
	s.users++
	s.mu.Unlock()
}

func (s *segment) drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users--; s.users == 0 && !s.active {
		_ = s.closeLocked() // it was only read
	}
}

// seal ends writing. Readers open the file again, read-only, when they come to it.
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
	if s.db == nil {
		return nil
	}
	err := s.db.Close()
	s.db = nil
	return err
}

// remove frees the segment's space.
func (s *segment) remove(o *Options) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone = true
	return errors.Join(s.closeLocked(), o.files.remove(s.path))
}
