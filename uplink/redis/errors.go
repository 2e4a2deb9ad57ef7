package redis

import (
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/redis/go-redis/v9"

	"edgegateway/uplink"
)

// refused is what the script says of the first record it did not store.
type refused string

func (r refused) Error() string { return string(r) }

// explain puts an error into plain words. None of them is about a single record, so none drops one.
func (s *session) explain(err error) error {
	config := func(format string, args ...any) error { return uplink.Config(fmt.Errorf(format, args...)) }
	text := err.Error()
	switch {
	case strings.HasPrefix(text, "NEWER "):
		return config("key %s was written by a newer log of this gateway: epoch %s there, %s here (is another gateway running with the same id?)",
			s.key, strings.TrimPrefix(text, "NEWER "), s.epoch)
	case strings.HasPrefix(text, "CURSOR "):
		return config("key %s holds %q instead of EPOCH-SEQUENCE (want a key that nobody else writes to)",
			s.cursor, strings.TrimPrefix(text, "CURSOR "))
	case strings.Contains(text, "is equal or smaller than"):
		return config("stream %s holds entries that this gateway did not write (want a key of its own)", s.key)
	case strings.Contains(text, "WRONGTYPE"):
		return config("key %s or %s exists and holds something else (want a key that is free or a stream)", s.key, s.cursor)
	case redis.IsAuthError(err):
		return config("%s refuses the sign-in: wrong user or password", s.address)
	case redis.IsPermissionError(err), strings.HasPrefix(text, "NOPERM"):
		return config("%s: the user has no rights for this (want EVALSHA, EVAL, XADD, XINFO, GET and SET on %s and %s): %s",
			s.address, s.key, s.cursor, text)
	case strings.Contains(text, "invalid DB index"), strings.Contains(text, "DB index is out of range"):
		return config("%s has no such database (want db: 0, or a number below its setting databases)", s.address)
	case strings.Contains(text, "OOM "):
		return fmt.Errorf("%s is full: it has reached its maxmemory (want more memory or max_len)", s.address)
	case redis.IsReadOnlyError(err), strings.Contains(text, "READONLY"):
		return fmt.Errorf("%s is a read-only replica (want the address of the master)", s.address)
	case redis.IsLoadingError(err):
		return fmt.Errorf("%s is still loading its data", s.address)
	case strings.Contains(text, "MISCONF"):
		return fmt.Errorf("%s cannot write to its disk and takes no data", s.address)
	}
	if _, ok := errors.AsType[redis.Error](err); ok {
		return fmt.Errorf("%s: %w", s.address, err)
	}
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() && s.encrypted {
		// A Redis without TLS waits for the end of what it takes for a command.
		return fmt.Errorf("%s does not answer in time (is it up, and does it speak TLS on this port?)", s.address)
	}
	return uplink.Explain(s.address, err)
}
