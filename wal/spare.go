package wal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// A drained segment is kept as a spare and becomes the next one, so that in steady state the files neither grow nor are
// freed: a commit into blocks that are written already costs two flushes, into new ones three (docs/adr/0011-recycling.md).
//
//	00000001.seg ─ rename ─▶ 00000001.spare ─ flush the directory ─ empty it ─▶ build ─ rename ─▶ 00000003.seg ─ flush it
//	  drained                                  in the background, cleanSpare      createSegment
//
// The directory is flushed before the first byte changes. Without that a cut may bring the old name back, with what is
// in the file by then, as a segment that somebody still believes.

// maxSpares bounds the files that are kept. Two, because with one uplink that keeps up a segment is drained shortly after
// the next one has begun, and the one after that should find a clean file.
const maxSpares = 2

const spareSuffix = ".spare"

// spare is a file for a later segment.
type spare struct {
	path  string
	disk  int64 // bytes that it has on the disk
	clean bool  // an empty bbolt file
}

// recycles tells whether drained files are kept. A log of a few segments needs the room for records.
func (l *Log) recycles() bool {
	return l.o.MaxBytes == 0 || l.o.MaxBytes >= 8*l.o.SegmentBytes
}

// fits tells whether a file of that many bytes on the disk is worth keeping.
func (l *Log) fits(disk int64) bool { return disk >= l.o.SegmentBytes/2 && disk <= 2*l.o.SegmentBytes }

// onDisk returns what a file takes, which is less than its length where nothing was written yet.
func onDisk(info os.FileInfo) int64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return min(st.Blocks*512, info.Size())
	}
	return info.Size()
}

// retire frees the segment's space, or keeps its file.
func (l *Log) retire(s *segment) error {
	disk := max(s.disk, s.bytes)
	keep := l.recycles() && len(l.spares) < maxSpares && l.fits(disk)
	l.mu.Lock()
	keep = keep && l.noSpace == nil && (l.o.MaxBytes == 0 || l.diskLocked()+disk <= l.o.MaxBytes)
	l.mu.Unlock()
	if !keep {
		return s.remove(&l.o)
	}
	to := strings.TrimSuffix(s.path, ".seg") + spareSuffix
	if err := s.rename(to, &l.o); noRoom(err) {
		return l.o.files.remove(s.path) // which needs no room
	} else if err != nil {
		return err
	}
	l.mu.Lock()
	l.spares = append(l.spares, spare{path: to, disk: disk})
	l.mu.Unlock()
	l.prepare()
	return nil
}

// prepare has the first spare emptied in the background, where it is not. Only the committer calls it.
func (l *Log) prepare() {
	if l.preparing != nil || len(l.spares) == 0 || l.spares[0].clean {
		return
	}
	done := make(chan error, 1)
	l.preparing = done
	path := l.spares[0].path
	go func() {
		done <- cleanSpare(l.dir, path, &l.o)
		l.wake()
	}()
}

// prepared takes what prepare has done, if it is done, or waits for it. An error that is not the want of space means
// that the medium does not do what it is told.
func (l *Log) prepared(wait bool) error {
	if l.preparing == nil {
		return nil
	}
	var err error
	if wait {
		err = <-l.preparing
	} else {
		select {
		case err = <-l.preparing:
		default:
			return nil
		}
	}
	l.preparing = nil
	if err == nil {
		l.mu.Lock()
		l.spares[0].clean = true
		l.ctl.written += uint64(len(emptyFile()))
		l.mu.Unlock()
		return nil
	}
	if isNoSpace(classify(err)) || errors.Is(err, fs.ErrNotExist) {
		return l.dropSpare()
	}
	return fmt.Errorf("prepare segment: %w", err)
}

// takeSpare returns a clean spare, or the zero value. It waits for one that is being emptied: that takes less than a new
// file would cost the commits to come.
func (l *Log) takeSpare() (spare, error) {
	for len(l.spares) > 0 {
		l.prepare()
		if err := l.prepared(true); err != nil {
			return spare{}, err
		}
		// Where the first one was given up, the next one is not clean yet.
		if len(l.spares) > 0 && l.spares[0].clean {
			l.mu.Lock()
			defer l.mu.Unlock()
			s := l.spares[0]
			l.spares = append([]spare(nil), l.spares[1:]...)
			return s, nil
		}
	}
	return spare{}, nil
}

// trimSpares lets spares go before they keep records out.
func (l *Log) trimSpares() error {
	for l.o.MaxBytes > 0 && len(l.spares) > 0 {
		l.mu.Lock()
		over := l.diskLocked() > l.o.MaxBytes
		l.mu.Unlock()
		if !over {
			return nil
		}
		if err := l.prepared(true); err != nil {
			return err
		}
		if err := l.dropSpare(); err != nil {
			return err
		}
	}
	return nil
}

// spareRoom makes room of the spares on a full disk: the next segment begins in one, which needs no new blocks, or else they
// are unlinked. It returns false where there is none.
func (l *Log) spareRoom() (bool, error) {
	if len(l.spares) == 0 {
		return false, nil
	}
	if l.active().base <= l.ctl.last {
		if err := l.rotate(); err == nil || !isNoSpace(err) {
			return err == nil, err
		}
	}
	for len(l.spares) > 0 {
		if err := errors.Join(l.prepared(true), l.dropSpare()); err != nil {
			return false, err
		}
	}
	return true, nil
}

// dropSpare unlinks the first spare.
func (l *Log) dropSpare() error {
	if len(l.spares) == 0 {
		return nil
	}
	l.mu.Lock()
	path := l.spares[0].path
	l.spares = append([]spare(nil), l.spares[1:]...)
	l.mu.Unlock()
	if err := l.o.files.remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("free spare file: %w", err)
	}
	return nil
}

// diskLocked is what the log takes on the disk, with spares.
func (l *Log) diskLocked() int64 {
	var n int64
	for _, s := range l.segs {
		n += max(s.disk, s.bytes)
	}
	for _, s := range l.spares {
		n += s.disk
	}
	return n
}

// findSpares takes the spares that an earlier process has left, and unlinks those that do not fit.
func (l *Log) findSpares(entries []os.DirEntry) error {
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), spareSuffix) {
			continue
		}
		path := filepath.Join(l.dir, e.Name())
		info, err := e.Info()
		if err != nil {
			return err
		}
		if l.recycles() && len(l.spares) < maxSpares && l.fits(onDisk(info)) {
			l.spares = append(l.spares, spare{path: path, disk: onDisk(info)})
			continue
		}
		if err := l.o.files.remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// cleanSpare makes a drained file an empty bbolt file of the same length.
func cleanSpare(dir, path string, o *Options) error {
	if err := o.files.sync(dir); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	_, err = o.files.writeAt(f, emptyFile(), 0)
	if err == nil {
		err = o.files.syncFile(f)
	}
	return errors.Join(err, f.Close())
}

// emptyFile is how bbolt begins a file: two meta pages, an empty freelist and an empty root. What lies behind them in a
// file is not looked at.
func emptyFile() []byte {
	le := binary.LittleEndian
	b := make([]byte, 4*pageSize)
	for i := range 4 {
		p := b[i*pageSize:]
		le.PutUint64(p, uint64(i))
		le.PutUint16(p[8:], []uint16{metaPage, metaPage, freelistPage, leafPage}[i])
		if i > 1 {
			continue
		}
		m := p[pageHeader:]
		le.PutUint32(m, boltMagic)
		le.PutUint32(m[4:], boltVersion)
		le.PutUint32(m[8:], pageSize)
		le.PutUint64(m[16:], 3) // root
		le.PutUint64(m[32:], 2) // freelist
		le.PutUint64(m[40:], 4) // first page that was never used
		le.PutUint64(m[48:], uint64(i))
		sum := fnv.New64a()
		_, _ = sum.Write(m[:56]) // never fails (hash.Hash)
		le.PutUint64(m[56:], sum.Sum64())
	}
	return b
}
