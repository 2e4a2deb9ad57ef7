package pulsar

import (
	"fmt"
	"strings"

	"github.com/apache/pulsar-client-go/pulsar/log"

	"edgegateway/uplink"
)

// listener takes the library's log, for five lines of it: where a broker refuses a message or the sign-in, or says that a topic has
// ended, the library says so there and nowhere else, and the message is never called back; when it closes a batch, and how
// large a message may be. The rest the Runner says in one line.
type listener struct{ link *link }

// The lines that it listens for, and what a broker says in answer to the first command.
const (
	sendError    = "Received send error from server"
	noConnection = "Failed to establish connection with broker"
	noCommand    = "Received invalid command type"
	endOfTopic   = "REACHED_END_OF_TOPIC"
	batchClosed  = "BatchBuilder flush: messages: "
	largest      = "Got MaxMessageSize from handshake response:"
)

// refusal is what a broker said of a message, as CODE: TEXT.
type refusal string

func (r refusal) Error() string { return string(r) }

// isFinal reports whether the library leaves the producer hanging after it. After the others it closes the connection.
func (r refusal) isFinal() bool {
	return strings.HasPrefix(string(r), "NotAllowedError") || strings.HasPrefix(string(r), "TopicTerminatedError")
}

// isSize reports whether a message was too large.
func (r refusal) isSize() bool {
	return strings.HasPrefix(string(r), "NotAllowedError") && strings.Contains(string(r), "maximum message size")
}

func (l listener) SubLogger(log.Fields) log.Logger     { return l }
func (l listener) WithFields(log.Fields) log.Entry     { return l.entry() }
func (l listener) WithField(string, any) log.Entry     { return l.entry() }
func (l listener) WithError(error) log.Entry           { return l.entry() }
func (l listener) Info(...any)                         {}
func (l listener) Warn(...any)                         {}
func (l listener) Error(...any)                        {}
func (l listener) Debugf(string, ...any)               {}
func (l listener) Infof(string, ...any)                {}
func (l listener) Errorf(format string, values ...any) { l.hearError(format, values) }
func (l listener) entry() log.Entry                    { return log.DefaultNopLogger().WithError(nil) }
func (l listener) Warnf(format string, values ...any)  { l.hear(format, values) }

// Debug implements log.Logger.
func (l listener) Debug(args ...any) {
	if len(args) != 2 {
		return
	}
	switch args[0] {
	case batchClosed:
		if n, ok := args[1].(uint); ok {
			select {
			case l.link.cuts <- int(n):
			default: // nobody waits for it
			}
		}
	case largest:
		if n, ok := args[1].(int32); ok {
			if most := l.link.most.Load(); most == 0 || n < most { // it is told by each broker that it connects to
				l.link.most.Store(n)
			}
		}
	}
}

// hearError is told of a command that the library does not know, before it closes the connection.
func (l listener) hearError(format string, values []any) {
	if strings.HasPrefix(format, noCommand) && len(values) == 1 && fmt.Sprint(values[0]) == endOfTopic {
		l.link.fail(errEnded)
	}
}

func (l listener) hear(format string, values []any) {
	if strings.HasPrefix(format, noConnection) && len(values) == 1 { // the library tries again until its time is up
		l.link.fail(uplink.Config(fmt.Errorf("%s refuses the sign-in: wrong, missing or expired token, key or certificate (it says: %.200v)", l.link.address, values[0])))
		return
	}
	if !strings.HasPrefix(format, sendError) || len(values) < 2 {
		return
	}
	said := refusal(fmt.Sprintf("%v: %v", values[0], values[1]))
	l.link.mu.Lock()
	l.link.said = said
	refused := l.link.refused
	l.link.mu.Unlock()
	if said.isFinal() { // the library goes on as if nothing were, and waits for ever
		refused(said)
	}
}
