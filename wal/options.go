package wal

import (
	"fmt"
	"log/slog"
	"os"
	"time"

	"go.etcd.io/bbolt"
)

// Options of Open. The zero value is a log without bounds of its own: it ends where the disk ends.
type Options struct {
	// MaxBytes bounds what the log takes on disk; 0 means no bound. At least 512 KiB.
	MaxBytes int64
	// MaxAge bounds the age of the newest record of a segment; 0 means no bound. Whole segments go, so a record may
	// outlive MaxAge by the time its segment took to fill. A step of the clock does not age records (see age.go).
	MaxAge time.Duration
	// Full says what happens at MaxBytes and on a full disk. Empty means Block.
	Full Policy
	// SegmentBytes is the size at which a new segment begins: 16 MiB by default, 4 MiB where MaxBytes is below 64 MiB,
	// and never more than a quarter of MaxBytes, because space comes back by whole segments only.
	SegmentBytes int64
	// UrgentDelay is how long a commit for a waiting caller lingers to take more with it. 0 means not at all.
	UrgentDelay time.Duration
	// MaxDelay is the longest time until a batch that nobody waits for is committed. 0 means 1 s.
	MaxDelay time.Duration
	// NewEpoch is the epoch given to a log that Open creates; 0 means 1. An existing log keeps its own.
	NewEpoch uint64
	// Window is the number of records that a cursor may have without outcome. 0 means 131,072.
	Window int
	// Codec says how blocks are compressed. Empty means CodecS2.
	Codec Codec
	// Verify says how much of an existing log Open looks at. Empty means VerifyNewest.
	Verify VerifyMode
	// FromMedium has Open drop from the kernel's cache what it remembers of the files, and read them from the medium. That
	// is how a log is opened again that has stopped (ErrStopped): after a failed flush the cache may show what was never
	// written.
	FromMedium bool
	// Quotas bounds the bytes of data that a stream may have waiting for its cursors, by name of the stream. At its
	// quota a stream is full for itself alone, and Full is followed for it: Append waits, while batches of other streams
	// pass; or it is refused; or the stream's oldest records are dropped until a quarter of the quota is free, counted. A
	// batch with several streams waits or is refused as a whole.
	Quotas map[string]int64
	// Gap, where it is set, returns the data of a record that tells the far side of a drop, or nil for none. The record is
	// appended to the stream in the same commit as the drop. Where records were refused, and so never got a number, r has
	// only their Count, and the record comes before the next one that is taken. More than 1 KiB counts as nil. Gap is
	// called by Open and by the committer, and must not block.
	Gap func(stream string, r DropRange) []byte
	// Fault is for tests of those who use a log: it is asked before each commit ("commit"), and where it returns an error
	// the commit fails with it, as with an error of the medium.
	Fault func(op string) error
	// Log takes one line for each change of state. Nil means silence.
	Log *slog.Logger

	// Tests reach the write path of each file, and what happens to the directory, through these.
	opened func(*bbolt.DB)
	files  fileOps
	clock  func() (wall time.Time, mono time.Duration)
}

// fileOps are the calls that a directory's contents, and with them the safety of the log, depend on.
type fileOps struct {
	rename func(from, to string) error
	remove func(path string) error
	open   func(path string, flag int, mode os.FileMode) (*os.File, error) // of a segment
	sync   func(path string) error                                         // of a directory: its names; of a file: its contents

	// Of a file that bbolt does not have open: bytes that are written to it, and its contents.
	writeAt  func(f *os.File, b []byte, off int64) (int, error)
	syncFile func(f *os.File) error
}

// systemFiles are the calls of the operating system.
func systemFiles() fileOps {
	return fileOps{
		rename: os.Rename, remove: os.Remove, open: os.OpenFile, sync: syncPath,
		writeAt: (*os.File).WriteAt, syncFile: (*os.File).Sync,
	}
}

const (
	minMaxBytes     = 512 << 10
	minQuota        = 64 << 10
	minSegmentBytes = 64 << 10
	bigLog          = 64 << 20 // MaxBytes from which segments are large
	idleCommit      = time.Second
)

func (o Options) withDefaults() (Options, error) {
	if o.Full == "" {
		o.Full = Block
	}
	switch o.Full {
	case Block, DropOldest, DropNewest:
	default:
		return o, fmt.Errorf("unknown policy %q (want %s, %s or %s)", o.Full, Block, DropOldest, DropNewest)
	}
	if o.Codec == "" {
		o.Codec = CodecS2
	}
	switch o.Codec {
	case CodecS2, CodecZstd, CodecNone:
	default:
		return o, fmt.Errorf("unknown codec %q (want %s, %s or %s)", o.Codec, CodecS2, CodecZstd, CodecNone)
	}
	switch o.Verify {
	case "", VerifyNewest, VerifyFull:
	default:
		return o, fmt.Errorf("unknown mode of verify %q (want %s or %s)", o.Verify, VerifyNewest, VerifyFull)
	}
	if o.MaxBytes < 0 || o.MaxBytes > 0 && o.MaxBytes < minMaxBytes {
		return o, fmt.Errorf("max_bytes is %d (want 0 or at least %d)", o.MaxBytes, minMaxBytes)
	}
	if o.SegmentBytes == 0 {
		o.SegmentBytes = 16 << 20
		if o.MaxBytes > 0 && o.MaxBytes < bigLog {
			o.SegmentBytes = 4 << 20
		}
	}
	if o.MaxBytes > 0 {
		o.SegmentBytes = min(o.SegmentBytes, o.MaxBytes/4)
	}
	o.SegmentBytes = min(max(o.SegmentBytes, minSegmentBytes), 256<<20)
	if o.MaxDelay <= 0 {
		o.MaxDelay = time.Second
	}
	if o.NewEpoch == 0 {
		o.NewEpoch = 1
	}
	if o.Window <= 0 {
		o.Window = 131_072
	}
	for stream, quota := range o.Quotas {
		if quota < minQuota || o.MaxBytes > 0 && quota >= o.MaxBytes {
			return o, fmt.Errorf("quota of stream %s is %d (want at least %d and less than max_bytes)", stream, quota, int64(minQuota))
		}
	}
	if o.clock == nil {
		started := time.Now()
		o.clock = func() (time.Time, time.Duration) {
			now := time.Now()
			return now.Round(0), now.Sub(started)
		}
	}
	if o.files.sync == nil {
		o.files = systemFiles()
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o, nil
}
