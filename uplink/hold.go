package uplink

import (
	"slices"
	"strconv"
	"time"

	"edgegateway/wal"
)

// holding is what waits in a session whose order is not strict. Guarded by flight.mu.
type holding struct {
	queues map[string]*queue // by key; with order: none each record has its own
	count  int               // records in all of them, and those that were refused and are on their way there
	bytes  int
	trials int         // queues whose first record is tried
	alarm  *time.Timer // has the feeder look at the queues
	at     time.Time   // when it does; zero for never
}

// queue is the records of one key that wait, in sequence. While its first one is refused, that goes alone; when it was taken,
// the others follow at once.
type queue struct {
	waiting  []wal.Record
	trial    uint64 // the record that is tried; 0 for none
	failures int    // of trials in a row
	due      time.Time
}

// holds reports whether a record that is refused for now holds less than the stream.
func holds(o Order) bool { return o == OrderKey || o == OrderNone }

// hold keeps back a record that the far side has refused for now, and reports whether that is all there is to do.
func (f *flight) hold(p *aloft) bool {
	if f.held == nil || !p.Answered {
		return false
	}
	f.mu.Lock()
	f.held.count-- // report has counted it, and add does
	f.held.bytes -= int(p.size)
	key := f.keyOf(p)
	if t := f.refusedLocked(p); f.r.spent(t) {
		f.mu.Unlock()
		f.refuse(*p.rec, p.Err)
		f.release(p)
		return true
	}
	defer f.mu.Unlock()
	q := f.held.queues[key]
	if q == nil {
		q = &queue{}
		f.held.queues[key] = q
	}
	if now := time.Now(); q.trial == p.seq || q.trial == 0 && !now.Before(q.due) {
		q.failures++
		q.due = now.Add(f.r.pause(q.failures, false))
		f.held.endTrial(q)
		f.alarmLocked(q.due)
	}
	f.held.add(q, *p.rec)
	f.r.holding(p.seq, reason(p.Err, "the record was not taken").Error())
	return true
}

// keyOf returns what a record holds when it is held.
func (f *flight) keyOf(p *aloft) string {
	if f.r.cfg.Env.Promise.Order == OrderNone {
		return strconv.FormatUint(p.seq, 10)
	}
	return p.key
}

func (h *holding) endTrial(q *queue) {
	if q.trial != 0 {
		q.trial = 0
		h.trials--
	}
}

func (h *holding) add(q *queue, rec wal.Record) {
	at, _ := slices.BinarySearchFunc(q.waiting, rec.Seq, func(r wal.Record, seq uint64) int {
		if r.Seq < seq {
			return -1
		}
		return 1
	})
	q.waiting = slices.Insert(q.waiting, at, rec)
	h.count++
	h.bytes += len(rec.Data)
}

// behindLocked keeps a record back that stands behind a held one of its key.
func (f *flight) behindLocked(key string, rec wal.Record) bool {
	if f.held == nil || len(f.held.queues) == 0 || f.r.cfg.Env.Promise.Order != OrderKey {
		return false
	}
	q := f.held.queues[key]
	if q == nil {
		return false
	}
	f.held.add(q, rec)
	return true
}

// release lets those go on that wait for a record which has its outcome now.
func (f *flight) release(p *aloft) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.held == nil || len(f.held.queues) == 0 {
		return
	}
	key := f.keyOf(p)
	q := f.held.queues[key]
	if q == nil || q.trial != p.seq {
		return
	}
	f.held.endTrial(q)
	q.failures, q.due = 0, time.Time{}
	if len(q.waiting) == 0 {
		delete(f.held.queues, key)
		return
	}
	f.held.at = time.Now()
	f.nudgeLocked()
}

// takeDue takes the held records off that may be sent now.
func (f *flight) takeDue(records, bytes int) []wal.Record {
	if f.held == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.r.search.until > 0 { // what is sent in search of a refused record has the sky for itself
		return nil
	}
	var out []wal.Record
	h, now, next := f.held, time.Now(), time.Time{}
	for key, q := range h.queues {
		if q.trial != 0 || len(q.waiting) == 0 {
			continue
		}
		for len(q.waiting) > 0 && !now.Before(q.due) && records > 0 && bytes > 0 {
			rec := q.waiting[0]
			q.waiting[0] = wal.Record{}
			q.waiting = q.waiting[1:]
			h.count--
			h.bytes -= len(rec.Data)
			records--
			bytes -= len(rec.Data)
			out = append(out, rec)
			if q.failures > 0 {
				q.trial = rec.Seq
				h.trials++
				break
			}
		}
		if q.trial == 0 && len(q.waiting) == 0 {
			delete(h.queues, key)
		} else if q.trial == 0 && (next.IsZero() || q.due.Before(next)) {
			next = q.due
		}
	}
	h.at = time.Time{}
	if !next.IsZero() {
		f.alarmLocked(next)
	}
	slices.SortFunc(out, func(a, b wal.Record) int {
		if a.Seq < b.Seq {
			return -1
		}
		return 1
	})
	return out
}

// alarmLocked has the feeder look at the queues at a time, or earlier.
func (f *flight) alarmLocked(at time.Time) {
	h := f.held
	if !h.at.IsZero() && !at.Before(h.at) {
		return
	}
	h.at = at
	if h.alarm == nil {
		h.alarm = time.AfterFunc(time.Until(at), f.nudge)
		return
	}
	h.alarm.Reset(time.Until(at))
}

func (f *flight) heldLocked() int {
	if f.held == nil {
		return 0
	}
	return f.held.count + f.held.trials
}

// dueLocked reports whether the alarm has gone off.
func (f *flight) dueLocked() bool {
	return f.held != nil && !f.held.at.IsZero() && !time.Now().Before(f.held.at)
}

// nudge has the feeder look again, also while it waits for new records.
func (f *flight) nudge() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.nudgeLocked()
}

func (f *flight) nudgeLocked() {
	f.nudged = true
	if f.interrupt != nil {
		f.interrupt()
	}
	signal(f.room)
}
