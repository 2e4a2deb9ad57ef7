package redis

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"edgegateway/uplink"
)

// maxHops bounds how often one node of a cluster may send on to another before a session gives up.
const maxHops = 8

// options are those of every connection, but for where it leads.
func (c *Config) options(tls *tls.Config) *redis.Options {
	return &redis.Options{
		DB: c.DB, Username: c.User, Password: c.Password.Reveal(), TLSConfig: tls,
		// A retry is the Runner's business: the library's own would hide that a reply was lost.
		MaxRetries: -1, DialerRetries: 1,
		DialTimeout: 5 * time.Second, ReadTimeout: replyTimeout, WriteTimeout: replyTimeout,
		ContextTimeoutEnabled: true, PoolSize: 1, PipelinePoolSize: -1, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
}

// connect connects the session to the server that has its keys. Its errors are in plain words.
func (s *session) connect(ctx context.Context) error {
	switch {
	case s.sentinels != nil:
		at, err := s.sentinels.master(ctx)
		if err != nil {
			return err
		}
		s.use(at.address, false)
		if err := s.greet(ctx); err != nil {
			return s.explain(err)
		}
		s.running.Go(func() { s.watchMaster(at) })
		return nil
	case s.many != nil:
		return s.findNode(ctx, "")
	case len(s.nodes) > 0:
		return s.findNode(ctx, s.cursor)
	}
	return s.explain(s.greet(ctx))
}

// use has the session talk to a server. asking is for a node that takes over a slot and has not got it yet.
func (s *session) use(address string, asking bool) {
	if s.client != nil {
		_ = s.client.Close() // nothing is in flight
	}
	options := *s.options
	options.Addr = address
	s.address, s.asking, s.client = address, asking, redis.NewClient(&options)
}

// findNode connects to the node of a cluster that has a key, or to any where there is none: each node knows who has it.
func (s *session) findNode(ctx context.Context, key string) error {
	var first error
	for _, node := range s.nodes {
		s.use(node, false)
		err := s.greet(ctx)
		if err == nil && key != "" {
			err = s.follow(ctx, key)
		}
		if err = s.explain(err); err == nil || ctx.Err() != nil || uplink.IsConfig(err) {
			return err
		}
		first = cmp.Or(first, err)
	}
	return first
}

// follow goes where the nodes of a cluster say that a key is.
func (s *session) follow(ctx context.Context, key string) error {
	for range maxHops {
		_, err := s.get(ctx, key)
		to, asking, ok := redirection(err)
		if !ok {
			return err
		}
		if strings.HasPrefix(to, ":") { // the same host
			host, _, _ := net.SplitHostPort(s.address)
			to = net.JoinHostPort(host, strings.TrimPrefix(to, ":"))
		}
		s.use(to, asking)
		if err := s.greet(ctx); err != nil {
			return err
		}
	}
	return fmt.Errorf("the nodes of the cluster send from one to the other for key %s, the last one was %s (is a slot being moved?)", key, s.address)
}

// get reads a text, also from a node that has it but not its slot; empty where there is none.
func (s *session) get(ctx context.Context, key string) (string, error) {
	var got *redis.StringCmd
	_, _ = s.client.Pipelined(ctx, func(p redis.Pipeliner) error { // each command has its own error
		if s.asking {
			p.Do(ctx, "ASKING")
		}
		got = p.Get(ctx, key)
		return nil
	})
	text, err := got.Result()
	if errors.Is(err, redis.Nil) {
		return "", nil
	}
	return text, err
}

// redirection returns where a node of a cluster says that a key is. asking says that it is on its way to there.
func redirection(err error) (address string, asking, ok bool) {
	if address, ok = redis.IsMovedError(err); ok {
		return address, false, true
	}
	address, ok = redis.IsAskError(err)
	return address, ok, ok
}
