package wal

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Log is the log of one lane. Its methods may be called from any goroutine.
//
// One goroutine, the committer, is the only one that writes: to the files, and to everything below mu that describes
// what is committed. So it reads those without mu, and others read them under mu. It starts in Open and ends in Close.
type Log struct {
	dir  string
	o    Options
	log  *slog.Logger
	lock *os.File
	uuid [16]byte

	epoch    uint64
	poke     chan struct{} // wakes the committer; holds one
	finished chan struct{} // closed when the committer has ended
	moved    atomic.Bool   // a cursor has moved since the last commit
	hurry    atomic.Bool   // the cursors should be written at once
	unpacker unpacker

	mu sync.Mutex // guards the fields below

	// What waits.
	pending  []*item // the next commits, in order
	inflight []*item // the commit that is being made
	queued   int     // cost of both
	waiters  []*waiter

	// Quotas of streams.
	quotaLine   []*waiter         // wait for room in a quota, before they wait for room in the lane
	queuedOf    map[string]int64  // bytes of data past the quota and not committed, by stream
	lackedOf    map[string]int64  // the last that found no room in the quota, by stream
	fullStreams map[string]bool   // what the last log line said
	refusals    map[string]uint64 // records refused since the last commit, by stream
	quotaNames  []string          // sorted; never changes

	wanted  int // largest item that found no room since the committer looked
	lacked  int // the last item that found no room; the log is full as long as that is so
	closing bool

	// What is committed. Written by the committer only.
	ctl    control
	st     store
	segs   []*segment // oldest first; the last one is active
	spares []spare    // files for later segments; the first one is emptied first
	ring   ring
	ends   ends

	open    map[uint32]*Cursor
	err     error // why the log has stopped; wraps ErrStopped
	closed  bool
	noSpace error     // the disk is full; nil when the last try went well
	retryAt time.Time // when to try again on a full disk
	stuck   bool      // not even a cursor could be opened or released on it
	wasFull bool      // what the last log line said
	refused uint64    // records refused by drop_newest since the log began
	counts  counters

	waitingLetters map[letterID]bool // what held has

	// The committer's own.
	layout    layout
	preparing chan error    // what comes of emptying the first spare; nil where nobody does
	held      []DeadLetter  // letters that wait for room
	heldLost  uint64        // letters that were given up since the last commit
	aged      time.Time     // when max_age was last looked at
	took      time.Duration // of the last commit
	packer    packer
	entries   []entry // of the commit that is being made
	room      []*item // for the next pending
	ages      ageClock
	owedGaps  []owedGap         // gap records that found no room on the full disk
	lastGap   map[uint32]uint64 // the newest gap record of each stream since Open
	watch     watch             // whether the directory is still there
	noFile    bool              // the last log line said that there is no room for a new segment
	fileAt    time.Time         // when to try again to make one
}

// counters since the log was opened.
type counters struct {
	commits, written, flash uint64
}

// Open takes the directory, which it creates where it is missing, brings the log to the state of its last commit and
// starts the committer. It returns ErrLocked, ErrDamaged or ErrVersion, or the operating system's error; nothing in the
// directory has changed then but for files that a cut had left half-made.
//
// Cursors should be opened before the first Append: a record that no cursor waits for may go at any time.
func Open(dir string, o Options) (*Log, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("open log %s: %w", dir, err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	lock, err := lockDir(dir)
	if err != nil {
		return nil, err
	}
	l := &Log{
		dir: dir, o: o, log: o.Log, lock: lock,
		poke: make(chan struct{}, 1), finished: make(chan struct{}), open: map[uint32]*Cursor{}, st: newStore(),
		packer:   packer{codec: o.Codec},
		queuedOf: map[string]int64{}, lackedOf: map[string]int64{}, fullStreams: map[string]bool{},
		refusals: map[string]uint64{}, quotaNames: quotaNames(o.Quotas), lastGap: map[uint32]uint64{},
	}
	if err := l.recoverFiles(); err != nil {
		err = errors.Join(err, l.closeFiles())
		unlockDir(lock)
		return nil, fmt.Errorf("open log %s: %w", dir, err)
	}
	go l.run()
	return l, nil
}

// Epoch returns the number of this log's life.
func (l *Log) Epoch() uint64 { return l.epoch }

// Err returns why the log has stopped, or nil.
func (l *Log) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// Stopped is closed when the log has stopped, or was closed: nothing more becomes durable.
func (l *Log) Stopped() <-chan struct{} { return l.finished }

// State calls yield for each pair of Batch.State whose key has the prefix, in no order, until yield returns false. It
// shows the last commit: what is still queued is not in it. Values must not be changed.
func (l *Log) State(prefix string, yield func(key string, value []byte) bool) {
	l.mu.Lock()
	pairs := l.st.user(prefix)
	l.mu.Unlock()
	for k, v := range pairs {
		if !yield(k, v) {
			return
		}
	}
}

// DeadLetters calls yield for each dead letter, oldest first, until yield returns false.
func (l *Log) DeadLetters(yield func(DeadLetter) bool) {
	l.mu.Lock()
	keys := make([]string, 0, len(l.st.letters))
	values := make([][]byte, 0, len(l.st.letters))
	for _, n := range l.st.letters {
		key := numberedKey(keyLetter, n)
		keys, values = append(keys, key), append(values, l.st.raw[key])
	}
	l.mu.Unlock()
	for i, key := range keys {
		// It was decoded once when it came into the store.
		if d, err := decodeLetter(key, values[i]); err == nil && !yield(d) {
			return
		}
	}
}

// Close commits what is queued and where the cursors stand, waits for the committer and gives the directory free. It
// returns the error that stopped the log, if one did, or what kept the last commit from being made.
func (l *Log) Close() error {
	l.mu.Lock()
	first := !l.closing
	l.closing = true
	l.mu.Unlock()
	l.wake()
	<-l.finished
	if !first {
		return nil
	}
	l.mu.Lock()
	l.closed = true
	err := l.err
	if err == nil {
		err = l.noSpace
	}
	cursors := l.openCursors()
	l.mu.Unlock()
	for _, c := range cursors {
		c.poke()
	}
	err = errors.Join(err, l.closeFiles())
	unlockDir(l.lock)
	return err
}

func (l *Log) closeFiles() error {
	var errs []error
	for _, s := range l.segs {
		errs = append(errs, s.close())
	}
	return errors.Join(errs...)
}

func (l *Log) active() *segment { return l.segs[len(l.segs)-1] }

func (l *Log) openCursors() []*Cursor {
	out := make([]*Cursor, 0, len(l.open))
	for _, c := range l.open {
		out = append(out, c)
	}
	return out
}

// wake tells the committer that something has changed.
func (l *Log) wake() {
	select {
	case l.poke <- struct{}{}:
	default:
	}
}

// cursorMoved has the cursors written within a second, if no commit takes them sooner.
func (l *Log) cursorMoved() {
	if !l.moved.Load() && l.moved.CompareAndSwap(false, true) {
		l.wake()
	}
}

// block returns the block that holds pos or the next that was not freed, or ok false and the position that it would begin at. seg is the segment it was read
// from, nil where it came from memory.
func (l *Log) block(pos uint64) (b block, seg *segment, ok bool, err error) {
	for {
		l.mu.Lock()
		if l.closed {
			l.mu.Unlock()
			return block{}, nil, false, ErrClosed
		}
		if pos > l.ctl.last {
			err := l.err // nothing more will come
			l.mu.Unlock()
			return block{first: pos}, nil, false, err
		}
		if b, ok := l.ring.find(pos); ok {
			l.mu.Unlock()
			return b, nil, true, nil
		}
		pos = max(pos, l.segs[0].base) // what was before it is gone, counted
		if pos > l.ctl.last {
			l.mu.Unlock()
			continue
		}
		i := segmentOf(l.segs, pos)
		seg := l.segs[i]
		if seg.hollow && i+1 < len(l.segs) {
			pos = l.segs[i+1].base // no cursor needs what was here
			l.mu.Unlock()
			continue
		}
		l.mu.Unlock()
		b, err := seg.read(pos, &l.unpacker)
		if errors.Is(err, errGone) {
			continue
		}
		return b, seg, err == nil, err
	}
}

// segmentOf returns the index of the segment that holds pos.
func segmentOf(segs []*segment, pos uint64) int {
	i := len(segs) - 1
	for i > 0 && segs[i].base > pos {
		i--
	}
	return i
}

// ringBytes bounds the newest blocks that are kept in memory, so that an uplink that keeps up never reads a file. They
// are kept unpacked: the committer has them so anyway, and then any number of uplinks takes them for nothing. Packed, a
// megabyte would reach three times as far back, and each uplink would unpack, and allocate, each block once more.
const ringBytes = 1 << 20

type ring struct {
	blocks []block
	bytes  int
}

func (r *ring) add(blocks []block) {
	for _, b := range blocks {
		b.raw = nil
		r.blocks = append(r.blocks, b)
		r.bytes += len(b.body)
	}
	n := 0
	for r.bytes > ringBytes {
		r.bytes -= len(r.blocks[n].body)
		r.blocks[n] = block{}
		n++
	}
	r.blocks = r.blocks[n:]
}

func (r *ring) find(pos uint64) (block, bool) {
	lo, hi := 0, len(r.blocks)
	for lo < hi {
		m := int(uint(lo+hi) >> 1)
		if r.blocks[m].last < pos {
			lo = m + 1
		} else {
			hi = m
		}
	}
	if lo == len(r.blocks) || r.blocks[lo].first > pos {
		return block{}, false
	}
	return r.blocks[lo], true
}
