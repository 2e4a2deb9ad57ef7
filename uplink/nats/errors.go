package nats

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"edgegateway/uplink"
)

// Error codes of the server that the library has no name for.
const (
	codeAccountLimits jetstream.ErrorCode = 10002
	codeNoResources   jetstream.ErrorCode = 10023
	codeNoMemory      jetstream.ErrorCode = 10028
	codeWrongLastID   jetstream.ErrorCode = 10070 // the last message has another id than the one that was wanted
	codeNoStorage     jetstream.ErrorCode = 10047
	codeWrongStream   jetstream.ErrorCode = 10060
	codeStoreFailed   jetstream.ErrorCode = 10077
	codeSealed        jetstream.ErrorCode = 10109
	codeRollupFailed  jetstream.ErrorCode = 10111
	codeNotAtomic     jetstream.ErrorCode = 10174
	codeIncomplete    jetstream.ErrorCode = 10176
	codeBatchTooLarge jetstream.ErrorCode = 10199
	codeManyBatches   jetstream.ErrorCode = 10210
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
func (l *link) outcome(p publication, err error) uplink.Outcome {
	if apiCode(err) == jetstream.JSErrCodeStreamMessageExceedsMaximum {
		return uplink.Outcome{Verdict: uplink.Drop, Err: fmt.Errorf(
			"the record has %d bytes, more than the stream %s takes (its setting max_msg_size)", p.size, l.stream)}
	}
	why := l.explain(err)
	return uplink.Outcome{Verdict: uplink.Retry, Err: why, Answered: apiCode(err) != 0 && !uplink.IsConfig(why)}
}

// explain puts an error into plain words.
func (l *link) explain(err error) error {
	config := func(format string, args ...any) error { return uplink.Config(fmt.Errorf(format, args...)) }
	switch apiCode(err) {
	case codeWrongStream:
		return l.goesElsewhere()
	case jetstream.JSErrCodeStreamNotFound:
		return fmt.Errorf("stream %s is gone from %s", l.stream, l.address)
	case codeStoreFailed:
		return fmt.Errorf("stream %s takes no more: %w (is it full?)", l.stream, err)
	case jetstream.JSErrCodeJetStreamNotEnabled, jetstream.JSErrCodeJetStreamNotEnabledForAccount:
		return config("%s has no JetStream for this account (want it enabled on the server)", l.address)
	case codeAccountLimits:
		return fmt.Errorf("the account on %s has no room left for messages: %w", l.address, err)
	case codeNoResources, codeNoMemory, codeNoStorage:
		return fmt.Errorf("%s has no room left for messages: %w", l.address, err)
	case codeSealed:
		return config("stream %s is sealed and takes nothing more (want another stream)", l.stream)
	case jetstream.JSErrCodeStreamWrongLastSequence, jetstream.JSErrCodeStreamWrongLastSequenceConstant:
		return l.moved(err)
	case codeRollupFailed:
		return config("stream %s cannot replace the cursor %s any more (have its settings changed?): %w", l.stream, l.cursor, err)
	case codeNotAtomic:
		return config("stream %s takes no atomic batches any more (want allow_atomic: true in its settings)", l.stream)
	case codeBatchTooLarge:
		return config("%s takes no batches of so many records (want a smaller batch, or a larger jetstream.limits.batch.max_msgs there): %w", l.address, err)
	case codeIncomplete:
		return fmt.Errorf("stream %s has given up a batch before its end (a new leader, a limit of the account, or a line that stood still)", l.stream)
	case codeManyBatches:
		return fmt.Errorf("stream %s has too many batches open at once: %w", l.stream, err)
	default: // no answer of JetStream, or one whose own text says enough
	}
	switch {
	case err == nil || uplink.IsConfig(err):
		return err
	case errors.Is(err, nats.ErrAuthorization):
		return config("%s refuses the sign-in: wrong user, password, token or credentials", l.address)
	case strings.Contains(strings.ToLower(err.Error()), "authentication timeout"): // the library has no name for it
		return config("%s gave the sign-in up before it arrived (want a longer timeout in its authorization settings, 2 s by default, if the line is "+
			"as slow as that)", l.address)
	case errors.Is(err, nats.ErrAuthExpired), errors.Is(err, nats.ErrAccountAuthExpired):
		return config("%s: the credentials have expired", l.address)
	case errors.Is(err, nats.ErrAuthRevoked):
		return config("%s: the credentials were revoked", l.address)
	case errors.Is(err, nats.ErrPermissionViolation):
		return config("the account may not do this (want the right to publish to %s and to $JS.API.>): %w", l.subject, err)
	case errors.Is(err, nats.ErrNoInfoReceived):
		return config("%s is no NATS server (want the address and port of one)", l.address)
	case errors.Is(err, nats.ErrSecureConnRequired):
		return config("%s wants TLS (want tls.enabled: true)", l.address)
	case errors.Is(err, nats.ErrSecureConnWanted):
		return config("%s does not speak TLS on this port (want its TLS port, or tls.enabled: false)", l.address)
	case errors.Is(err, nats.ErrBadSubject):
		return config("%q is no subject to publish to", l.subject)
	case errors.Is(err, os.ErrNotExist):
		return config("creds_file: %w", err)
	case errors.Is(err, jetstream.ErrNoStreamResponse), errors.Is(err, nats.ErrNoResponders):
		return fmt.Errorf("nobody on %s answers for JetStream or takes the subject %s", l.address, l.subject)
	case errors.Is(err, nats.ErrConnectionClosed), errors.Is(err, nats.ErrDisconnected), errors.Is(err, nats.ErrStaleConnection):
		return fmt.Errorf("%s closed the connection", l.address)
	case errors.Is(err, nats.ErrTimeout):
		return fmt.Errorf("%s does not answer in time", l.address)
	case errors.Is(err, nats.ErrNoServers):
		return fmt.Errorf("%s cannot be reached", l.address)
	}
	return uplink.Explain(l.address, err)
}

// goesElsewhere says that the subject is not this stream's any more.
func (l *link) goesElsewhere() error {
	return uplink.Config(fmt.Errorf("subject %s does not go to the stream %s any more (have its subjects changed?)", l.subject, l.stream))
}

// moved says what the server answers where the cursor is not the one that is to be replaced. That another instance has moved it, only its
// holder tells: a server that has just got the lead of the stream says the same as long as it does not know better.
func (l *link) moved(err error) error {
	if e, ok := errors.AsType[jetstream.JetStreamError](err); ok && e.APIError().Description == "wrong last sequence: 0" {
		return fmt.Errorf("the cursor %s is gone from the stream %s (has it been purged, or has it expired?)", l.cursor, l.stream)
	}
	return fmt.Errorf("%s finds the cursor %s moved (has the stream another leader?): %w", l.address, l.cursor, err)
}

// fenced says who has moved the cursor.
func (l *link) fenced() error {
	return uplink.Fenced(fmt.Errorf("another gateway with the id %s writes this stream: it has moved the cursor %s after this one, which sends no more "+
		"until it is started again (want one gateway for each id, and one uplink for each cursor_subject)", l.gateway, l.cursor))
}
