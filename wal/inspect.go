package wal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Report is what Inspect found.
type Report struct {
	Dir        string
	Holder     int // process that has the log open; 0 where none does
	Epoch      uint64
	UUID       string
	Bytes      int64
	Records    uint64 // that are still there
	Segments   []SegmentInfo
	Streams    []StreamStats
	Cursors    []CursorInfo
	Ranges     []DropRange
	Letters    []DeadLetter
	Lost       uint64 // dead letters that went because there were too many
	Refused    uint64
	Written    uint64 // bytes handed to the disk since the log began
	Flash      uint64 // the same as flash memory programs it
	StateKeys  int
	StateBytes int
}

// SegmentInfo describes one file of a log.
type SegmentInfo struct {
	Name        string
	First, Last uint64 // positions; Last is First-1 in an empty one
	Bytes       int64
	Created     time.Time
	Newest      time.Time // largest time of its records; zero without any
}

// Inspect reads a log directory without changing or locking anything, also while a gateway writes to it: it reads the
// few pages it needs, and reads them again where a commit came between. It returns ErrDamaged or ErrVersion, with what
// was read so far.
func Inspect(dir string) (Report, error) {
	// Segments may be freed and begun between listing and reading; some tries always find a quiet moment.
	var r Report
	var err error
	for range 100 {
		if r, err = inspect(dir); !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, errChanged) {
			break
		}
	}
	if err != nil {
		return r, fmt.Errorf("inspect log %s: %w", dir, err)
	}
	return r, nil
}

var errChanged = errors.New("the log changed while it was read")

func inspect(dir string) (Report, error) {
	r := Report{Dir: dir, Holder: holder(dir)}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return r, err
	}
	if err := refusePending(entries); err != nil {
		return r, err
	}
	numbers, err := segmentNumbers(entries)
	if err != nil {
		return r, err
	}
	if len(numbers) == 0 {
		return r, errors.New("no log is here (no .seg files)")
	}
	var last summary
	for i, n := range numbers {
		path := filepath.Join(dir, segmentName(n))
		s, err := readSummary(path, i == len(numbers)-1)
		if _, gone := os.Stat(path); gone != nil {
			return r, errChanged // and what was read may be of the file's next life
		}
		if err != nil {
			return r, err
		}
		if err := follows(&last, &s, i == 0, n); err != nil {
			return r, fmt.Errorf("%s: %w", segmentName(n), err)
		}
		info := SegmentInfo{
			Name: segmentName(n), First: s.header.base, Last: s.control.last, Bytes: s.bytes, Created: time.Unix(0, s.header.created),
		}
		if s.control.newest != 0 {
			info.Newest = time.Unix(0, s.control.newest)
		}
		r.Segments = append(r.Segments, info)
		r.Bytes += s.bytes
		last = s
	}
	if _, err := os.Stat(filepath.Join(dir, segmentName(numbers[len(numbers)-1]+1))); err == nil {
		return r, errChanged
	}
	return r, r.describe(&last)
}

func (r *Report) describe(s *summary) error {
	r.Epoch, r.UUID = s.header.epoch, fmt.Sprintf("%x", s.header.uuid)
	r.Records = s.control.last + 1 - r.Segments[0].First
	st, err := loadStore(s)
	if err != nil {
		return err
	}
	r.Streams, r.Ranges = streamStats(&s.control, &st), dropRanges(&st)
	r.Cursors = cursorInfos(&s.control, &st, func(uint32) bool { return false })
	endSplits(r.Cursors)
	r.Lost, r.Refused, r.StateBytes = s.control.lost, s.control.refused, st.bytes
	r.Written, r.Flash = s.control.written, s.control.flash
	r.StateKeys = len(st.user(""))
	for _, n := range st.letters {
		key := numberedKey(keyLetter, n)
		d, err := decodeLetter(key, st.raw[key])
		if err != nil {
			return err
		}
		r.Letters = append(r.Letters, d)
	}
	return nil
}

// holder returns the process that LOCK names, as long as it lives.
func holder(dir string) int {
	f, err := os.Open(filepath.Join(dir, lockName))
	if err != nil {
		return 0
	}
	defer func() { _ = f.Close() }()
	pid := readPid(f)
	if pid == 0 || errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
		return 0
	}
	return pid
}
