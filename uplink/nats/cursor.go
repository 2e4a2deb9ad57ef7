package nats

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"edgegateway/uplink"
)

// The cursor is the last message on its own subject: EPOCH/SEQUENCE of the last record that is stored. Whoever moves it says
// which message it replaces, by the number that the stream gave that one, so only one instance can. A header says which one it
// is, NUMBER:INSTANCE; the number grows with each session.
const (
	headerHolder  = "Gw-Holder"
	headerRollup  = "Nats-Rollup"
	rollupSubject = "sub" // the message takes the place of all others on its subject
)

// maxRaces bounds how often fence begins again because an older instance has just stored something, or a new leader of the stream does
// not know the cursor yet, and racePause is the pause between.
const (
	maxRaces  = 8
	racePause = 50 * time.Millisecond
)

func (l *link) cursorMessage(at uplink.FarCursor, replaces uint64) *nats.Msg {
	return &nats.Msg{Subject: l.cursor, Data: []byte(at.String()), Header: nats.Header{
		headerHolder:                        {l.holder},
		headerRollup:                        {rollupSubject},
		jetstream.ExpectedStreamHeader:      {l.stream},
		jetstream.ExpectedLastSubjSeqHeader: {strconv.FormatUint(replaces, 10)},
	}}
}

// fence reads the cursor and puts the same one in its place. What an older instance has on its way then is refused, as a whole.
// An instance that has lost the cursor to another one does not take it back.
func (s *batchSession) fence(ctx context.Context, env uplink.Env) error {
	claims := env.Claims
	var err error
	for range maxRaces {
		var at uplink.FarCursor
		var replaces, number uint64
		var owner string
		switch m, getErr := lastOn(ctx, s.far, s.cursor); {
		case getErr == nil:
			if at, err = parseCursor(string(m.Data)); err != nil {
				return uplink.Config(fmt.Errorf("the last message on %s in the stream %s is no cursor: %w (want a cursor_subject of its own)", s.cursor, s.stream, err))
			}
			replaces = m.Sequence
			number, owner = parseHolder(m.Header.Get(headerHolder))
		case !errors.Is(getErr, jetstream.ErrMsgNotFound):
			return getErr
		}
		if claims.Lost(s.cursor, owner, number) {
			return s.fenced()
		}
		if at, err = s.inPart(ctx, env, at, replaces); err != nil {
			return err
		}
		instance, held := claims.Of(s.cursor)
		number = max(number, held) + 1
		s.holder = strconv.FormatUint(number, 10) + ":" + instance
		if err = s.move(ctx, at, replaces); err == nil {
			claims.Hold(s.cursor, number)
		}
		if !isFenced(err) {
			return err
		}
		select {
		case <-time.After(racePause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return err
}

// inPart returns how far the data goes where a part of a batch is stored behind the cursor. A server with one copy of a stream
// stores a batch message by message once it has checked it, and stops where an account or its disk has no more room (seen in 2.15.3).
func (s *batchSession) inPart(ctx context.Context, env uplink.Env, at uplink.FarCursor, cursor uint64) (uplink.FarCursor, error) {
	if cursor == 0 { // the first session puts one there before any data
		return at, nil
	}
	m, err := lastOn(ctx, s.far, s.subject)
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound):
		return at, nil
	case err != nil:
		return at, err
	case m.Sequence < cursor:
		return at, nil
	}
	id, ok := strings.CutPrefix(m.Header.Get(headerID), env.Gateway+"/"+env.Stream+"/")
	if !ok {
		return at, nil // another stream of this gateway has the subject too
	}
	stored, err := parseCursor(id)
	if err != nil {
		return at, nil //nolint:nilerr // no record of ours
	}
	if env.Log != nil {
		env.Log.Warn("the server has stored a batch in part and not moved the cursor; sending goes on behind what is there",
			"stream", s.stream, "cursor", at.String(), "stored", stored.String())
	}
	return stored, nil
}

// move puts a cursor in the place of message replaces, by itself.
func (s *batchSession) move(ctx context.Context, at uplink.FarCursor, replaces uint64) error {
	ack, err := within(ctx, func(ctx context.Context) (*jetstream.PubAck, error) {
		return s.js.PublishMsg(ctx, s.cursorMessage(at, replaces), jetstream.WithRetryAttempts(0))
	})
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at, s.last = at, ack.Sequence
	return nil
}

// Far implements uplink.Resumer.
func (s *batchSession) Far() uplink.FarCursor {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at
}

// Reset implements uplink.Resumer.
func (s *batchSession) Reset(ctx context.Context, to uplink.FarCursor) error {
	s.mu.Lock()
	last := s.last
	s.mu.Unlock()
	return s.explain(s.move(ctx, to, last))
}

// Alive implements uplink.Watcher.
func (s *batchSession) Alive(ctx context.Context) error {
	m, err := lastOn(ctx, s.far, s.cursor)
	if err != nil {
		return s.explain(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.commit == nil && m.Sequence > s.last && s.isOthers(m) { // a smaller one is what a replica says that is behind
		return s.fenced()
	}
	return nil
}

// isOthers reports whether a cursor was put there by another instance, or by a later session of this one.
func (s *batchSession) isOthers(m *jetstream.RawStreamMsg) bool {
	number, instance := parseHolder(m.Header.Get(headerHolder))
	own, self := parseHolder(s.holder)
	return instance != self || number > own
}

// parseHolder reads NUMBER:INSTANCE; nobody holds a cursor without.
func parseHolder(text string) (number uint64, instance string) {
	first, instance, _ := strings.Cut(text, ":")
	number, err := strconv.ParseUint(first, 10, 64)
	if err != nil {
		return 0, ""
	}
	return number, instance
}

// parseCursor reads what FarCursor.String writes.
func parseCursor(text string) (uplink.FarCursor, error) {
	epoch, seq, _ := strings.Cut(text, "/")
	e, err := strconv.ParseUint(epoch, 10, 64)
	if err == nil {
		var n uint64
		if n, err = strconv.ParseUint(seq, 10, 64); err == nil {
			return uplink.FarCursor{Epoch: e, Seq: n}, nil
		}
	}
	return uplink.FarCursor{}, fmt.Errorf("%.40q is not EPOCH/SEQUENCE", text)
}

func isFenced(err error) bool {
	code := apiCode(err)
	return code == jetstream.JSErrCodeStreamWrongLastSequence || code == jetstream.JSErrCodeStreamWrongLastSequenceConstant
}
