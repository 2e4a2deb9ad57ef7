package redis

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"edgegateway/uplink"
)

// exactSession is a session with a fence and a far cursor. It implements uplink.Resumer.
type exactSession struct {
	*session
	far uplink.FarCursor
}

// claim fences older instances and reads the far cursor.
func (s *session) claim(ctx context.Context, c *uplink.Claims) (*exactSession, error) {
	instance, held := c.Of(s.fence)
	reply, err := s.run(ctx, s.scripts.claim, s.keys(), []any{s.as, instance, strconv.FormatUint(held, 10)})
	if err != nil {
		return nil, err
	}
	if refusal := reply[1].(string); refusal != "" {
		return nil, refused(refusal)
	}
	far, ok := s.stand(reply[2].(string))
	token, isText := reply[0].(string)
	number, _, _ := strings.Cut(token, ":")
	n, err := strconv.ParseUint(number, 10, 64)
	if !ok || !isText || err != nil {
		return nil, fmt.Errorf("%s gave an answer that makes no sense: %v", s.address, reply)
	}
	c.Hold(s.fence, n)
	s.token = token
	return &exactSession{session: s, far: far}, nil
}

// parseCursor reads EPOCH-SEQ.
func parseCursor(text string) (c uplink.FarCursor, ok bool) {
	epoch, seq, ok := strings.Cut(text, "-")
	if !ok {
		return c, false
	}
	var err error
	if c.Epoch, err = strconv.ParseUint(epoch, 10, 64); err != nil {
		return c, false
	}
	c.Seq, err = strconv.ParseUint(seq, 10, 64)
	return c, err == nil
}

// stand takes over a cursor as the server has it and returns it without its base. The base of an earlier log stays in force
// while the ids of this one would be below it.
func (s *session) stand(text string) (far uplink.FarCursor, ok bool) {
	at, based, _ := strings.Cut(text, "@")
	if far, ok = parseCursor(at); !ok {
		return far, false
	}
	s.last, s.base = text, ""
	if based == "" {
		return far, true
	}
	base, ok := parseCursor(based)
	if far.Epoch != s.epoch {
		base.Seq += far.Seq // the last id in use
	}
	if far.Epoch == s.epoch || base.Epoch >= s.epoch {
		s.base = fmt.Sprintf("@%d-%d", base.Epoch, base.Seq)
	}
	return far, ok
}

// entryID returns the id of a record's entry in the stream.
func (s *session) entryID(seq uint64) string {
	id := uplink.FarCursor{Epoch: s.epoch, Seq: seq}
	if base, ok := parseCursor(strings.TrimPrefix(s.base, "@")); ok {
		id = uplink.FarCursor{Epoch: base.Epoch, Seq: base.Seq + seq}
	}
	return strconv.FormatUint(id.Epoch, 10) + "-" + strconv.FormatUint(id.Seq, 10)
}

// Far implements uplink.Resumer.
func (s *exactSession) Far() uplink.FarCursor { return s.far }

// Reset implements uplink.Resumer.
func (s *exactSession) Reset(ctx context.Context, to uplink.FarCursor) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	reply, err := s.run(ctx, s.scripts.reset, s.keys(), []any{s.as, s.token, fmt.Sprintf("%d-%d", to.Epoch, to.Seq)})
	if err == nil && reply[1] != "" {
		err = refused(reply[1].(string))
	}
	if err != nil {
		return s.explain(err)
	}
	s.stand(reply[2].(string))
	s.far = to
	return nil
}

// Alive implements uplink.Watcher.
func (s *exactSession) Alive(ctx context.Context) error {
	holder, err := s.client.Get(ctx, s.fence).Result()
	switch {
	case err != nil && !errors.Is(err, redis.Nil):
		return s.explain(err)
	case holder != s.token:
		return s.explain(refused("FENCED " + holder))
	}
	return nil
}
