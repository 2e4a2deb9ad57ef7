package blockdev

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"
)

const (
	pageSize   = 4096
	sectorSize = 512
	atomicHead = 4096 // bytes at the start of the device that are never torn
)

var errNoRecord = errors.New("no record was begun")

type page [pageSize]byte

// disk is the contents of a device. Copies share their pages; one that is written is first made the writer's own.
type disk struct {
	pages []*page // nil: zeros
	own   []bool  // no other disk has this page
}

func newDisk(size int64) disk {
	n := (size + pageSize - 1) / pageSize
	return disk{pages: make([]*page, n), own: make([]bool, n)}
}

// snapshot returns a copy. From then on neither of them writes into the pages of the other.
func (d *disk) snapshot() disk {
	clear(d.own)
	return disk{pages: slices.Clone(d.pages), own: make([]bool, len(d.own))}
}

func (d *disk) write(off int64, data []byte) {
	for len(data) > 0 {
		i, at := off/pageSize, off%pageSize
		if !d.own[i] {
			fresh := new(page)
			if old := d.pages[i]; old != nil {
				*fresh = *old
			}
			d.pages[i], d.own[i] = fresh, true
		}
		n := copy(d.pages[i][at:], data)
		off, data = off+int64(n), data[n:]
	}
}

func (d *disk) read(off int64, into []byte) {
	for len(into) > 0 {
		i, at := off/pageSize, off%pageSize
		n := int(min(int64(len(into)), pageSize-at))
		if p := d.pages[i]; p != nil {
			copy(into[:n], p[at:])
		} else {
			clear(into[:n])
		}
		off, into = off+int64(n), into[n:]
	}
}

// record is an event with what was written.
type record struct {
	Event
	data []byte
}

// medium is one device as the serving process has it.
type medium struct {
	size int64

	mu     sync.Mutex // guards the fields below
	d      disk
	first  disk       // as it was made
	rec    *recording // nil: none was begun
	timing Timing
	free   time.Time // when the emulated device has done what it was told
	fault  Fault
	seen   int64 // operations that the fault may have met
	counts Counts
	cut    cutter
}

// recording is what has happened since a moment. Its events are never changed, only more come.
type recording struct {
	base   disk // as it was then
	events []record
}

func newMedium(size int64, image string, timing Timing) (*medium, error) {
	m := &medium{size: size, d: newDisk(size), timing: timing}
	if image != "" {
		b, err := os.ReadFile(image)
		if err != nil {
			return nil, err
		}
		if int64(len(b)) > size {
			return nil, fmt.Errorf("image has %d bytes, the device %d", len(b), size)
		}
		for off := 0; off < len(b); off += pageSize {
			chunk := b[off:min(off+pageSize, len(b))]
			if *(*page)(padded(chunk)) != (page{}) {
				m.d.write(int64(off), chunk)
			}
		}
	}
	m.first = m.d.snapshot()
	return m, nil
}

// padded returns b as a whole page.
func padded(b []byte) []byte {
	if len(b) == pageSize {
		return b
	}
	return append(slices.Clone(b), make([]byte, pageSize-len(b))...)
}

func (m *medium) read(off int64, into []byte) syscall.Errno {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.counts.Reads++
	m.counts.ReadBytes += int64(len(into))
	m.takeTime(m.timing.Read, len(into))
	if m.failing(OpRead, off, len(into)) {
		return syscall.EIO
	}
	m.d.read(off, into)
	return 0
}

func (m *medium) write(off int64, data []byte) syscall.Errno {
	m.mu.Lock()
	defer m.mu.Unlock()
	if off+int64(len(data)) > m.size {
		return syscall.ENOSPC
	}
	m.counts.Writes++
	m.counts.Bytes += int64(len(data))
	m.takeTime(m.timing.Write, len(data))
	if m.failing(OpWrite, off, len(data)) {
		return syscall.EIO
	}
	m.d.write(off, data)
	m.note(Event{Op: OpWrite, Off: off, Len: len(data)}, data)
	return 0
}

func (m *medium) flush() syscall.Errno {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.counts.Flushes++
	m.takeTime(m.timing.Flush, 0)
	if m.failing(OpFlush, 0, 0) {
		return syscall.EIO
	}
	m.note(Event{Op: OpFlush}, nil)
	return 0
}

// note puts an event into the record. Operations hold the mutex from beginning to end, so a flush covers all before it.
func (m *medium) note(e Event, data []byte) {
	if m.rec != nil {
		m.rec.events = append(m.rec.events, record{e, slices.Clone(data)})
	}
}

// failing tells whether the fault meets an operation.
func (m *medium) failing(op Op, off int64, n int) bool {
	f := &m.fault
	switch {
	case f.Ops&op == 0:
		return false
	case f.Len > 0 && (off >= f.Off+f.Len || off+int64(n) <= f.Off):
		return false
	}
	m.seen++
	if m.seen <= f.After || f.Times > 0 && m.seen > f.After+f.Times {
		return false
	}
	m.counts.Failed++
	return true
}

// mark puts a mark into the record, and returns its place.
func (m *medium) mark() (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.rec == nil {
		return 0, errNoRecord
	}
	m.note(Event{Op: OpMark}, nil)
	return len(m.rec.events) - 1, nil
}

func (m *medium) record() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.rec = &recording{base: m.d.snapshot()}
}

func (m *medium) list() []Event {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.rec == nil {
		return nil
	}
	out := make([]Event, len(m.rec.events))
	for i := range m.rec.events {
		out[i] = m.rec.events[i].Event
	}
	return out
}

// reset gives the device other contents, and ends what was said of the old ones.
func (m *medium) reset(d disk) {
	m.d, m.rec, m.fault, m.counts = d, nil, Fault{}, Counts{}
}

// cutter is how far a replica has followed a record.
type cutter struct {
	of      *recording
	at      int   // events before this one have happened
	lies    int   // flushes that the device owes
	durable disk  // what was flushed
	waiting []int // writes that were not, in their order
	flushes []int // those that have happened
}

// leave gives m the contents that a power cut in the record of another device may leave. It returns how many writes were
// not flushed then.
func (m *medium) leave(of *medium, how Cut) (int, error) {
	of.mu.Lock()
	rec := of.rec
	if rec == nil {
		of.mu.Unlock()
		return 0, errNoRecord
	}
	events := rec.events
	if how.At < 0 || how.At > len(events) {
		of.mu.Unlock()
		return 0, fmt.Errorf("cut before event %d of %d", how.At, len(events))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	c := &m.cut
	if c.of != rec || c.at > how.At || c.lies != how.Lies {
		*c = cutter{of: rec, lies: how.Lies, durable: rec.base.snapshot()}
	}
	of.mu.Unlock()
	c.follow(events, how.At)
	d := c.durable.snapshot()
	how.apply(&d, events, c.waiting)
	m.reset(d)
	return len(c.waiting), nil
}

// follow goes on to the moment before event at.
func (c *cutter) follow(events []record, at int) {
	for ; c.at < at; c.at++ {
		switch events[c.at].Op {
		default:
		case OpWrite:
			c.waiting = append(c.waiting, c.at)
		case OpFlush:
			// A device that lies makes durable now what it should have with an earlier flush.
			if c.flushes = append(c.flushes, c.at); len(c.flushes) <= c.lies {
				continue
			}
			covered := c.flushes[len(c.flushes)-1-c.lies]
			n := 0
			for ; n < len(c.waiting) && c.waiting[n] < covered; n++ {
				c.durable.write(events[c.waiting[n]].Off, events[c.waiting[n]].data)
			}
			c.waiting = c.waiting[n:]
		}
	}
}

// apply lets those of the waiting writes reach the disk that the variant says.
func (how Cut) apply(d *disk, events []record, waiting []int) {
	rnd := rand.New(rand.NewPCG(how.Seed, uint64(how.At)))
	torn := -1
	if how.Variant == Torn && len(waiting) > 0 {
		torn = rnd.IntN(len(waiting))
	}
	for i, n := range waiting {
		e := &events[n]
		switch how.Variant {
		case Nothing:
		case Everything:
			d.write(e.Off, e.data)
		case Subset:
			if rnd.IntN(2) == 0 {
				d.write(e.Off, e.data)
			}
		case Torn:
			switch {
			case i < torn:
				d.write(e.Off, e.data)
			case i == torn:
				d.write(e.Off, e.data[:tear(e, rnd)])
			}
		case Sectors:
			for at := 0; at < len(e.data); {
				size := sectorSize
				if e.Off+int64(at) < atomicHead {
					size = atomicHead
				}
				end := min(at+size, len(e.data))
				if rnd.IntN(2) == 0 {
					d.write(e.Off+int64(at), e.data[at:end])
				}
				at = end
			}
		}
	}
}

// tear returns how many bytes of a write arrive: whole sectors.
func tear(e *record, rnd *rand.Rand) int {
	n := rnd.IntN(len(e.data)/sectorSize+1) * sectorSize
	if e.Off+int64(n) < atomicHead {
		return 0
	}
	return n
}
