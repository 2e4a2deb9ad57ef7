package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"edgegateway/uplink"
)

// Probe implements uplink.Prober. The rights are tried with the very commands of the scripts, queued in a transaction that is
// discarded: Redis checks them then and changes nothing. What is written and read back is a key of its own that goes after it.
func (c *Config) Probe(ctx context.Context, env uplink.Env, step func(uplink.Step)) {
	quiet()
	s, err := c.session(env)
	if err != nil {
		step(uplink.Step{Name: "read the TLS settings", Err: err})
		return
	}
	s.ctx, s.cancel = context.WithCancel(ctx)
	defer s.Close()
	if found, ok := s.probeWhere(ctx); ok {
		if step(found); found.Err != nil {
			return
		}
	}
	conn := s.client.Conn()
	defer func() { _ = conn.Close() }() // the same
	p := &probe{session: s, conn: conn, signIn: "sign in as the default user"}
	if c.User != "" {
		p.signIn = "sign in as " + c.User
	} else if !c.Password.IsSet() {
		p.signIn = "sign in without a password"
	}
	for _, try := range []func(context.Context, uplink.Env) []uplink.Step{p.greet, p.place, p.rights, p.writeAndRead, c.probeDelivery} {
		for _, done := range try(ctx, env) {
			done.Err = s.explain(done.Err)
			if step(done); done.Err != nil {
				return
			}
		}
	}
}

// probeWhere finds the server where the config does not name it. Its errors are in plain words.
func (s *session) probeWhere(ctx context.Context) (found uplink.Step, ok bool) {
	switch {
	case s.sentinels != nil:
		found.Name = "ask the sentinels for the master " + s.sentinels.name
		at, err := s.sentinels.master(ctx)
		if found.Err = err; err == nil {
			s.use(at.address, false)
		}
	case len(s.nodes) > 0:
		key := strings.ReplaceAll(s.key, topicPlaceholder, "probe")
		found.Name = "find the node of key " + key
		found.Err = s.findNode(ctx, key)
	default:
		return found, false
	}
	if found.Err == nil {
		found.Note = s.address
	}
	return found, true
}

type probe struct {
	session *session
	conn    *redis.Conn
	signIn  string
}

// greet connects and signs in, and says which server it is.
func (p *probe) greet(ctx context.Context, _ uplink.Env) []uplink.Step {
	connect, signIn := uplink.Step{Name: "connect to " + p.session.address}, uplink.Step{Name: p.signIn}
	begun := time.Now()
	if err := p.conn.Ping(ctx).Err(); err != nil {
		if _, answered := errors.AsType[redis.Error](err); !answered {
			connect.Err = err
			if strings.HasPrefix(err.Error(), "redis: ") { // the library cannot make sense of it
				connect.Err = uplink.Config(fmt.Errorf("%s answers as no Redis does (want the address and port of one): %w", p.session.address, err))
			}
			return []uplink.Step{connect}
		}
		signIn.Err = err
		return []uplink.Step{connect, signIn}
	}
	signIn.Note = fmt.Sprintf("an answer takes %v", time.Since(begun).Round(100*time.Microsecond))
	if info, err := p.conn.Info(ctx, "server").Result(); err == nil {
		connect.Note = "Redis " + infoField(info, "redis_version")
	}
	return []uplink.Step{connect, signIn}
}

// infoField returns one line of INFO, or "of an unknown version".
func infoField(info, field string) string {
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(line, field+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return "of an unknown version"
}

// place looks at what is at the key.
func (p *probe) place(ctx context.Context, _ uplink.Env) []uplink.Step {
	s := p.session
	found := uplink.Step{Name: "look at the key " + s.key}
	if s.as == asLatest {
		found.Note = "a hash for each topic"
		return []uplink.Step{found}
	}
	kind, err := p.conn.Type(ctx, s.key).Result()
	want := s.as
	switch {
	case err != nil && strings.HasPrefix(err.Error(), "NOPERM"):
		found.Note = "not known: the user may not ask for its type"
	case err != nil:
		found.Err = err
	case kind == "none":
		found.Note = "free"
	case kind == want:
		found.Note = "a " + kind
	default:
		found.Err = uplink.Config(fmt.Errorf("key %s exists and is a %s (want a key that is free or a %s)", s.key, kind, want))
	}
	return []uplink.Step{found}
}

// rights queues what the scripts do and discards it.
func (p *probe) rights(ctx context.Context, _ uplink.Env) []uplink.Step {
	s := p.session
	tried := uplink.Step{Name: "rights on " + s.key}
	if err := p.conn.Do(ctx, "MULTI").Err(); err != nil {
		if strings.HasPrefix(err.Error(), "NOPERM") {
			tried.Note = "not known: the user has no right to MULTI, with which they are tried"
			return []uplink.Step{tried}
		}
		tried.Err = err
		return []uplink.Step{tried}
	}
	for _, command := range s.commands() {
		if err := p.conn.Do(ctx, command...).Err(); err != nil {
			tried.Err = err
			break
		}
	}
	if err := p.conn.Do(ctx, "DISCARD").Err(); err != nil && tried.Err == nil {
		tried.Err = err
	}
	if tried.Err == nil {
		tried.Note = "granted"
	}
	return []uplink.Step{tried}
}

// commands are those that the session's scripts use, with its keys.
func (s *session) commands() [][]any {
	const script = "return 1"
	if s.as == asLatest {
		key := strings.ReplaceAll(s.key, topicPlaceholder, "probe")
		return [][]any{{"EVAL", script, 1, key}, {"HMGET", key, "epoch"}, {"HSET", key, "epoch", "0"}}
	}
	list := [][]any{{"EVAL", script, 1, s.key}, {"EVALSHA", strings.Repeat("0", 40), 1, s.key}, {"GET", s.cursor}, {"SET", s.cursor, "0"}}
	if s.as == asList {
		list = append(list, []any{"RPUSH", s.key, "probe"}, []any{"LINDEX", s.key, "-1"}, []any{"LTRIM", s.key, "0", "-1"})
	} else {
		list = append(list, []any{"XADD", s.key, "1-1", "probe", "1"}, []any{"XINFO", "STREAM", s.key})
	}
	if s.fence != "" {
		list = append(list, []any{"GET", s.fence}, []any{"SET", s.fence, "0"})
	}
	return list
}

// writeAndRead writes a key of its own and reads it back, where the user may.
func (p *probe) writeAndRead(ctx context.Context, _ uplink.Env) []uplink.Step {
	key := beside(strings.ReplaceAll(p.session.key, topicPlaceholder, "probe"), "probe")
	tried := uplink.Step{Name: "write and read back " + key}
	const value = "edge-gateway"
	err := p.conn.Set(ctx, key, value, 10*time.Second).Err()
	if err != nil && strings.HasPrefix(err.Error(), "NOPERM") {
		tried.Note = "not tried: the user may not write beside its own keys, and need not"
		return []uplink.Step{tried}
	}
	var got string
	if err == nil {
		got, err = p.conn.Get(ctx, key).Result()
	}
	switch {
	case err != nil:
		tried.Err = err
	case got != value:
		tried.Err = fmt.Errorf("%s gave back %q and not what was written", p.session.address, got)
	default:
		tried.Err = p.confirm(ctx)
		_ = p.conn.Del(ctx, key).Err() // or it goes by itself
	}
	if tried.Err == nil {
		tried.Note = "the key is gone again"
	}
	return []uplink.Step{tried}
}

// confirm waits for the disk and the replicas as a record does.
func (p *probe) confirm(ctx context.Context) error {
	if !p.session.waitAOF && p.session.waitReplicas == 0 {
		return nil
	}
	waited := p.conn.Do(ctx, p.session.waitCommand()...)
	if p.session.waitAOF {
		if err := p.session.checkAOF(waited.Err()); err != nil {
			return err
		}
	}
	return p.session.reached(waited)
}

// probeDelivery says which deliveries can be kept.
func (c *Config) probeDelivery(_ context.Context, env uplink.Env) []uplink.Step {
	delivery := env.Promise.Delivery
	if delivery == "" {
		delivery = uplink.AtLeastOnce
	}
	var could []string
	for _, d := range []uplink.Delivery{uplink.AtLeastOnce, uplink.EffectivelyOnce, uplink.ExactlyOnce} {
		if uplink.CheckPromise(c, uplink.Promise{Delivery: d}) == nil {
			could = append(could, string(d))
		}
	}
	s := uplink.Step{Name: "keep delivery " + string(delivery)}
	if !slices.Contains(could, string(delivery)) {
		s.Err = uplink.CheckPromise(c, env.Promise)
		return []uplink.Step{s}
	}
	s.Note = "it could keep " + strings.Join(could, ", ")
	return []uplink.Step{s}
}
