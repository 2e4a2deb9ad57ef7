package wal

import (
	"encoding/binary"
	"slices"
	"time"
)

// txn is one commit in the making: what will be written, and what will then hold in memory. Nothing of the log changes
// until publish.
type txn struct {
	l           *Log
	base        uint64 // position of its first record
	ctl         control
	entries     []entry
	changes     []Change
	letters     []DeadLetter
	lettersWait bool              // they are not in it
	fresh       map[string]uint32 // streams that this commit numbers
	names       map[uint32]cursorName
	closed      []*Cursor // cursors that were closed and are now written for the last time
	now         time.Time

	dropped  []owedGap         // ranges that this commit drops
	gaps     map[uint32]uint64 // gap records that it has, by stream
	told     map[uint32]bool   // streams whose refused records it has told of
	noGaps   bool              // there is no room for gap records: they are owed
	owed     []owedGap
	paid     int               // how many that were owed it has
	refusals map[string]uint64 // refused records that it makes durable
	purged   map[uint64]bool   // dead letters that go
}

// begin starts a commit with where the cursors stand now, and their new dead letters, or without them where those have to wait for room.
func (l *Log) begin(lettersWait bool) *txn {
	l.moved.Store(false)
	l.hurry.Store(false)
	l.mu.Lock()
	cursors := l.openCursors()
	refused := l.refused
	l.mu.Unlock()

	l.ages.now(l.o.clock())
	t := &txn{l: l, base: l.ctl.last + 1, ctl: l.ctl, now: time.Now(), entries: l.entries[:0]}
	t.ctl.tails = slices.Clone(l.ctl.tails)
	t.ctl.cursors = slices.Clone(l.ctl.cursors)
	t.ctl.refused = refused
	letters := l.held
	l.held = nil
	for _, c := range cursors {
		pos, more, closed := c.snapshot()
		letters = append(letters, more...)
		if p := t.ctl.cursor(pos.id); p != nil && pos.seq >= p.seq {
			pos.pos = max(pos.pos, p.pos)
			*p = pos
		}
		if closed {
			t.closed = append(t.closed, c)
		}
	}
	for i := range t.ctl.cursors {
		// A cursor that has passed all of its stream passes the other streams' records with it.
		if p := &t.ctl.cursors[i]; p.seq >= l.ctl.tails[l.st.cursors[p.id].stream].seq {
			p.pos = max(p.pos, l.ctl.last)
		}
	}
	if t.lettersWait = lettersWait; lettersWait {
		l.await(letters)
		t.holdBack(l.held)
		t.closed = nil // they are not written for the last time
	} else {
		t.letters = letters
	}
	t.ctl.lost += l.heldLost
	t.keepLetters()
	t.takeRefusals()
	return t
}

// add takes an item into the commit.
func (t *txn) add(it *item) {
	if it.change != nil {
		it.change(t)
		return
	}
	now := nanos(t.now)
	for i := range it.batch.Entries {
		e := &it.batch.Entries[i]
		at := now
		if !e.Time.IsZero() {
			at = nanos(e.Time)
		}
		n := t.stream(e.Stream)
		t.refusedGap(n, e.Stream)
		t.append(n, at, now, e.Data)
	}
	for _, c := range it.batch.State {
		t.set(string(keyUser)+c.Key, c.Value)
	}
	t.purge(it.batch.Letters)
}

func (t *txn) set(key string, value []byte) {
	t.changes = append(t.changes, Change{Key: key, Value: value})
}

// stream returns the number of a stream, a new one where the lane has not seen it.
func (t *txn) stream(name string) uint32 {
	if n, ok := t.l.st.numbers[name]; ok {
		return n
	}
	if n, ok := t.fresh[name]; ok {
		return n
	}
	n := uint32(len(t.ctl.tails))
	if t.fresh == nil {
		t.fresh = map[string]uint32{}
	}
	t.fresh[name] = n
	t.ctl.tails = append(t.ctl.tails, tail{})
	t.set(string(keyStream)+name, binary.AppendUvarint(nil, uint64(n)))
	return n
}

// findCursor returns where the cursor of an uplink on a stream stands in this commit.
func (t *txn) findCursor(uplink string, stream uint32) (i int, id uint32, ok bool) {
	want := cursorName{uplink, stream}
	for i := range t.ctl.cursors {
		id := t.ctl.cursors[i].id
		if t.l.st.cursors[id] == want || t.names[id] == want {
			return i, id, true
		}
	}
	return 0, 0, false
}

// keepLetters adds the new dead letters to the state and lets the oldest go where there are too many.
func (t *txn) keepLetters() {
	st := &t.l.st
	size, most := st.letterBytes, t.l.maxLetters()
	if len(t.letters) == 0 && size <= most {
		return
	}
	type pair struct {
		key   string
		value []byte
	}
	seen := map[letterID]bool{}
	var fresh []pair
	for i := range t.letters {
		d := &t.letters[i]
		if d.gone {
			t.ctl.lost++
			continue
		}
		id := letterID{d.Uplink, d.Stream, d.Seq}
		if _, known := st.letterIDs[id]; known || seen[id] {
			continue
		}
		seen[id] = true
		t.ctl.letters++
		p := pair{numberedKey(keyLetter, t.ctl.letters), encodeLetter(d, t.l.active().version)}
		size += pairSize(p.key, p.value)
		fresh = append(fresh, p)
	}
	for _, n := range st.letters {
		if size <= most {
			break
		}
		key := numberedKey(keyLetter, n)
		size -= pairSize(key, st.raw[key])
		t.purge([]uint64{n})
		t.ctl.lost++
	}
	for len(fresh) > 0 && size > most {
		size -= pairSize(fresh[0].key, fresh[0].value)
		fresh = fresh[1:]
		t.ctl.lost++
	}
	for _, p := range fresh {
		t.set(p.key, p.value)
	}
}

// maxLetters bounds the bytes of dead letters. They are carried into each segment, so a small log keeps fewer: what they
// take is not there for records.
func (l *Log) maxLetters() int {
	if l.o.MaxBytes == 0 {
		return maxLetters
	}
	return int(min(maxLetters, l.o.MaxBytes/16))
}

// dropRange counts records that go before every cursor has passed them.
func (t *txn) dropRange(stream uint32, first, last uint64, why DropReason) {
	t.ctl.tails[stream].dropped += last - first + 1
	t.ctl.ranges++
	r := DropRange{First: first, Last: last, When: t.now, Why: why}
	t.set(numberedKey(keyRange, t.ctl.ranges), encodeRange(stream, &r))
	if old := int(t.ctl.ranges) - maxRanges; old > 0 {
		key := numberedKey(keyRange, uint64(old))
		if _, ok := t.l.st.raw[key]; ok {
			t.set(key, nil)
		}
	}
}

// commit writes t to the active segment and, once it is durable, makes it the state of the log.
func (t *txn) commit() error {
	l := t.l
	l.packer.reset()
	blocks := encodeBlocks(&l.packer, t.base, t.entries)
	where, after := l.layout.place(&l.packer, t.base, t.entries, blocks)
	clear(t.entries) // the blocks have copies
	t.entries, l.entries = nil, t.entries[:0]
	t.ctl.stateSum, t.ctl.written, t.ctl.flash = l.st.sumAfter(t.changes), l.ctl.written, l.ctl.flash
	size, written, err := l.writeActive(&where, &after, t)
	if err != nil {
		if !t.lettersWait {
			l.held = t.letters
		}
		l.moved.Store(true)
		return err
	}
	t.publish(blocks, after, size, written)
	if !t.lettersWait && len(t.letters) > 0 {
		l.setWaiting(nil)
	}
	t.logDropped()
	return nil
}

// publish makes t, which is durable, the state of the log.
func (t *txn) publish(blocks []block, after layout, size, written int64) {
	l := t.l
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.active()
	a.bytes, a.newest = size, t.ctl.newest
	l.ring.add(blocks)
	l.ctl, l.layout, l.heldLost = t.ctl, after, 0
	l.ends.note(&t.ctl)
	t.settleRefusalsLocked()
	t.settleGapsLocked()
	l.countLocked(written)
	for _, ch := range t.changes {
		if err := l.st.apply(ch); err != nil {
			panic("wal: own change cannot be applied: " + err.Error())
		}
	}
	for _, c := range t.closed {
		if l.open[c.id] == c {
			delete(l.open, c.id)
		}
	}
}

func (l *Log) writeActive(where *placement, after *layout, t *txn) (size, written int64, err error) {
	if l.o.Fault != nil {
		if err := l.o.Fault("commit"); err != nil {
			return 0, 0, err
		}
	}
	return l.active().write(where, after, t.changes, &t.ctl)
}

// countLocked counts a commit and the bytes it wrote.
func (l *Log) countLocked(written int64) {
	flash := flashBytes(written)
	l.counts.commits++
	l.counts.written += uint64(written)
	l.counts.flash += flash
	l.ctl.written += uint64(written)
	l.ctl.flash += flash
}
