package nats

import (
	"errors"
	"fmt"
	"os"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"edgegateway/uplink"
)

// Error codes of the server that the library has no name for.
const (
	codeWrongStream jetstream.ErrorCode = 10060
	codeStoreFailed jetstream.ErrorCode = 10077
)

func apiCode(err error) jetstream.ErrorCode {
	if e, ok := errors.AsType[jetstream.JetStreamError](err); ok && e.APIError() != nil {
		return e.APIError().ErrorCode
	}
	return 0
}

func isNotFound(err error) bool {
	return errors.Is(err, jetstream.ErrStreamNotFound) || apiCode(err) == jetstream.JSErrCodeStreamNotFound
}

// outcome turns the answer to one record into its outcome. The server names the record it refuses, so none is suspect.
func (s *session) outcome(p publication, err error) uplink.Outcome {
	if apiCode(err) == jetstream.JSErrCodeStreamMessageExceedsMaximum {
		return uplink.Outcome{Verdict: uplink.Drop, Err: fmt.Errorf(
			"the record has %d bytes, more than the stream %s takes (its setting max_msg_size)", p.size, s.stream)}
	}
	return uplink.Outcome{Verdict: uplink.Retry, Err: s.explain(err)}
}

// explain puts an error into plain words.
func (s *session) explain(err error) error {
	config := func(format string, args ...any) error { return uplink.Config(fmt.Errorf(format, args...)) }
	switch apiCode(err) {
	case codeWrongStream:
		return config("subject %s does not go to the stream %s any more (have its subjects changed?)", s.subject, s.stream)
	case codeStoreFailed:
		return fmt.Errorf("stream %s takes no more: %w (is it full?)", s.stream, err)
	case jetstream.JSErrCodeJetStreamNotEnabled, jetstream.JSErrCodeJetStreamNotEnabledForAccount:
		return config("%s has no JetStream for this account (want it enabled on the server)", s.address)
	default: // no answer of JetStream, or one whose own text says enough
	}
	switch {
	case err == nil || uplink.IsConfig(err):
		return err
	case errors.Is(err, nats.ErrAuthorization):
		return config("%s refuses the sign-in: wrong user, password, token or credentials", s.address)
	case errors.Is(err, nats.ErrAuthExpired), errors.Is(err, nats.ErrAccountAuthExpired):
		return config("%s: the credentials have expired", s.address)
	case errors.Is(err, nats.ErrAuthRevoked):
		return config("%s: the credentials were revoked", s.address)
	case errors.Is(err, nats.ErrPermissionViolation):
		return config("the account may not do this (want the right to publish to %s and to $JS.API.>): %w", s.subject, err)
	case errors.Is(err, nats.ErrSecureConnRequired):
		return config("%s wants TLS (want tls.enabled: true)", s.address)
	case errors.Is(err, nats.ErrSecureConnWanted):
		return config("%s does not speak TLS on this port (want its TLS port, or tls.enabled: false)", s.address)
	case errors.Is(err, nats.ErrBadSubject):
		return config("%q is no subject to publish to", s.subject)
	case errors.Is(err, os.ErrNotExist):
		return config("creds_file: %w", err)
	case errors.Is(err, jetstream.ErrNoStreamResponse), errors.Is(err, nats.ErrNoResponders):
		return fmt.Errorf("nobody on %s answers for JetStream or takes the subject %s", s.address, s.subject)
	case errors.Is(err, nats.ErrConnectionClosed), errors.Is(err, nats.ErrDisconnected), errors.Is(err, nats.ErrStaleConnection):
		return fmt.Errorf("%s closed the connection", s.address)
	case errors.Is(err, jetstream.ErrAsyncPublishTimeout), errors.Is(err, nats.ErrTimeout):
		return fmt.Errorf("%s does not answer in time", s.address)
	case errors.Is(err, nats.ErrNoServers):
		return fmt.Errorf("%s cannot be reached", s.address)
	}
	return uplink.Explain(s.address, err)
}
