package modbus

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"edgegateway/pipeline"

	"github.com/simonvetter/modbus"
)

// poll reads a block and returns a message for each of its points. With again the block stays due until there is a new
// connection: the one it was asked on had been closed by the server while nothing was going on.
func (l *link) poll(ctx context.Context, b *block) (messages []pipeline.Message, again bool) {
	defer func() {
		if r := recover(); r != nil {
			messages, again = l.survive(b, r), false
		}
	}()
	now := time.Now()
	switch {
	case b.unit.left(now):
		return l.bad(b, now, b.unit.reason), false
	case l.conn == nil && l.failures == 0:
		return nil, true
	case l.conn == nil:
		return l.bad(b, now, l.reason), false
	}
	if !l.gap(ctx) {
		return nil, false
	}
	idle := l.conn.proven && b.unit.silent == 0
	r := l.read(b)
	switch {
	case r.err == nil:
		b.fault, b.keepUntil = "", time.Time{}
		return l.decode(b, b.points, r, nil), false
	case ctx.Err() != nil:
		return nil, false
	case isRefusal(r.err) && len(b.points) > 1 && !now.Before(b.keepUntil):
		return l.oneByOne(ctx, b, r), false
	case r.hangUp && idle && !b.repeated:
		b.repeated = true
		return nil, true
	}
	return l.bad(b, r.time, r.reason), false
}

// reading is what a request brought: bytes, or an error and the reason in plain words.
type reading struct {
	time   time.Time // middle of request and reply
	raw    []byte
	err    error
	reason string
	hangUp bool // the connection broke
}

// read sends the request of a block and notes what its outcome says of block, unit and link.
func (l *link) read(b *block) reading {
	u := b.unit
	l.count.requests.Add(1)
	start := time.Now()
	raw, err := l.conn.read(u.number, b)
	end := time.Now()
	l.nextRequest = end.Add(l.config.RequestGap)
	r := reading{time: start.Add(end.Sub(start) / 2), raw: raw, err: err}
	if err == nil {
		l.answered(u)
		return r
	}
	if r.reason = exceptionText(err); r.reason != "" {
		l.count.exceptions.Add(1)
		if isAbsence(err) { // the server answered, the unit did not
			l.conn.proven, l.failures = true, 0
			u.struck(end, r.reason, l.alone(u))
			return r
		}
		l.answered(u)
		return r
	}
	if errors.Is(err, context.Canceled) { // the link was told to stop: no fault of anybody
		return r
	}
	l.count.errors.Add(1)
	if errors.Is(err, modbus.ErrRequestTimedOut) {
		l.count.timeouts.Add(1)
	}
	r.hangUp = isHangUp(err)
	r.reason = plain(err, l.config.Timeout, l.conn.notes.take())
	proven := l.conn.proven
	l.drop()
	if r.hangUp && !proven {
		l.failed(r.reason, "err", err)
	} else {
		l.reason = r.reason
	}
	if !r.hangUp || !proven || b.repeated || u.silent > 0 {
		u.struck(end, r.reason, l.alone(u))
	}
	return r
}

// gap waits for the pause between requests, and reports whether the link goes on.
func (l *link) gap(ctx context.Context) bool {
	wait := time.Until(l.nextRequest)
	if wait <= 0 {
		return true
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// oneByOne reads the points of a block that was refused as a whole each by itself, so that only those are bad that the
// unit does not have, and plans the next cycles accordingly. whole is the refused reading.
func (l *link) oneByOne(ctx context.Context, b *block, whole reading) []pipeline.Message {
	messages := make([]pipeline.Message, 0, len(b.points))
	refused := make([]bool, len(b.points))
	count := 0
	b.fault = ""
	last := whole
	for i, p := range b.points {
		if l.conn != nil && !l.conn.over() && !b.unit.left(time.Now()) {
			if !l.gap(ctx) {
				return nil
			}
			single := newBlock(b.unit, b.points[i:i+1])
			last = l.read(single)
			if last.err == nil {
				messages = l.decode(single, single.points, last, messages)
				continue
			}
		}
		if last.err == nil {
			last = reading{time: time.Now(), err: errStray, reason: errStray.Error()}
		}
		b.fault = last.reason
		messages = append(messages, l.badMessage(p, last.time, last.reason))
		if isRefusal(last.err) {
			refused[i] = true
			count++
		}
	}
	switch {
	case last.err != nil && !isRefusal(last.err):
		// The connection or the unit was lost on the way, so nothing is known of the rest: the next cycle tries again.
	case count == len(b.points):
		b.keepUntil = time.Now().Add(probeLast)
	case count == 0:
		b.heirs = b.halves()
	default:
		b.heirs = b.apart(refused)
	}
	l.mark(b, refused)
	return messages
}

// mark gives the blocks that take the place of b the state that their points were found in.
func (l *link) mark(b *block, refused []bool) {
	at := 0
	for _, heir := range b.heirs {
		heir.served = true
		for range heir.points {
			if refused[at] {
				heir.fault = b.fault
			}
			at++
		}
	}
}

// decode appends a message for each of the points, which b's reply holds.
func (l *link) decode(b *block, points []*point, r reading, messages []pipeline.Message) []pipeline.Message {
	if messages == nil {
		messages = make([]pipeline.Message, 0, len(points))
	}
	for _, p := range points {
		v, noValue := p.decode(b.raw(r.raw, p))
		if noValue != "" {
			messages = append(messages, l.badMessage(p, r.time, noValue))
			continue
		}
		messages = append(messages, pipeline.Message{
			Time: r.time, Source: l.name, Topic: p.topic, Value: v, Unit: p.measure, Quality: pipeline.Good,
		})
	}
	return messages
}

// bad returns the messages of a block that was not read.
func (l *link) bad(b *block, at time.Time, reason string) []pipeline.Message {
	b.fault = reason
	messages := make([]pipeline.Message, 0, len(b.points))
	for _, p := range b.points {
		messages = append(messages, l.badMessage(p, at, reason))
	}
	return messages
}

func (l *link) badMessage(p *point, at time.Time, reason string) pipeline.Message {
	return pipeline.Message{
		Time: at, Source: l.name, Topic: p.topic, Unit: p.measure, Quality: pipeline.Bad, Reason: reason,
	}
}

// survive turns a panic, which is a bug of ours or of the library, into messages with quality bad. The connection is
// closed because nobody knows what state it is in.
func (l *link) survive(b *block, cause any) []pipeline.Message {
	l.count.panics.Add(1)
	reason := fmt.Sprintf("internal error: %v", cause)
	if b.fault != reason {
		l.log.Error("reading panicked; polling goes on", "unit", b.unit.name, "address", b.addr, "panic", cause, "stack", string(debug.Stack()))
	}
	l.drop()
	return l.bad(b, time.Now(), reason)
}
