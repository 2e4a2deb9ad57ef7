package redis

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"edgegateway/pipeline"
	"edgegateway/uplink"
)

// Sentinel is the section for a server whose address sentinels know.
type Sentinel struct {
	Addresses []string        `yaml:"addresses" doc:"HOST:PORT of the sentinels. All are asked, and the newest answer counts."`
	Master    string          `yaml:"master" doc:"Name under which they watch the master."`
	User      string          `yaml:"user" doc:"User at the sentinels, which have users of their own; empty for the default user."`
	Password  pipeline.Secret `yaml:"password" doc:"Password at the sentinels."`
}

// Times of asking sentinels.
const (
	sentinelGrace = time.Second      // for the others when one has answered: one that was cut off may know an old master only
	sentinelEvery = 10 * time.Second // while a session lives
)

// sentinels are asked who the master is.
type sentinels struct {
	name      string
	clients   []*redis.SentinelClient
	all       []string // their addresses
	every     time.Duration
	encrypted bool
}

// master is what a sentinel says of one.
type master struct {
	address string
	epoch   uint64 // grows with each fail-over
}

// newSentinels returns the sentinels of a config; nil where there are none.
func (c *Config) newSentinels(tls *tls.Config) *sentinels {
	if c.Sentinel.Master == "" {
		return nil
	}
	s := &sentinels{name: c.Sentinel.Master, all: c.Sentinel.Addresses, every: cmp.Or(c.sentinelEvery, sentinelEvery), encrypted: c.TLS.Enabled}
	for _, address := range s.all {
		options := c.options(tls)
		options.Addr, options.DB, options.PoolSize = address, 0, 1
		options.Username, options.Password = c.Sentinel.User, c.Sentinel.Password.Reveal()
		s.clients = append(s.clients, redis.NewSentinelClient(options))
	}
	return s
}

func (s *sentinels) close() {
	for _, c := range s.clients {
		_ = c.Close() // nothing is asked any more
	}
}

// master asks all sentinels and returns the newest of their answers.
func (s *sentinels) master(ctx context.Context) (master, error) {
	ctx, cancel := context.WithCancel(ctx)
	var asking sync.WaitGroup
	defer func() { cancel(); asking.Wait() }()
	type answer struct {
		master

		err error
	}
	answers := make(chan answer, len(s.clients))
	for i := range s.clients {
		asking.Go(func() {
			m, err := s.ask(ctx, i)
			answers <- answer{m, err}
		})
	}
	var newest master
	var failed error
	var grace <-chan time.Time
	for range s.clients {
		select {
		case a := <-answers:
			switch {
			case a.err != nil && (failed == nil || uplink.IsConfig(a.err)):
				failed = a.err
			case a.err == nil && (newest.address == "" || a.epoch > newest.epoch):
				newest = a.master
			}
			if newest.address != "" && grace == nil {
				grace = time.After(sentinelGrace)
			}
		case <-grace:
			return newest, nil
		}
	}
	if newest.address == "" {
		return newest, failed
	}
	return newest, nil
}

// ask asks one sentinel.
func (s *sentinels) ask(ctx context.Context, i int) (master, error) {
	said, err := s.clients[i].Master(ctx, s.name).Result()
	if err != nil {
		return master{}, s.explain(s.all[i], err)
	}
	m := master{address: net.JoinHostPort(said["ip"], said["port"])}
	if m.epoch, err = strconv.ParseUint(said["config-epoch"], 10, 64); err != nil || said["ip"] == "" {
		return master{}, fmt.Errorf("sentinel %s gave an answer that makes no sense: %v", s.all[i], said)
	}
	return m, nil
}

// explain puts an error of a sentinel into plain words.
func (s *sentinels) explain(address string, err error) error {
	config := func(format string, args ...any) error { return uplink.Config(fmt.Errorf(format, args...)) }
	text := err.Error()
	switch {
	case strings.Contains(text, "No such master"):
		return config("sentinel %s watches no master %q (want sentinel.master as in the sentinels' settings)", address, s.name)
	case redis.IsAuthError(err):
		return config("sentinel %s refuses the sign-in: wrong sentinel.user or sentinel.password", address)
	case redis.IsPermissionError(err):
		return config("sentinel %s: the user has no rights for this (want SENTINEL MASTER): %s", address, text)
	case strings.Contains(text, "unknown command"):
		return config("%s is no sentinel (want HOST:PORT of the sentinels in sentinel.addresses, whose usual port is 26379)", address)
	}
	if _, answered := errors.AsType[redis.Error](err); answered {
		return fmt.Errorf("sentinel %s: %w", address, err)
	}
	if !s.encrypted && (errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)) {
		return fmt.Errorf("sentinel %s closed the connection before it had answered (does it want TLS on this port?)", address)
	}
	return explainLine("sentinel "+address, s.encrypted, err)
}

// watchMaster ends the session when the sentinels know a newer master: the old one may still answer and lose what it is given.
func (s *session) watchMaster(of master) {
	timer := time.NewTicker(s.sentinels.every)
	defer timer.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-timer.C:
		}
		now, err := s.sentinels.master(s.ctx)
		if err != nil || now.epoch <= of.epoch || now.address == of.address {
			continue // as long as nobody knows better
		}
		s.mu.Lock()
		if s.failed == nil {
			s.failed = fmt.Errorf("the sentinels have made %s the master %s in the place of %s", now.address, s.sentinels.name, of.address)
		}
		s.mu.Unlock()
		s.cut() // what is on its way would be lost, and must not count
		return
	}
}
