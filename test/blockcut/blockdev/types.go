package blockdev

import "time"

// Op is a kind of operation, or a set of them.
type Op uint8

// The operations. OpMark is one of the test's, not of the device.
const (
	OpWrite Op = 1 << iota
	OpFlush
	OpRead
	OpMark
)

// Event is one entry of a record.
type Event struct {
	Op  Op
	Off int64 // of a write
	Len int   // of a write
}

// Variant says what a cut leaves of the writes that were not flushed.
type Variant string

// The variants.
const (
	Nothing    Variant = "nothing"
	Everything Variant = "everything"
	Subset     Variant = "subset"  // each write, or not
	Torn       Variant = "torn"    // the writes before one, and the first sectors of that one
	Sectors    Variant = "sectors" // each sector, or not
)

// Variants returns all that make a difference when so many writes were not flushed.
func Variants(waiting int) []Variant {
	if waiting == 0 {
		return []Variant{Nothing}
	}
	return []Variant{Nothing, Everything, Subset, Torn, Sectors}
}

// Cut is a power cut in a record.
type Cut struct {
	At      int // the cut falls before this event
	Variant Variant
	Seed    uint64 // of what is random
	Lies    int    // control: the device says that it has flushed, and does it so many flushes later
}

// Fault makes operations fail with EIO, until the next one replaces it. The zero value ends it.
type Fault struct {
	Ops   Op    // which
	After int64 // so many go well first
	Times int64 // how many fail; 0: all from there on
	Off   int64 // only those that touch this range,
	Len   int64 // where it is not empty
}

// Counts are what has reached a device.
type Counts struct {
	Writes, Bytes    int64
	Flushes          int64
	Reads, ReadBytes int64
	Failed           int64 // answered with EIO
}

// Timing is how long a device takes. The zero value is as fast as memory. Operations follow one another.
type Timing struct {
	Write, Flush, Read time.Duration // for each
	BytesPerSecond     int64         // of reads and writes; 0: no time
}

// EMMC returns the timing of a cheap flash chip: 80 µs and 40 MB/s for a write, 2 ms for a flush, 100 µs for a read.
func EMMC() Timing {
	return Timing{Write: 80 * time.Microsecond, Flush: 2 * time.Millisecond, Read: 100 * time.Microsecond, BytesPerSecond: 40e6}
}

// Options of New.
type Options struct {
	Image  string // file with the first contents; what it does not have is zeros
	Timing Timing
	// SectorSize is what the kernel takes for the size of a sector: 512 by default, or 4096. With 4096 a mount of ext4 keeps
	// what Warm has read. A cut tears sectors of 512 bytes in either case.
	SectorSize int
}
