package wal

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// State is how a log does, in one word.
type State string

// The states of a log.
const (
	StateOK      State = "ok"
	StateFull    State = "full"    // at MaxBytes, or the disk is full; it goes on by itself when there is room
	StateStopped State = "stopped" // an I/O error; nothing is acknowledged any more
)

// Stats is a picture of a log. Counters named "since it began" outlive restarts.
type Stats struct {
	State    State
	Err      error // why it is stopped, or what the full disk said
	Epoch    uint64
	Bytes    int64 // used on disk, as MaxBytes counts it
	Disk     int64 // taken on disk, with what is kept for later segments; never more than MaxBytes but for a commit
	MaxBytes int64
	Segments int

	Commits uint64 // since Open; each costs two flushes of the disk
	Written uint64 // bytes handed to the disk since Open
	Flash   uint64 // the same as flash memory programs it, in whole pages of 16 KiB (wear.go)
	Held    int64  // bytes on disk from the first record on that a cursor has yet to pass

	WrittenEver, FlashEver uint64 // Written and Flash since the log began

	Streams         []StreamStats // sorted by name
	Ranges          []DropRange   // oldest first, at most 256
	Refused         uint64        // records refused by drop_newest, since it began
	DeadLetters     int
	LastLetter      uint64 // number of the newest dead letter there ever was
	DeadLettersLost uint64 // dead letters that went because there were too many, since it began
	LettersWaiting  int    // dead letters for which the full disk has no room yet; their records stay in the log
	StateBytes      int
}

// StreamStats counts what one stream has appended since the log began.
type StreamStats struct {
	Name    string
	Records uint64 // also the sequence of the newest one
	Bytes   uint64 // of their data
	Dropped uint64 // went before every cursor had passed them
	Refused uint64 // never got a number, because the lane or the stream's quota was full
	Waiting uint64 // bytes of data that one of its cursors has not passed, and that are queued
	Quota   int64  // bound of Waiting; 0 without one
	Full    bool   // at its quota, while the lane has room
}

// Lag is what a cursor still has before it.
type Lag struct {
	Records uint64
	Bytes   uint64    // of data; between commits far back it is estimated
	Oldest  time.Time // of the first record without outcome; zero without one
}

// CursorInfo says whose a cursor is and where it stands.
type CursorInfo struct {
	Uplink string
	Stream string
	Seq    uint64 // each record up to it has its final outcome
	Until  uint64 // record where it ends, and a second cursor of the uplink begins; 0 for none
	Open   bool
	Lag    Lag // Oldest is set by Cursor.Lag only
}

// Stats returns a picture of the log.
func (l *Log) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := Stats{
		State: StateOK, Err: l.noSpace, Epoch: l.epoch, Bytes: l.usedLocked(), Disk: l.diskLocked(), MaxBytes: l.o.MaxBytes, Segments: len(l.segs),
		Commits: l.counts.commits, Written: l.counts.written, Refused: l.refused,
		DeadLetters: len(l.st.letters), LastLetter: l.ctl.letters, DeadLettersLost: l.ctl.lost, StateBytes: l.st.bytes,
		LettersWaiting: len(l.waitingLetters),
		Streams:        streamStats(&l.ctl, &l.st), Ranges: dropRanges(&l.st),
		Flash: l.counts.flash, WrittenEver: l.ctl.written, FlashEver: l.ctl.flash, Held: l.heldOnDiskLocked(),
	}
	for i := range s.Streams {
		st := &s.Streams[i]
		st.Refused += l.refusals[st.Name]
		st.Waiting = uint64(max(0, l.heldLocked(st.Name)+l.queuedOf[st.Name]))
		st.Quota, st.Full = l.o.Quotas[st.Name], l.atQuotaLocked(st.Name)
	}
	switch {
	case l.err != nil:
		s.State, s.Err = StateStopped, l.err
	case l.isFullLocked():
		s.State = StateFull
	}
	return s
}

func streamStats(c *control, st *store) []StreamStats {
	out := make([]StreamStats, 0, len(c.tails))
	for i, t := range c.tails {
		out = append(out, StreamStats{Name: st.names[i], Records: t.seq, Bytes: t.bytes, Dropped: t.dropped, Refused: t.refused})
	}
	slices.SortFunc(out, func(a, b StreamStats) int { return strings.Compare(a.Name, b.Name) })
	return out
}

func dropRanges(st *store) []DropRange {
	var out []DropRange
	for _, n := range st.ranges {
		// Each was decoded once when it came into the store.
		stream, r, err := decodeRange(st.raw[numberedKey(keyRange, n)])
		if err == nil && int(stream) < len(st.names) {
			r.Stream = st.names[stream]
			out = append(out, r)
		}
	}
	return out
}

// Cursors returns all cursors that the log knows, also those that nobody has opened: they keep records on the disk too.
// They are sorted by stream and uplink.
func (l *Log) Cursors() []CursorInfo {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := cursorInfos(&l.ctl, &l.st, func(id uint32) bool { return l.open[id] != nil })
	for i := range out {
		out[i].Lag = l.lagLocked(l.st.numbers[out[i].Stream], out[i].Seq)
	}
	endSplits(out)
	return out
}

func cursorInfos(c *control, st *store, open func(uint32) bool) []CursorInfo {
	out := make([]CursorInfo, 0, len(c.cursors))
	for _, p := range c.cursors {
		name := st.cursors[p.id]
		out = append(out, CursorInfo{
			Uplink: name.uplink, Stream: st.names[name.stream], Seq: p.seq, Open: open(p.id), Lag: c.tails[name.stream].lag(p.seq),
		})
	}
	slices.SortFunc(out, func(a, b CursorInfo) int {
		return cmp.Or(strings.Compare(a.Stream, b.Stream), strings.Compare(a.Uplink, b.Uplink))
	})
	return out
}

func (t tail) lag(seq uint64) Lag {
	if t.seq <= seq {
		return Lag{}
	}
	n := t.seq - seq
	return Lag{Records: n, Bytes: uint64(float64(t.bytes) / float64(t.seq) * float64(n))}
}

// Lag returns what the cursor still has before it, as of the last commit. It may read a block from the disk.
func (c *Cursor) Lag() Lag {
	c.mu.Lock()
	seq, pos, until := c.win.done, c.posLocked(), c.until
	c.mu.Unlock()
	c.l.mu.Lock()
	lag := c.l.lagLocked(c.stream, seq)
	if until > 0 { // what lies behind is another cursor's
		beyond := c.l.lagLocked(c.stream, max(seq, until))
		lag.Records -= beyond.Records
		lag.Bytes -= min(lag.Bytes, beyond.Bytes)
	}
	c.l.mu.Unlock()
	if lag.Records > 0 {
		lag.Oldest = c.l.timeOf(c.stream, seq+1, pos+1)
	}
	return lag
}

// timeOf returns the time of a record that lies at pos or later. It looks at a few blocks only: where the lane is full
// of other streams, the time of the last one is near enough.
func (l *Log) timeOf(stream uint32, seq, pos uint64) time.Time {
	var near time.Time
	for range 8 {
		b, _, ok, err := l.block(pos)
		if err != nil || !ok {
			break
		}
		near = time.Unix(0, b.time)
		r, err := newBlockReader(b, stream)
		for err == nil {
			var rec Record
			if rec, ok, err = r.next(); !ok {
				break
			}
			if rec.Seq >= seq {
				return rec.Time
			}
		}
		pos = b.last + 1
	}
	return near
}

// Release forgets the cursor of an uplink that is no more, and with it frees what only this cursor kept. It waits until
// that is durable. The cursor must not be open.
func (l *Log) Release(uplink, stream string) error {
	var found error
	err := l.change(func(t *txn) {
		n, ok := l.st.numbers[stream]
		i, id, known := t.findCursor(uplink, n)
		switch {
		case !ok || !known:
			found = errors.New("no such cursor")
			return
		case l.isOpen(id):
			found = errors.New("cursor is open")
			return
		}
		t.ctl.cursors = slices.Delete(t.ctl.cursors, i, i+1)
		t.set(cursorKey(id), nil)
	})
	if err = errors.Join(err, found); err != nil {
		return fmt.Errorf("release cursor of %s on %s: %w", uplink, stream, err)
	}
	return nil
}

// isOpen tells whether somebody uses the cursor. One that was closed is forgotten with the commit that is being made.
func (l *Log) isOpen(id uint32) bool {
	l.mu.Lock()
	c := l.open[id]
	l.mu.Unlock()
	if c == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.closed
}

// change makes a commit with what fn does to it, and waits. fn runs on the committer, again when the disk was full.
func (l *Log) change(fn func(*txn)) error {
	done := make(chan error, 1)
	if err := l.queueChange(fn, false, done); err != nil {
		return err
	}
	return <-done
}

// queueChange has the next commit do fn, one that makes all outcomes durable where it settles; done, which has room for it, gets
// what comes of that.
func (l *Log) queueChange(fn func(*txn), settles bool, done chan<- error) error {
	l.mu.Lock()
	switch {
	case l.closing:
		l.mu.Unlock()
		return ErrClosed
	case l.err != nil:
		defer l.mu.Unlock()
		return l.err
	}
	l.pushLocked(&item{change: fn, settles: settles, done: func(err error) { done <- err }})
	l.mu.Unlock()
	l.wake()
	return nil
}

func cursorKey(id uint32) string {
	return string(binary.AppendUvarint([]byte{keyCursor}, uint64(id)))
}
