package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"edgegateway/uplink"
	"edgegateway/wal"
)

// carrier carries one stream to one uplink: an uplink.Runner, or an uplink.LiveFirst.
type carrier interface {
	Run(ctx context.Context) error
	Pause()
	Resume()
	Reconnect()
	Status() uplink.Status
	Passed(seq uint64) bool
}

// limiters makes the bounds of each uplink, which all its streams share.
func (g *gateway) limiters() {
	g.limits = map[string]*uplink.Limiter{}
	for name, c := range g.config.Uplinks {
		p := policyOf(c.Settings)
		path := filepath.Join(g.config.Gateway.StateDir, "quota", name)
		saved, err := os.ReadFile(path)
		switch {
		case p.BytesPerDay == 0 || errors.Is(err, os.ErrNotExist):
			saved = nil
		case err != nil:
			saved = []byte(err.Error()) // it is refused as what cannot be read
		}
		g.limits[name] = uplink.NewLimiter(uplink.LimiterConfig{
			Policy: p, Saved: saved, Save: func(b []byte) error { return writeDurably(path, b) }, Log: g.log.With("uplink", name),
		})
	}
}

func policyOf(driver any) uplink.Policy {
	if h, ok := driver.(uplink.HasPolicy); ok && h.SendingPolicy() != nil {
		return *h.SendingPolicy()
	}
	return uplink.Policy{}
}

// from is where the stream begins where it is new to the uplink. Dead letters that are sent again begin at the first.
func (k *linkRun) from() (wal.Start, error) {
	if k.route != "" {
		return wal.Oldest, nil
	}
	p := policyOf(k.Driver)
	return p.From()
}

// carrier returns what carries the stream, by cursor: two Runners where new records go beside a backlog, or did so before.
func (k *linkRun) carrier(log *wal.Log, cursor *wal.Cursor, cfg uplink.RunnerConfig) (carrier, error) {
	p := policyOf(k.Driver)
	split := k.route == "" && p.CheckOrder(k.promise.Order) == nil && p.IsLiveFirst()
	if !split && !uplink.SplitOf(log, k.uplink, k.stream) {
		return uplink.New(cfg), nil
	}
	return uplink.NewLiveFirst(uplink.LiveFirstConfig{Runner: cfg, Log: log, Cursor: cursor, Split: split})
}

// lag returns what the uplink has before it, and how much of that is a backlog beside which new records go.
func lag(c carrier, cursor *wal.Cursor) (all wal.Lag, backlog uint64) {
	if d, ok := c.(*uplink.LiveFirst); ok {
		return d.Lag()
	}
	return cursor.Lag(), 0
}
