package wal

import (
	"encoding/binary"
	"maps"
	"slices"
)

// A gap record tells the far side, in the stream itself, that records of it are gone. It is written in the commit that drops
// them, or, where they were refused and never got a number, before the next record that is taken.

// maxGap bounds the data of a gap record.
const maxGap = 1 << 10

// maxOwed bounds the gap records that wait for room on a full disk.
const maxOwed = 64

// owedGap is a gap record that did not fit on the full disk.
type owedGap struct {
	stream uint32
	r      DropRange
}

// drop counts a range as dropped and appends its gap record.
func (t *txn) drop(stream uint32, first, last uint64, why DropReason) {
	t.dropRange(stream, first, last, why)
	r := DropRange{Stream: t.l.st.names[stream], First: first, Last: last, Count: last - first + 1, When: t.now, Why: why}
	t.dropped = append(t.dropped, owedGap{stream, r})
	if gap := t.l.lastGap[stream]; gap == first && last-first == 0 {
		return // a gap record alone: or a log that nobody reads would tell of its own telling for ever
	}
	if t.noGaps {
		t.owed = append(t.owed, owedGap{stream, r})
		return
	}
	t.gap(stream, r)
}

// gap appends a gap record, where the stream wants it.
func (t *txn) gap(stream uint32, r DropRange) bool {
	if t.l.o.Gap == nil {
		return false
	}
	data := t.l.o.Gap(r.Stream, r)
	if len(data) == 0 || len(data) > maxGap {
		return false
	}
	now := nanos(t.now)
	t.append(stream, now, now, data)
	if t.gaps == nil {
		t.gaps = map[uint32]uint64{}
	}
	t.gaps[stream] = t.ctl.tails[stream].seq
	return true
}

// refusedGap appends the gap record of records that were refused since the last one.
func (t *txn) refusedGap(stream uint32, name string) {
	total := t.ctl.tails[stream].refused
	if t.l.o.Gap == nil || t.told[stream] || total == t.l.st.told[stream] {
		return
	}
	if t.told == nil {
		t.told = map[uint32]bool{}
	}
	t.told[stream] = true
	r := DropRange{Stream: name, Count: total - t.l.st.told[stream], When: t.now, Why: Refused}
	if t.gap(stream, r) {
		t.set(toldKey(stream), binary.AppendUvarint(nil, total))
	}
}

// owedGaps appends the gap records that found no room in earlier commits.
func (t *txn) owedGaps() {
	for _, g := range t.l.owedGaps {
		t.gap(g.stream, g.r)
	}
	t.paid = len(t.l.owedGaps)
}

// settleGapsLocked follows a commit that has succeeded.
func (t *txn) settleGapsLocked() {
	l := t.l
	l.owedGaps = append(slices.Clone(l.owedGaps[t.paid:]), t.owed...)
	l.owedGaps = l.owedGaps[max(0, len(l.owedGaps)-maxOwed):]
	maps.Copy(l.lastGap, t.gaps)
}

// logDropped says which records a commit has dropped.
func (t *txn) logDropped() {
	l := t.l
	for _, d := range t.dropped {
		l.log.Warn("records were dropped", "dir", l.dir, "stream", d.r.Stream,
			"first", d.r.First, "last", d.r.Last, "reason", d.r.Why.String())
	}
}

// append gives a record its numbers.
func (t *txn) append(stream uint32, at, now int64, data []byte) {
	tail := &t.ctl.tails[stream]
	tail.seq++
	tail.bytes += uint64(len(data))
	t.ctl.last++
	t.ctl.newest = max(t.ctl.newest, t.l.ages.stamp(at, now))
	t.entries = append(t.entries, entry{stream: stream, seq: tail.seq, time: at, data: data})
}

func toldKey(stream uint32) string {
	return string(binary.AppendUvarint([]byte{keyTold}, uint64(stream)))
}

// indexTold takes over how many refused records of a stream a gap record has told of.
func (s *store) indexTold(ch Change) error {
	k := decoder{b: []byte(ch.Key[1:])}
	stream := k.uint32()
	v := decoder{b: ch.Value, err: k.end("stream number")}
	total := v.uvarint()
	if err := v.end("refused records"); err != nil {
		return err
	}
	s.told[stream] = total
	return nil
}

// commitDrop makes a commit that raises cursors. Where the full disk has no room for its gap records and dead letters, they are owed: what is
// dropped makes the room.
func (l *Log) commitDrop(raise func(*txn)) error {
	t := l.begin(false)
	raise(t)
	err := t.commit()
	if isNoSpace(err) && len(t.entries)+len(t.letters) > 0 {
		t = l.begin(true)
		t.noGaps = true
		raise(t)
		err = t.commit()
	}
	return err
}
