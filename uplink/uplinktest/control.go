package uplinktest

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"edgegateway/uplink"
)

// RunUndisciplined is the negative control of prefix discipline: a driver that goes on behind a record which was not taken,
// as if order did not matter. What comes of it is a gap that the far side takes for a repeat, or a record out of its place; the
// suite must see the one or the other.
func RunUndisciplined(t *testing.T, s Suite) {
	t.Helper()
	if IsChild() {
		return
	}
	b := newBench(t, s, s.Server(t), "undisciplined")
	cfg := b.config()
	cfg.Driver = undisciplined{cfg.Driver}
	b.append(500)
	stop := b.start(uplink.New(cfg))
	b.waitSettled()
	stop()
	v := s.judge(s.Read(t, b.addr, b.place), 0, b.log.Len(), b.dead())
	caught(t, s.Name+" without prefix discipline", v.wrong != nil || v.lost > 0, fmt.Sprintf("sent %d lost %d: %v", v.sent, v.lost, v.wrong))
}

// undisciplined leaves out the third record that it is given, and reports that only when the others have their outcome.
type undisciplined struct{ uplink.Driver }

// Open implements uplink.Driver.
func (d undisciplined) Open(ctx context.Context, env uplink.Env) (uplink.Session, error) {
	s, err := d.Driver.Open(ctx, env)
	if err != nil {
		return nil, err
	}
	if r, ok := s.(uplink.Resumer); ok {
		return gappedResumer{&gapped{Session: s}, r}, nil
	}
	return &gapped{Session: s}, nil
}

type gapped struct {
	uplink.Session

	done bool // a session does it once
}

type gappedResumer struct {
	*gapped
	uplink.Resumer
}

// Send implements uplink.Session.
func (g *gapped) Send(ctx context.Context, recs []uplink.Record, report func(uint64, uplink.Outcome)) error {
	if g.done || len(recs) < 5 {
		return g.Session.Send(ctx, recs, report)
	}
	g.done = true
	left := recs[2]
	outcomes := make(chan struct{}, len(recs))
	rest := append(append([]uplink.Record(nil), recs[:2]...), recs[3:]...)
	if err := g.Session.Send(ctx, rest, func(seq uint64, o uplink.Outcome) {
		report(seq, o)
		outcomes <- struct{}{}
	}); err != nil {
		return err
	}
	for range rest {
		select {
		case <-outcomes:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	report(left.ID.Seq, uplink.Outcome{Verdict: uplink.Retry, Err: errors.New("left out")})
	return nil
}
