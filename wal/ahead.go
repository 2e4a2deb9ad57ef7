package wal

import (
	"os"

	"golang.org/x/sys/unix"
)

const (
	// aheadBytes is how far the kernel is asked to read before a cursor that goes through a file. bbolt maps its files for
	// access in no order, where each page is a request of its own: a quarter of what the device could give.
	aheadBytes = 2 << 20
	// aheadStep is what is asked for at a time. Linux cuts a larger request to what the device takes at once.
	aheadStep = 128 << 10
	// nearBytes is how far apart reads may be that are taken for a walk through the file, and nearReads how many.
	nearBytes = 64 << 10
	nearReads = 8
)

// readAhead asks the kernel for what will be read of a file.
type readAhead struct {
	f        *os.File
	from, to int64 // what the kernel was asked for

	last int64 // where the last read of a walk ended
	near int   // how many in a row were near each other
}

// ask has [at, at+n) read, and what comes behind it, where the kernel was not asked for it already. It does not wait.
func (r *readAhead) ask(at, n int64) {
	if at >= r.from && at+n+aheadBytes/2 <= r.to {
		return
	}
	from := r.to
	if at < r.from || at > r.to {
		r.from, from = at, at // a jump
	}
	r.to = max(at+n, from) + aheadBytes
	for ; from < r.to; from += aheadStep {
		_ = unix.Fadvise(int(r.f.Fd()), from, aheadStep, unix.FADV_WILLNEED) // only a hint
	}
}

// ReadAt reads ahead where it is called for places that lie near each other: of a file of small blocks nearly each page is
// looked at, and one request each would take the device's time. Of one of large blocks it is one page in sixty.
func (r *readAhead) ReadAt(b []byte, off int64) (int, error) {
	if gap := off - r.last; gap < 0 || gap > nearBytes {
		r.near = 0
	} else if r.near++; r.near > nearReads {
		r.ask(off, int64(len(b)))
	}
	r.last = off + int64(len(b))
	return r.f.ReadAt(b, off)
}
