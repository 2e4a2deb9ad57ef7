package uplink

import (
	"context"
	"fmt"
	"time"

	"edgegateway/pipeline"
	"edgegateway/wal"
)

// feed reads, decodes and sends until the flight is halted.
func (f *flight) feed(reading, sending context.Context) {
	var last uint64
	for {
		records, bytes, ok := f.waitForRoom(last)
		if !ok {
			return
		}
		batch, err := f.r.cfg.Cursor.Read(reading, records, bytes)
		if err != nil {
			if reading.Err() == nil {
				f.mu.Lock()
				f.end.log = err
				f.haltLocked(nil)
				f.mu.Unlock()
			}
			return
		}
		if len(batch) == 0 {
			continue
		}
		last = batch[len(batch)-1].Seq
		out := f.takeOff(batch)
		if len(out) == 0 {
			continue
		}
		if err := f.far.Send(sending, out, f.report); err != nil {
			f.halt(err)
			return
		}
	}
}

// waitForRoom returns how much may go up now. A record to be sent alone waits for an empty sky; otherwise a quarter of
// the bound must be free, so that batches stay batches.
func (f *flight) waitForRoom(last uint64) (records, bytes int, ok bool) {
	maxRecords, maxBytes := f.r.cfg.MaxRecords, f.r.cfg.MaxBytes
	for {
		f.mu.Lock()
		halted, up, upBytes := f.halted, len(f.aloft)+len(f.reports), f.bytes
		f.mu.Unlock()
		switch {
		case halted:
			return 0, 0, false
		case last < f.r.alone:
			if up == 0 {
				return 1, maxBytes, true
			}
		case up == 0 || (maxRecords-up >= max(1, maxRecords/4) && maxBytes-upBytes >= maxBytes/4):
			return maxRecords - up, max(1, maxBytes-upBytes), true
		}
		<-f.room // halt signals it too
	}
}

// takeOff notes records as sent and returns them decoded. What cannot be decoded never will be: it is dropped.
func (f *flight) takeOff(batch []wal.Record) []Record {
	env := f.r.cfg.Env
	out := make([]Record, 0, len(batch))
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.halted {
		return nil
	}
	for _, rec := range batch {
		m, err := pipeline.Decode(rec.Data)
		if err != nil {
			f.reports = append(f.reports, report{rec, Outcome{Drop, fmt.Errorf("record cannot be read: %w", err)}})
			signal(f.wake)
			continue
		}
		id := pipeline.RecordID{Gateway: env.Gateway, Stream: env.Stream, Epoch: env.Epoch, Seq: rec.Seq}
		out = append(out, Record{ID: id, Message: m, JSON: pipeline.AppendJSON(nil, id, &m)})
		if len(f.aloft) == 0 {
			f.progress = time.Now()
		}
		f.aloft[rec.Seq] = aloft{rec, len(rec.Data)}
		f.bytes += len(rec.Data)
	}
	f.r.inFlight(len(f.aloft))
	return out
}

// report is what the driver calls. It only notes the outcome, so that it never blocks; a second report of a record and
// one after the session's end go unheard.
func (f *flight) report(seq uint64, o Outcome) {
	f.mu.Lock()
	defer f.mu.Unlock()
	up, ok := f.aloft[seq]
	if !ok || f.ended {
		return
	}
	delete(f.aloft, seq)
	f.bytes -= up.size
	f.reports = append(f.reports, report{up.rec, o})
	if o.Verdict != Retry {
		f.progress = time.Now()
	}
	signal(f.wake)
}
