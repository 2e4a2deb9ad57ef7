package redis

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"edgegateway/uplink"
)

// refused is what the script says of the first record it did not store.
type refused string

func (r refused) Error() string { return string(r) }

// explain puts an error into plain words. None of them is about a single record, so none drops one.
func (s *session) explain(err error) error {
	if err == nil || uplink.IsConfig(err) {
		return err
	}
	if said, ok := errors.AsType[refused](err); ok {
		if e := s.explainRefusal(string(said)); e != nil {
			return e
		}
	}
	if e := s.explainServer(err); e != nil {
		return e
	}
	if _, ok := errors.AsType[redis.Error](err); ok {
		return fmt.Errorf("%s: %w", s.address, err)
	}
	return explainLine(s.address, s.encrypted, err)
}

// explainLine explains what goes wrong on the way to a server or a sentinel.
func explainLine(address string, encrypted bool, err error) error {
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() && encrypted {
		// A Redis without TLS waits for the end of what it takes for a command.
		return fmt.Errorf("%s does not answer in time (is it up, and does it speak TLS on this port?)", address)
	}
	return uplink.Explain(address, err)
}

// explainRefusal explains the words of our own scripts; nil for the words of Redis, which the scripts pass on.
func (s *session) explainRefusal(text string) error {
	config := func(format string, args ...any) error { return uplink.Config(fmt.Errorf(format, args...)) }
	word, rest, _ := strings.Cut(text, " ")
	switch word {
	case "FENCED":
		return s.fenced(rest)
	case "ELSEWHERE":
		if s.fence == "" {
			return fmt.Errorf("key %s is at %s and was at %s when this gateway wrote last: %s has lost confirmed writes, "+
				"or another gateway with the id %s writes there too", s.key, rest, s.last, s.address, s.gateway)
		}
		return fmt.Errorf("key %s is at %s and was at %s when this gateway wrote last: %s has lost confirmed writes (a fail-over, or an old copy was put back?)",
			s.key, rest, s.last, s.address)
	case "NEWER":
		return config("key %s was written by a newer log of this gateway: epoch %s there, %d here (is another gateway running with the same id?)",
			s.key, rest, s.epoch)
	case "CURSOR":
		return config("key %s holds %q instead of EPOCH-SEQUENCE (want a key that nobody else writes to)", s.cursor, rest)
	case "FENCE":
		return config("key %s holds %q instead of NUMBER:INSTANCE (want a key that nobody else writes to)", s.fence, rest)
	case "FOREIGN":
		return config("list %s holds elements that this gateway did not write (want a key of its own)", s.key)
	}
	return nil
}

// fenced explains why the fence does not hold our token: a newer one is another instance's; none, or an older one, is what a
// server has that lost writes, and the next session takes the fence again.
func (s *session) fenced(holder string) error {
	theirs, _, _ := strings.Cut(holder, ":")
	ours, _, _ := strings.Cut(s.token, ":")
	there, _ := strconv.ParseUint(theirs, 10, 64) // 0 where there is none
	here, _ := strconv.ParseUint(ours, 10, 64)    // 0 at Open
	if there < here {
		return fmt.Errorf("%s has lost the fence of key %s, and confirmed writes perhaps (a fail-over, or an old copy was put back?)", s.address, s.key)
	}
	return uplink.Fenced(fmt.Errorf("another gateway with the id %s writes this %s: it has taken key %s after this one, which sends no more until it is started again "+
		"(want an id of its own for each gateway)", s.gateway, s.as, s.key))
}

// explainServer explains the errors of Redis; nil for those it does not know.
func (s *session) explainServer(err error) error {
	config := func(format string, args ...any) error { return uplink.Config(fmt.Errorf(format, args...)) }
	text := err.Error()
	switch {
	case strings.Contains(text, "is equal or smaller than"):
		return config("stream %s holds entries that this gateway did not write (want a key of its own)", s.key)
	case strings.Contains(text, "WRONGTYPE"):
		return config("key %s or %s exists and holds something else (want a key that is free or a %s)", s.key, s.cursor, s.what())
	case redis.IsAuthError(err):
		return config("%s refuses the sign-in: wrong user or password", s.address)
	case redis.IsPermissionError(err), strings.HasPrefix(text, "NOPERM"), strings.Contains(text, "ACL failure in script"),
		strings.Contains(text, "executing the script can't"):
		return config("%s: the user has no rights for this (want %s): %s", s.address, s.rights(), text)
	case strings.Contains(text, "invalid DB index"), strings.Contains(text, "DB index is out of range"):
		return config("%s has no such database (want db: 0, or a number below its setting databases)", s.address)
	case strings.HasPrefix(text, "CROSSSLOT"), isElsewhere(text) && len(s.nodes) == 0:
		return config("%s is a node of a cluster (want its nodes in cluster, and no address): %s", s.address, text)
	case isElsewhere(text):
		return fmt.Errorf("%s has given key %s away, or is about to: the gateway looks for it in the cluster again: %s", s.address, s.key, text)
	case strings.HasPrefix(text, "CLUSTERDOWN"):
		return fmt.Errorf("%s: the cluster is down (are nodes missing, or slots that nobody has?): %s", s.address, text)
	case strings.Contains(text, "cluster support disabled"):
		return config("%s is no node of a cluster (want address instead of cluster)", s.address)
	case strings.Contains(text, "OOM "):
		return fmt.Errorf("%s is full: it has reached its maxmemory (want more memory or max_len)", s.address)
	case redis.IsReadOnlyError(err), strings.Contains(text, "READONLY"):
		return fmt.Errorf("%s is a read-only replica (want the address of the master)", s.address)
	case redis.IsMasterDownError(err), strings.Contains(text, "MASTERDOWN"):
		return fmt.Errorf("%s is a replica that has lost its master (want the address of the master)", s.address)
	case redis.IsLoadingError(err):
		return fmt.Errorf("%s is still loading its data", s.address)
	case strings.Contains(text, "MISCONF"):
		return fmt.Errorf("%s cannot write to its disk and takes no data", s.address)
	case redis.IsNoReplicasError(err), strings.Contains(text, "NOREPLICAS"):
		return fmt.Errorf("%s has too few replicas to take data (its setting min-replicas-to-write)", s.address)
	case redis.IsMaxClientsError(err):
		return fmt.Errorf("%s has too many connections already (its setting maxclients)", s.address)
	case strings.Contains(text, "BUSY "):
		return fmt.Errorf("%s is busy with somebody's script", s.address)
	}
	return nil
}

// what names what the key should be.
func (s *session) what() string {
	if s.as == asLatest {
		return "hash"
	}
	return s.as
}

// rights lists what the user must be allowed.
func (s *session) rights() string {
	keys := s.cursor
	if s.fence != "" {
		keys += ", " + s.fence
	}
	switch s.as {
	case asLatest:
		return "EVALSHA, EVAL, HMGET and HSET on " + s.key
	case asList:
		return "EVALSHA, EVAL, RPUSH, LINDEX, LTRIM, GET and SET on " + s.key + " and " + keys
	}
	return "EVALSHA, EVAL, XADD, XINFO, GET and SET on " + s.key + " and " + keys
}
