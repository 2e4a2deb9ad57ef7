package wal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"sync/atomic"
	"syscall"
	"unsafe"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// Disk stands between bbolt and its files and makes failures. bbolt has no seam for that but a field of its own.
type Disk struct {
	Full     atomic.Bool  // pages that were never written cannot be
	Nothing  atomic.Bool  // no page can be written, as where each block of the disk is copied on a write
	FailData atomic.Bool  // EIO for pages
	FailMeta atomic.Bool  // EIO for meta pages
	FailSync atomic.Bool  // the flush after the next write fails
	Refused  atomic.Int64 // writes that failed
	OnFull   func()       // called in a write for which there is no room, before it fails; nil for nothing
}

// writePath returns the field through which bbolt writes, and the file it writes to.
func writePath(db *bbolt.DB) (write *func([]byte, int64) (int, error), file *os.File) {
	v := reflect.ValueOf(db).Elem()
	write = (*func([]byte, int64) (int, error))(unsafe.Pointer(v.FieldByName("ops").FieldByName("writeAt").UnsafeAddr()))
	return write, *(**os.File)(unsafe.Pointer(v.FieldByName("file").UnsafeAddr()))
}

// Under returns o with every file written through d.
func (d *Disk) Under(o Options) Options {
	o.opened = func(db *bbolt.DB) {
		write, file := writePath(db)
		old := *write
		var high int64
		*write = func(b []byte, off int64) (int, error) {
			end := off + int64(len(b))
			meta := off < 2*pageSize
			var cause error
			switch {
			case d.Full.Load() && end > high && !meta, d.Nothing.Load():
				cause = syscall.ENOSPC
				if d.OnFull != nil {
					d.OnFull()
				}
			case d.FailMeta.Load() && meta, d.FailData.Load() && !meta:
				cause = syscall.EIO
			}
			if cause != nil {
				d.Refused.Add(1)
				return 0, &fs.PathError{Op: "write", Path: db.Path(), Err: cause}
			}
			if d.FailSync.Load() {
				file.Close() // its number is invalid from here on, so the flush fails
				return len(b), nil
			}
			high = max(high, end)
			return old(b, off)
		}
	}
	return o
}

// DecodeBlock goes through all records of a block; with sum its checksum is made right first.
func DecodeBlock(raw []byte, sum bool) (records int, err error) {
	if sum && len(raw) >= blockHeader {
		raw = append([]byte(nil), raw...)
		raw[0], raw[1], raw[2], raw[3] = 0xB1+raw[0]%2, raw[1]%3, 0, 0
		header := blockHeader
		if raw[0] == firstMagic {
			header = firstHeader
		}
		binary.LittleEndian.PutUint32(raw[24:], uint32(len(raw)-header))
		binary.LittleEndian.PutUint32(raw[28:], blockSum(raw))
	}
	var u unpacker
	b, err := decodeBlock(raw, &u)
	for stream := uint32(0); err == nil && stream < 3; stream++ {
		var r blockReader
		r, err = newBlockReader(b, stream)
		for ok := err == nil; ok; {
			if _, ok, err = r.next(); ok {
				records++
			}
		}
	}
	return records, err
}

// EncodedBlock is a block with records of two streams.
func EncodedBlock(codec Codec, data ...string) []byte {
	var e []entry
	for i, d := range data {
		e = append(e, entry{stream: uint32(i % 2), seq: uint64(10 + i/2), time: int64(i) * 1e9, data: []byte(d)})
	}
	return encodeBlocks(&packer{codec: codec}, 7, e)[0].raw
}

// FirstBlock is a block of version 1 with the body of a block of today's that is not compressed.
func FirstBlock(raw []byte) []byte {
	old := append(append([]byte(nil), raw[:firstHeader]...), raw[blockHeader:]...)
	old[0] = firstMagic
	binary.LittleEndian.PutUint32(old[28:], blockSum(old))
	return old
}

// PackedBlock is a block whose body was packed by somebody else, with a right checksum.
func PackedBlock(codec byte, packed []byte, size uint32) []byte {
	raw := append(make([]byte, blockHeader), packed...)
	raw[0], raw[1], raw[4], raw[8] = blockMagic, codec, 1, 1
	binary.LittleEndian.PutUint32(raw[24:], uint32(len(packed)))
	binary.LittleEndian.PutUint32(raw[32:], size)
	binary.LittleEndian.PutUint32(raw[28:], blockSum(raw))
	return raw
}

// DecodeState decodes bytes as everything that has a decoder and encodes it again where there is an encoder.
func DecodeState(kind byte, b []byte) (again []byte, err error) {
	switch kind {
	case 'h':
		h, err := decodeHeader(b)
		return h.encode(), err
	case 'c':
		c, err := decodeControl(b, formatVersion)
		if err == nil && len(c.cursors) > 0 {
			p := c.cursors[0]
			w := newWindow(64, p.seq, p.pos, p.runs)
			w.runs()
			shiftRuns(p.runs, 5)
		}
		return c.encode(), err
	case keyLetter:
		d, err := decodeLetter(numberedKey(keyLetter, 1), b)
		return encodeLetter(&d, formatVersion), err
	case keyRange:
		stream, r, err := decodeRange(b)
		return encodeRange(stream, &r), err
	}
	st := newStore()
	return nil, st.apply(Change{Key: string(kind) + string(b[:len(b)/2]), Value: b[len(b)/2:]})
}

// Samples are valid inputs of DecodeState.
func Samples() map[byte][]byte {
	h := header{epoch: 3, number: 4, base: 5, created: 6, first: []uint64{7, 8}}
	c := control{last: 1, newest: 2, tails: []tail{{1, 2, 3, 4}}, stateSum: 5, written: 6, flash: 7, cursors: []cursorPos{{id: 1, pos: 2, seq: 3, runs: []run{{1, 2}}}}}
	d := DeadLetter{Uplink: "u", Stream: "s", Seq: 4, Reason: "r", Data: []byte("data"), Driver: "kafka", Attempts: 3}
	return map[byte][]byte{
		'h': h.encode(), 'c': c.encode(), keyLetter: encodeLetter(&d, formatVersion),
		keyRange: encodeRange(1, &DropRange{First: 2, Last: 3, Why: DroppedAge}), keyStream: {'s', 0}, keyCursor: {1, 1},
	}
}

// SealedBlocks tells whether a sealed file gives for each position up to last a block that holds it.
func SealedBlocks(path string, last uint64) error {
	f, err := openBlockFile(path, true)
	if err != nil {
		return err
	}
	defer f.close()
	var u unpacker
	for pos := uint64(1); pos <= last; pos++ {
		raw, err := f.find(pos)
		if err != nil {
			return err
		}
		if raw == nil {
			return fmt.Errorf("%w: no block for %d", ErrDamaged, pos)
		}
		b, err := decodeBlock(raw, &u)
		if err != nil {
			return err
		}
		if pos < b.first || pos > b.last {
			return fmt.Errorf("%w: block for %d has %d to %d", ErrDamaged, pos, b.first, b.last)
		}
	}
	return nil
}

// BlockAt is a block of a position, as version 1 wrote it, and its key.
func BlockAt(pos uint64, records int, data string) (key, raw []byte) {
	var e []entry
	for range records {
		e = append(e, entry{seq: pos, data: []byte(data)})
	}
	return binary.BigEndian.AppendUint64(nil, pos), FirstBlock(encodeBlocks(&packer{codec: CodecNone}, pos, e)[0].raw)
}

// CheckPages reads a bbolt file by its pages, and gives it to bbolt where nothing is wrong with it.
func CheckPages(path string) error {
	_ = SealedBlocks(path, 12)
	_, err := readSummary(path, true)
	if checked := checkFile(path); err == nil {
		err = checked
	}
	if err != nil {
		return err
	}
	db, _, err := openBolt(path, &Options{SegmentBytes: minSegmentBytes, files: systemFiles()})
	if err != nil {
		return err
	}
	return db.Close()
}

// VersionOf returns the version of the format that a segment says it has.
func VersionOf(path string) (uint64, error) {
	s, err := readSummary(path, false)
	return s.header.version, err
}

// SetVersion has a segment say that it is of another version of the format.
func SetVersion(path string, version byte) error {
	o, err := Options{SegmentBytes: minSegmentBytes}.withDefaults()
	if err != nil {
		return err
	}
	db, _, err := openBolt(path, &o)
	if err != nil {
		return err
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		v, err := unseal([]byte(bucketHead), tx.Bucket([]byte(bucketHead)).Get([]byte(bucketHead)))
		if err != nil {
			return err
		}
		v = append([]byte(nil), v...)
		v[0] = version
		return putSingle(tx, bucketHead, v)
	})
	return errors.Join(err, db.Close())
}

// RawBlock is a block as it lies in a file.
type RawBlock struct {
	Raw     []byte
	Records []RawRecord
}

// RawRecord names a record by the number of its stream.
type RawRecord struct {
	Stream uint32
	Seq    uint64
}

// RawBlocks returns the blocks of a sound segment.
func RawBlocks(path string) ([]RawBlock, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	m, err := readMeta(f)
	if err != nil {
		return nil, err
	}
	r := pageReader{f: f, meta: m}
	torn := func(_ uint64, err error) error { return err }
	tops, err := r.topBuckets(torn)
	if err != nil {
		return nil, err
	}
	var out []RawBlock
	var u unpacker
	err = r.blocks(tops, 0, func(fb foundBlock) error {
		b, err := decodeBlock(fb.raw, &u)
		if err != nil {
			return err
		}
		o := RawBlock{Raw: append([]byte(nil), fb.raw...)}
		err = eachRecord(b, func(stream uint32, r Record) error {
			o.Records = append(o.Records, RawRecord{stream, r.Seq})
			return nil
		})
		out = append(out, o)
		return err
	}, torn)
	return out, err
}

// Reuse makes the segment file at path one that was another segment before: the pages of the former life that the present
// one has not used are still in it.
func Reuse(path, former string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	s, err := readSummary(path, true)
	if err != nil {
		return err
	}
	m, err := readMeta(f)
	if err != nil {
		return err
	}
	r := pageReader{f: f, meta: m}
	torn := func(_ uint64, err error) error { return err }
	tops, err := r.topBuckets(torn)
	if err != nil {
		return err
	}
	o, err := Options{SegmentBytes: minSegmentBytes}.withDefaults()
	if err != nil {
		return err
	}
	if err := cleanSpare(filepath.Dir(former), former, &o); err != nil {
		return err
	}
	db, file, _, err := buildSegment(former, &o, s.header, s.control, s.state)
	if err != nil {
		return err
	}
	seg := segment{path: former, db: db, handle: file}
	var y layout
	err = r.blocks(tops, 0, func(fb foundBlock) error {
		_, _, err := seg.write(&placement{large: []block{{first: fb.key, raw: append([]byte(nil), fb.raw...)}}}, &y, nil, &s.control)
		return err
	}, torn)
	if err := errors.Join(err, db.Close()); err != nil {
		return err
	}
	return os.Rename(former, path)
}

// DropPages has the kernel forget a file, and returns how many pages were in memory before and are after.
func DropPages(path string) (before, after int, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return 0, 0, err
	}
	if before, err = resident(f, fi.Size()); err != nil {
		return before, 0, err
	}
	if err := dropPages(path); err != nil {
		return before, 0, err
	}
	after, err = resident(f, fi.Size())
	return before, after, err
}

// DropMapped does the same while the file is mapped and every page of it was touched.
func DropMapped(path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	m, err := syscall.Mmap(int(f.Fd()), 0, len(b), syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		return err
	}
	defer func() { _ = syscall.Munmap(m) }()
	for i := 0; i < len(m); i += pageSize {
		b[0] += m[i]
	}
	if n, err := resident(f, int64(len(m))); err != nil || n == 0 {
		return fmt.Errorf("%d pages are resident: %w", n, err)
	}
	return dropPages(path)
}

// CompareDirect compares what the kernel has of one file with what the medium has of another.
func CompareDirect(cached, medium string) error {
	f, err := os.Open(cached)
	if err != nil {
		return err
	}
	defer f.Close()
	return compareDirect(f, medium, pageSize*4)
}

// InMemory tells whether a file lies on a file system that has no medium.
func InMemory(path string) bool {
	var s syscall.Statfs_t
	return syscall.Statfs(path, &s) == nil && uint32(s.Type) == unix.TMPFS_MAGIC
}

// EmptyFile is what an emptied file begins with.
func EmptyFile() []byte { return emptyFile() }

// Begun returns the number of the newest segment.
func Begun(l *Log) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.active().number
}
