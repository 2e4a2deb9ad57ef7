package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"edgegateway/pipeline"
	"edgegateway/uplink"
	"edgegateway/wal"
)

// A dead letter that is sent again gets a new key, or the far side would take it for the record that it has refused or passed
// (docs/adr/0018-dead-letters-again.md). It becomes a record of the stream STREAM!UPLINK, which has sequences, a cursor, far
// cursors and fences of its own, and goes to the place of STREAM. A record of it that is refused becomes a dead letter of the
// same stream, so names do not pile up. No stream of the config has a ! in its name.

// againStream names the stream of what is sent again to an uplink.
func againStream(stream, uplinkName string) string {
	if base, uplinkOf, ok := strings.Cut(stream, "!"); ok && uplinkOf == uplinkName {
		stream = base
	}
	return stream + "!" + uplinkName
}

// baseStream returns the stream of the config from which a stream's records came.
func baseStream(stream string) string {
	base, _, _ := strings.Cut(stream, "!")
	return base
}

// againHeader names the record that a message was sent as before.
const againHeader = "resent-of"

// isNeeded tells whether the log has records or dead letters of a stream that is sent again.
func (k *linkRun) isNeeded(cursors []wal.CursorInfo) bool {
	return slices.ContainsFunc(cursors, func(c wal.CursorInfo) bool {
		return c.Uplink == k.uplink && c.Stream == k.stream && (c.Lag.Records > 0 || k.lane.deadLetters(k.uplink, k.stream) > 0)
	})
}

// allLinks are the uplinks of the config and those that send their dead letters again.
func (g *gateway) allLinks() []*linkRun { return slices.Concat(g.links, g.again) }

// isConfigured tells whether the config has an uplink on a stream.
func (g *gateway) isConfigured(uplinkName, stream string) bool {
	owner, _, _ := wal.ParseSplit(uplinkName)
	return slices.ContainsFunc(g.allLinks(), func(k *linkRun) bool { return k.uplink == owner && k.stream == stream })
}

// resend sends dead letters of a lane again, all of one uplink, and returns how many. Each goes from the dead letters in the
// commit in which its message comes into the log anew, so a power cut neither loses nor doubles one.
func (g *gateway) resend(ctx context.Context, l *laneRun, letters []wal.DeadLetter) (int, error) {
	if len(letters) == 0 {
		return 0, nil
	}
	first := &letters[0]
	i := slices.IndexFunc(g.again, func(k *linkRun) bool {
		return k.uplink == first.Uplink && k.stream == againStream(first.Stream, first.Uplink) && k.lane == l
	})
	if i < 0 {
		return 0, fmt.Errorf("uplink %s of stream %s is not in the config any more, so nothing can be sent there again (purge its dead letters, or put it back)",
			first.Uplink, baseStream(first.Stream))
	}
	k := g.again[i]
	for i := range letters {
		if err := g.isPassed(ctx, &letters[i]); err != nil {
			return 0, err
		}
	}
	l.mu.Lock()
	a := l.running
	l.mu.Unlock()
	if a == nil {
		return 0, fmt.Errorf("lane %s is not open", l.name)
	}
	if k.runs() == nil {
		if err := g.start(a, k); err != nil {
			return 0, err
		}
	}
	outcomes := make(chan error, len(letters))
	queued := 0
	var failed error
	for i := range letters {
		b, err := againBatch(g.config.Gateway.ID, a.log.Epoch(), k.stream, &letters[i])
		if err == nil {
			err = a.log.Append(ctx, b, func(err error) { outcomes <- err })
		}
		if err == nil {
			queued++
			continue
		}
		failed = errors.Join(failed, fmt.Errorf("%s: %w", letterName(&letters[i]), err))
		if ctx.Err() != nil {
			break
		}
	}
	sent := 0
	for range queued { // each is called back, when the log ends at the latest
		if err := <-outcomes; err != nil {
			failed = errors.Join(failed, err)
		} else {
			sent++
		}
	}
	return sent, failed
}

// isPassed refuses to take a dead letter away while the far cursor may not have passed it: with exactly_once, until the uplink that
// was refused is connected again after a restart. Without its letter the record would count as lost there, and be sent once more.
func (g *gateway) isPassed(ctx context.Context, d *wal.DeadLetter) error {
	for _, k := range g.allLinks() {
		if k.uplink != d.Uplink || k.stream != d.Stream || k.promise.Delivery != uplink.ExactlyOnce {
			continue
		}
		if !passes(ctx, k, d.Seq) {
			return fmt.Errorf("%s stays: with exactly_once the far cursor has to pass a dead letter before it goes, and uplink %s has not been connected for "+
				"stream %s since (mend or resume the uplink first)", letterName(d), d.Uplink, d.Stream)
		}
	}
	return nil
}

// passes reports whether the far cursor has passed a record. Where the uplink is at work it may be about to.
func passes(ctx context.Context, k *linkRun, seq uint64) bool {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	for {
		r := k.runs()
		if r == nil || r.Passed(seq) {
			return r != nil
		}
		if r.Status().State != uplink.Sending {
			return false
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// againBatch is what sends a dead letter again.
func againBatch(gateway string, epoch uint64, stream string, d *wal.DeadLetter) (wal.Batch, error) {
	m, err := pipeline.Decode(d.Data)
	if err != nil {
		return wal.Batch{}, fmt.Errorf("cannot be read, and so not be sent again: %w", err)
	}
	if !slices.ContainsFunc(m.Headers, func(h pipeline.Header) bool { return h.Name == againHeader }) {
		id := pipeline.RecordID{Gateway: gateway, Stream: d.Stream, Epoch: epoch, Seq: d.Seq}
		m.Headers = append(slices.Clip(m.Headers), pipeline.Header{Name: againHeader, Value: id.String()})
	}
	return wal.Batch{
		Urgent: true, Letters: []uint64{d.Number},
		// Its age in the log begins now, or max_age would drop it at once.
		Entries: []wal.Entry{{Stream: stream, Data: pipeline.Encode(nil, &m)}},
	}, nil
}
