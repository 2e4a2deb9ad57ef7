package redis

import (
	"context"
	"fmt"
	"strconv"
	"strings"

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
	cmd := newCommand(s.scripts.claim, s.keys(), 3)
	cmd.args = append(cmd.args, s.as, instance, strconv.FormatUint(held, 10))
	cmd.spellOut() // it is short, and a server that does not know it would have to be asked twice
	reply, err := s.run(ctx, cmd)
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

// after returns the cursor that a chunk leaves behind: it only grows.
func (s *session) after(cursor string, seq uint64) string {
	text, _, _ := strings.Cut(cursor, "@")
	if at, ok := parseCursor(text); !ok || at.Epoch == s.epoch && at.Seq >= seq {
		return cursor // or it is not known
	}
	return strconv.FormatUint(s.epoch, 10) + "-" + strconv.FormatUint(seq, 10) + s.base
}

// Far implements uplink.Resumer.
func (s *exactSession) Far() uplink.FarCursor { return s.far }

// Reset implements uplink.Resumer.
func (s *exactSession) Reset(ctx context.Context, to uplink.FarCursor) error {
	s.hold()
	defer s.release()
	cmd := newCommand(s.scripts.reset, s.keys(), 3)
	cmd.args = append(cmd.args, s.as, s.token, fmt.Sprintf("%d-%d", to.Epoch, to.Seq))
	reply, err := s.run(ctx, cmd)
	s.mu.Lock()
	defer s.mu.Unlock()
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
	s.mu.Lock()
	failed := s.failed
	s.mu.Unlock()
	if failed != nil {
		return failed
	}
	holder, err := s.get(ctx, s.fence)
	switch {
	case err != nil:
		return s.explain(err)
	case holder != s.token:
		return s.explain(refused("FENCED " + holder))
	}
	return nil
}
