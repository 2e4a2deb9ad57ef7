package modbus

import (
	"cmp"
	"slices"
	"time"
)

// Most of what one request may ask for (Modbus Application Protocol V1.1b3, sections 6.1 to 6.4): the byte count of the
// reply has one byte, and the reply 253.
const (
	maxRegisters = 125
	maxBits      = 2000
)

// table is one of the four address spaces of a unit.
type table uint8

const (
	holding table = iota
	input
	coil
	discrete
)

var tables = map[string]table{"holding": holding, "input": input, "coil": coil, "discrete": discrete}

func (t table) isBits() bool { return t == coil || t == discrete }

// bytesEach is how many bytes of a block's reply belong to one address.
func (t table) bytesEach() int {
	if t.isBits() {
		return 1
	}
	return 2
}

// point is a Point made ready for reading.
type point struct {
	topic   string
	measure string // unit of measurement
	table   table
	addr    int // from 0
	width   int // registers or bits
	every   time.Duration
	decode  decoder
}

func (p *point) end() int { return p.addr + p.width }

// block is what one request reads: points of one table and period whose addresses follow each other without a hole.
type block struct {
	unit   *unit
	table  table
	addr   int
	count  int // registers or bits
	every  time.Duration
	points []*point // by address

	due      time.Time // tick of the fixed-rate schedule that is to be served next
	served   bool      // has been served at least once
	fault    string    // why the last reading failed, "" where it did not
	repeated bool      // this cycle's request was sent twice already
	// keepUntil is when a block all of whose points were refused may be taken apart again. Without this pause a unit
	// that refuses everything would get a request for each point in each cycle.
	keepUntil time.Time
	heirs     []*block // what the block falls apart into after this cycle
}

// plan groups the points of a unit into blocks. No point is ever divided between two requests.
func plan(u *unit, points []*point, maxRegisters, maxBits int) []*block {
	sorted := slices.Clone(points)
	slices.SortStableFunc(sorted, func(a, b *point) int {
		return cmp.Or(cmp.Compare(a.table, b.table), cmp.Compare(a.every, b.every), cmp.Compare(a.addr, b.addr), cmp.Compare(a.width, b.width))
	})
	var blocks []*block
	start := 0
	for start < len(sorted) {
		first, end, next := sorted[start], sorted[start].end(), start+1
		limit := maxRegisters
		if first.table.isBits() {
			limit = maxBits
		}
		for ; next < len(sorted); next++ {
			p := sorted[next]
			if p.table != first.table || p.every != first.every || p.addr > end || max(end, p.end())-first.addr > limit {
				break
			}
			end = max(end, p.end())
		}
		blocks = append(blocks, newBlock(u, sorted[start:next:next]))
		start = next
	}
	return blocks
}

// newBlock returns the block of points, which are sorted by address.
func newBlock(u *unit, points []*point) *block {
	first := points[0]
	b := &block{unit: u, table: first.table, addr: first.addr, every: first.every, points: points}
	for _, p := range points {
		b.count = max(b.count, p.end()-b.addr)
	}
	return b
}

// raw returns the part of a reply that belongs to p.
func (b *block) raw(reply []byte, p *point) []byte {
	each := b.table.bytesEach()
	return reply[(p.addr-b.addr)*each : (p.end()-b.addr)*each]
}

// apart returns what to read instead of b, of whose points the unit refuses some and gives the others: each refused
// point alone, so that it spoils no other and is noticed when it comes to life, and the runs between them.
func (b *block) apart(refused []bool) []*block {
	var blocks []*block
	start := 0
	for start < len(b.points) {
		end, next := b.points[start].end(), start+1
		for ; !refused[start] && next < len(b.points); next++ {
			p := b.points[next]
			if refused[next] || p.addr > end {
				break
			}
			end = max(end, p.end())
		}
		blocks = append(blocks, newBlock(b.unit, b.points[start:next:next]))
		start = next
	}
	return blocks
}

// halves returns b as two blocks, for a unit that gives every point of b but not all of them at once.
func (b *block) halves() []*block {
	middle := len(b.points) / 2
	return []*block{newBlock(b.unit, b.points[:middle:middle]), newBlock(b.unit, b.points[middle:])}
}

// deadline is when the tick that b waits for is over.
func (b *block) deadline() time.Time { return b.due.Add(b.every) }

// advance moves the schedule on after the tick at b.due was served, and returns how many ticks were missed. The last
// tick that has come stays due, those before it are skipped: a slow unit makes readings fewer, and nothing queues up.
func (b *block) advance(now time.Time) (missed uint64) {
	b.due = b.due.Add(b.every)
	if late := now.Sub(b.due); late >= b.every {
		n := late / b.every
		b.due = b.due.Add(n * b.every)
		missed = uint64(n)
	}
	return missed
}
