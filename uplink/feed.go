package uplink

import (
	"context"
	"fmt"
	"slices"
	"time"

	"edgegateway/pipeline"
	"edgegateway/wal"
)

// feed reads, decodes and sends until the flight is halted. It buries dead letters where the far cursor must pass them.
func (f *flight) feed(reading, sending context.Context) {
	var last uint64
	for f.bury(reading, sending) {
		records, bytes, ok := f.waitForRoom(last)
		if !ok {
			return
		}
		if records == 0 {
			continue // something else is to be done first
		}
		batch := f.takeDue(records, bytes)
		due := len(batch) > 0
		if !due {
			var err error
			if batch, err = f.read(reading, records, bytes); err != nil {
				if reading.Err() == nil {
					f.endLog(err)
				}
				return
			}
			if len(batch) == 0 {
				continue
			}
			last = batch[len(batch)-1].Seq
		}
		if !f.send(reading, sending, batch, due) {
			return
		}
	}
}

// send sends a batch, in parts where the uplink is limited. It returns false when the session is over.
func (f *flight) send(reading, sending context.Context, batch []wal.Record, due bool) bool {
	for n := f.allow(reading, batch); n > 0; n = f.allow(reading, batch) {
		out := f.takeOff(batch[:n], due)
		batch = batch[n:]
		if len(out) == 0 {
			continue
		}
		if err := f.far.Send(sending, out, f.report); err != nil {
			f.halt(err)
			return false
		}
	}
	return true
}

// endLog ends the flight because the log does.
func (f *flight) endLog(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.end.log = err
	f.haltLocked(nil)
}

// waitForRoom returns how much may go up now; nothing where there is something else to do. What is sent in search of a
// refused record waits for an empty sky; otherwise a quarter of the bound must be free, or room for a good batch, so that batches stay
// batches.
func (f *flight) waitForRoom(last uint64) (records, bytes int, ok bool) {
	maxRecords, maxBytes := f.r.cfg.MaxRecords, f.r.cfg.MaxBytes
	for {
		f.mu.Lock()
		searching := f.r.search.next(last)
		halted, up, upBytes := f.halted, f.aloft.count+len(f.reports), f.bytes
		other, full := len(f.letters) > 0, false
		if f.held != nil && searching == 0 {
			full = !f.dueLocked() && (f.held.count >= maxRecords || f.held.bytes >= maxBytes)
		}
		f.mu.Unlock()
		switch {
		case halted:
			return 0, 0, false
		case other:
			return 0, 0, true
		case full:
		case searching > 0:
			if up == 0 {
				return min(searching, maxRecords), maxBytes, true
			}
		case up == 0 || (maxRecords-up >= max(1, min(maxRecords/4, readMost)) && maxBytes-upBytes >= maxBytes/4):
			return maxRecords - up, max(1, maxBytes-upBytes), true
		}
		<-f.room // halt signals it too
	}
}

// read returns the next records of the log, or none where there is something else to do.
func (f *flight) read(reading context.Context, records, bytes int) ([]wal.Record, error) {
	if f.held == nil && f.resetter == nil {
		return f.readLog(reading, records, bytes)
	}
	ctx, cancel := context.WithCancel(reading)
	defer cancel()
	f.mu.Lock()
	again := f.nudged || len(f.letters) > 0
	if f.nudged = false; !again {
		f.interrupt = cancel
	}
	if f.held != nil { // what is read may all have to wait
		records = min(records, max(1, f.r.cfg.MaxRecords-f.held.count))
		bytes = min(bytes, max(1, f.r.cfg.MaxBytes-f.held.bytes))
	}
	f.mu.Unlock()
	if again {
		return nil, nil
	}
	batch, err := f.readLog(ctx, records, bytes)
	f.mu.Lock()
	f.interrupt = nil
	f.mu.Unlock()
	if err != nil && ctx.Err() != nil && reading.Err() == nil {
		return nil, nil
	}
	return batch, err
}

// readMost is how many records are read at once.
const readMost = handOver

// readLog reads into the room of the last batch: nothing of that is needed any more.
func (f *flight) readLog(ctx context.Context, records, bytes int) (batch []wal.Record, err error) {
	records = min(records, readMost)
	if c, ok := f.r.cfg.Cursor.(reader); ok {
		clear(f.batch)
		batch, err = c.ReadInto(ctx, f.batch[:0], records, bytes)
		f.batch = batch
		return batch, err
	}
	return f.r.cfg.Cursor.Read(ctx, records, bytes)
}

// takeOff notes records as sent and returns them as the driver takes them. What cannot be decoded never will be, and what has a
// final refusal is not sent again: a dead letter. Where the far cursor must pass it first, nothing behind it is taken. What is due
// was held.
func (f *flight) takeOff(batch []wal.Record, due bool) []Record {
	ready, bad := f.encode(batch)
	out := ready[:0]
	f.mu.Lock()
	defer f.mu.Unlock()
	alone := f.r.search.until > 0 && len(batch) == 1
	f.r.search.sent()
	if f.halted {
		return nil
	}
	f.sent = time.Now()
	var kept []wal.Record
	for i, rec := range batch {
		up := aloft{seq: rec.Seq, size: int32(len(rec.Data)), since: f.sent.UnixNano(), alone: alone, fresh: rec.Seq > f.r.reach && !f.r.believed}
		f.r.reach = max(f.r.reach, rec.Seq)
		err := bad[i]
		if t := f.r.tries[rec.Seq]; err == nil && t != nil {
			err = t.final
		}
		switch {
		case err != nil && f.resetter != nil:
			delete(f.doubts, rec.Seq)
			f.letterLocked(rec, err)
			continue
		case len(f.letters) > 0:
			return out // the rest is read again
		case err != nil:
			delete(f.doubts, rec.Seq)
			unread := rec // not rec itself, or each would be made on the heap
			f.reports = append(f.reports, &aloft{seq: rec.Seq, rec: &unread, Outcome: Outcome{Verdict: Drop, Err: err}, since: up.since, alone: alone, unasked: true})
			signal(f.wake)
			continue
		}
		if f.held != nil && f.r.cfg.Env.Promise.Order == OrderKey {
			up.key = ready[i].Message.PartitionKey()
			if !due && f.behindLocked(up.key, rec) {
				continue
			}
		}
		if first, ok := f.doubts[rec.Seq]; ok {
			up.since = first
			delete(f.doubts, rec.Seq)
		}
		out = append(out, ready[i])
		if f.aloft.count == 0 {
			f.progress = f.sent
		}
		if f.resetter == nil {
			if kept == nil {
				kept = slices.Clone(batch)
			}
			up.rec = &kept[i]
		}
		f.aloft.put(up)
		f.bytes += len(rec.Data)
	}
	f.r.inFlight(f.aloft.count, f.heldLocked())
	return out
}

// slab is how much room is made for payloads at once, and slabs how often it is kept.
const (
	slab  = 64 << 10
	slabs = 16
)

// encode returns records as they are sent, and why some cannot be, by their place. It does without the mutex, for which the
// driver's reports wait. Payloads share memory, and each of them ends where its room does.
func (f *flight) encode(batch []wal.Record) (ready []Record, bad map[int]error) {
	env := f.r.cfg.Env
	if cap(f.ready) < len(batch) || !f.copies {
		f.ready = make([]Record, len(batch))
	}
	ready = f.ready[:len(batch)]
	if !f.copies {
		f.ready = nil
	}
	var room []byte
	used := 0
	for i := range batch {
		rec := &ready[i]
		if err := f.texts.Decode(&rec.Message, batch[i].Data); err != nil {
			if bad == nil {
				bad = map[int]error{}
			}
			bad[i] = fmt.Errorf("record cannot be read: %w", err)
			continue
		}
		if cap(room)-len(room) < f.typical {
			room = f.slab(used, max(f.typical, min(slab, (len(batch)-i)*f.typical)))
			used++
		}
		begin := len(room)
		room = f.json.Append(room, batch[i].Seq, &rec.Message)
		rec.ID = pipeline.RecordID{Gateway: env.Gateway, Stream: env.Stream, Epoch: env.Epoch, Seq: batch[i].Seq}
		rec.JSON = room[begin:len(room):len(room)]
		f.typical = max(len(room)-begin, f.typical-f.typical/64) // what the next ones may take
	}
	return ready, bad
}

// slab returns room for payloads: for a Copier the n-th of those that are used again.
func (f *flight) slab(n, bytes int) []byte {
	switch {
	case !f.copies || n >= slabs || bytes > slab:
		return make([]byte, 0, bytes)
	case n == len(f.slabs):
		f.slabs = append(f.slabs, make([]byte, 0, slab))
	}
	return f.slabs[n][:0]
}

// report is what the driver calls. It only notes the outcome, so that it never blocks; a second report of a record and
// one after the session's end go unheard.
func (f *flight) report(seq uint64, o Outcome) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended {
		return
	}
	up := f.aloft.take(seq)
	if up == nil {
		return
	}
	f.bytes -= int(up.size)
	if f.held != nil && o.Verdict == Retry && o.Answered {
		f.held.count++
		f.held.bytes += int(up.size)
	}
	up.Outcome = o
	if o.Verdict == Drop && f.resetter != nil {
		f.refusedLocked(up)
		f.letterLocked(wal.Record{Seq: up.seq}, reason(o.Err, "refused without a reason"))
		f.progress = time.Now()
		f.aloft.settled(up)
	} else {
		f.reports = append(f.reports, up)
	}
	signal(f.wake)
}
