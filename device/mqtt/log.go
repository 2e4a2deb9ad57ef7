package mqtt

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// seldom lets each text through once a minute, so that a client that misbehaves in a loop does not fill the log.
type seldom struct {
	mu   sync.Mutex // guards last
	last map[string]time.Time
}

const seldomEvery = time.Minute

// allow takes constant texts only: the map is as large as their number.
func (s *seldom) allow(text string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if last, ok := s.last[text]; ok && now.Sub(last) < seldomEvery {
		return false
	}
	if s.last == nil {
		s.last = map[string]time.Time{}
	}
	s.last[text] = now
	return true
}

// mochiLog passes on what mochi warns of, without the packets it would print along: they hold payloads and passwords.
type mochiLog struct {
	slog.Handler
	seldom *seldom
}

func (h mochiLog) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn && h.Handler.Enabled(ctx, level)
}

func (h mochiLog) Handle(ctx context.Context, r slog.Record) error {
	// A short keepalive is the client's right, and mochi says so at every connect.
	if r.Message == "client keepalive is below minimum recommended value and may exhibit connection instability" || !h.seldom.allow(r.Message) {
		return nil
	}
	clean := slog.NewRecord(r.Time, r.Level, r.Message, r.PC)
	r.Attrs(func(a slog.Attr) bool {
		if slices.Contains([]string{"error", "client", "listener"}, a.Key) {
			clean.AddAttrs(a)
		}
		return true
	})
	return h.Handler.Handle(ctx, clean)
}

func (h mochiLog) WithAttrs([]slog.Attr) slog.Handler { return h }
func (h mochiLog) WithGroup(string) slog.Handler      { return h }
