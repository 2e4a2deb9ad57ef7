package uplinktest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"edgegateway/pipeline"
	"edgegateway/wal"
)

// Log is a log in memory with one cursor. It implements uplink.Cursor and notes what a Runner does wrong with it.
type Log struct {
	mu       sync.Mutex // guards the fields below
	records  []wal.Record
	outcome  []bool
	next     int // index of the next record to deliver
	first    int // index of the first record without an outcome
	highest  int // number of records that were delivered at least once
	again    int
	freed    int // records that Back cannot reach
	letters  []Letter
	mistakes []string
	changed  chan struct{}
}

// Letter is a dead letter.
type Letter struct {
	Seq uint64
	wal.Refusal
}

// NewLog returns an empty log.
func NewLog() *Log { return &Log{changed: make(chan struct{})} }

// Append adds messages.
func (l *Log) Append(messages ...pipeline.Message) {
	for i := range messages {
		l.AppendData(pipeline.Encode(nil, &messages[i]))
	}
}

// AppendData adds a record as it would stand in the log.
func (l *Log) AppendData(data []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.records = append(l.records, wal.Record{Seq: uint64(len(l.records) + 1), Time: time.Now(), Data: data})
	l.outcome = append(l.outcome, false)
	l.announceLocked()
}

func (l *Log) announceLocked() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// Read implements uplink.Cursor.
func (l *Log) Read(ctx context.Context, maxRecords, maxBytes int) ([]wal.Record, error) {
	for {
		l.mu.Lock()
		out := l.takeLocked(maxRecords, maxBytes)
		changed := l.changed
		l.mu.Unlock()
		if len(out) > 0 {
			return out, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-changed:
		}
	}
}

func (l *Log) takeLocked(maxRecords, maxBytes int) []wal.Record {
	var out []wal.Record
	for bytes := 0; l.next < len(l.records) && len(out) < maxRecords; l.next++ {
		if l.outcome[l.next] {
			continue
		}
		r := l.records[l.next]
		bytes += len(r.Data)
		if len(out) > 0 && bytes > maxBytes {
			break
		}
		out = append(out, r)
		if l.next < l.highest {
			l.again++
		}
	}
	l.highest = max(l.highest, l.next)
	return out
}

// Done implements uplink.Cursor.
func (l *Log) Done(recs ...wal.Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range recs {
		l.finalLocked(r.Seq)
	}
	l.announceLocked()
}

// Refuse implements uplink.Cursor.
func (l *Log) Refuse(r wal.Record, why wal.Refusal) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.finalLocked(r.Seq)
	l.letters = append(l.letters, Letter{r.Seq, why})
	l.announceLocked()
}

func (l *Log) finalLocked(seq uint64) {
	i := int(seq - 1)
	switch {
	case i < 0 || i >= len(l.outcome):
		l.mistakes = append(l.mistakes, fmt.Sprintf("outcome for record %d, which does not exist", seq))
		return
	case l.outcome[i]:
		l.mistakes = append(l.mistakes, fmt.Sprintf("second final outcome for record %d", seq))
	case i >= l.next:
		l.mistakes = append(l.mistakes, fmt.Sprintf("outcome for record %d, which was not delivered since the last rewind", seq))
	}
	l.outcome[i] = true
	for l.first < len(l.outcome) && l.outcome[l.first] {
		l.first++
	}
}

// Rewind implements uplink.Cursor.
func (l *Log) Rewind() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next = l.first
}

// Position implements uplink.Position.
func (l *Log) Position() (seq, tail uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return uint64(l.first), uint64(len(l.records))
}

// Pass implements uplink.Position.
func (l *Log) Pass(seq uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if seq > uint64(len(l.records)) {
		return fmt.Errorf("record %d does not exist", seq)
	}
	for l.first < int(seq) || l.first < len(l.outcome) && l.outcome[l.first] {
		l.outcome[l.first] = true
		l.first++
	}
	l.next = max(l.next, l.first)
	l.announceLocked()
	return nil
}

// Freed makes the log forget the records up to seq, so that Back cannot go below it.
func (l *Log) Freed(seq uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.freed = int(seq)
}

// Back implements uplink.Position.
func (l *Log) Back(seq uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if int(seq) < l.freed {
		return wal.ErrGone
	}
	for i := int(seq); i < len(l.outcome); i++ {
		l.outcome[i] = false
	}
	l.first = min(l.first, int(seq))
	l.next, l.highest = l.first, min(l.highest, l.first)
	l.announceLocked()
	return nil
}

// Sync implements uplink.Position: memory has nothing to wait for.
func (l *Log) Sync(ctx context.Context) error { return ctx.Err() }

// Refused implements uplink.Position.
func (l *Log) Refused(from, to uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for seq := from + 1; seq <= to; seq++ {
		if !slices.ContainsFunc(l.letters, func(d Letter) bool { return d.Seq == seq }) {
			return false
		}
	}
	return true
}

// Len returns the number of records, Settled how many of them lie below the cursor.
func (l *Log) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.records)
}

// Settled returns how many records lie at or below the cursor.
func (l *Log) Settled() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.first
}

// Again returns how many deliveries were repetitions.
func (l *Log) Again() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.again
}

// Letters returns the dead letters and Mistakes what the Runner did wrong.
func (l *Log) Letters() []Letter {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]Letter(nil), l.letters...)
}

// Mistakes returns what the Runner did wrong with the log.
func (l *Log) Mistakes() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.mistakes...)
}

// Wait returns true when n records are settled, or false after the timeout.
func (l *Log) Wait(n int, timeout time.Duration) bool {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for {
		l.mu.Lock()
		first, changed := l.first, l.changed
		l.mu.Unlock()
		if first >= n {
			return true
		}
		select {
		case <-timer.C:
			return false
		case <-changed:
		}
	}
}
