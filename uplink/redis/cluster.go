package redis

import (
	"context"
	"strings"

	"github.com/redis/go-redis/v9"

	"edgegateway/uplink"
)

// newCluster returns the library's client of a cluster, for hashes: they are at several nodes, and each is found by itself.
func newCluster(o *redis.Options, nodes []string) *redis.ClusterClient {
	return redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: nodes, MaxRedirects: maxHops, Username: o.Username, Password: o.Password, TLSConfig: o.TLSConfig,
		MaxRetries: o.MaxRetries, DialerRetries: o.DialerRetries,
		DialTimeout: o.DialTimeout, ReadTimeout: o.ReadTimeout, WriteTimeout: o.WriteTimeout,
		ContextTimeoutEnabled: true, PoolSize: 1, PipelinePoolSize: o.PipelinePoolSize, DisableIdentity: true,
		MaintNotificationsConfig: o.MaintNotificationsConfig,
	})
}

// spread runs latest.lua for each record by itself, at the node that has its hash. It returns how many are stored, counted from the first;
// what is stored behind one that is not comes again and is the same.
func (s *session) spread(recs []uplink.Record) (stored int, err error) {
	commands := make([]*command, len(recs))
	for i := range recs {
		commands[i] = s.newest(recs[i : i+1])
	}
	replies := s.pipe(s.ctx, commands)
	var unknown []*command
	var at []int
	for i, c := range replies {
		if redis.HasErrorPrefix(c.Err(), "NOSCRIPT") {
			commands[i].spellOut()
			unknown, at = append(unknown, commands[i]), append(at, i)
		}
	}
	if len(unknown) > 0 {
		for i, c := range s.pipe(s.ctx, unknown) {
			replies[at[i]] = c
		}
	}
	for i, c := range replies {
		reply, err := s.read(c)
		if _, _, err := s.outcome(reply, err, 1); err != nil {
			return i, err
		}
	}
	return len(recs), nil
}

func (s *session) pipe(ctx context.Context, commands []*command) []*redis.Cmd {
	replies := make([]*redis.Cmd, len(commands))
	_, _ = s.many.Pipelined(ctx, func(p redis.Pipeliner) error { // each command has its own error
		for i, c := range commands {
			replies[i] = c.cmd(ctx)
			_ = p.Process(ctx, replies[i])
		}
		return nil
	})
	return replies
}

// isElsewhere reports whether an error says that a key is at another node of a cluster, or on its way to one.
func isElsewhere(text string) bool {
	return strings.HasPrefix(text, "MOVED ") || strings.HasPrefix(text, "ASK ") || strings.HasPrefix(text, "TRYAGAIN")
}
