package pulsar

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/apache/pulsar-client-go/pulsar"

	"edgegateway/uplink"
)

// errRepeat is why a session of exactly_once ends at a record that the broker took for a repeat.
var errRepeat = errors.New("repeat")

// errCut is why one of effectively_once ends at a batch that the library has not sent as one message.
var errCut = errors.New("cut")

// errEnded is why a link ends whose broker has said to a consumer that nothing more will come: the library takes that for nonsense,
// and closes the connection.
var errEnded = errors.New("end of topic")

// isVague reports whether an error says no more than that something has ended, or that nothing came. It follows from what another
// error says better, or from nothing that anybody knows.
func isVague(err error) bool {
	if e, ok := errors.AsType[*explained](err); ok {
		err = e.cause
	}
	return err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) ||
		says(err, "connection closed", "connection error", "connection was closed", "unable register listener", "unable add consumer handler",
			"already been closed", "ConsumerClosed", "request timed out")
}

// explained is an error in plain words.
type explained struct{ plain, cause error }

func (e *explained) Error() string { return e.plain.Error() }
func (e *explained) Unwrap() error { return e.plain }

// isRefused reports whether a message will never be taken.
func isRefused(err error) bool {
	for _, refusal := range []error{pulsar.ErrMessageTooLarge, pulsar.ErrMetaTooLarge, pulsar.ErrInvalidMessage, pulsar.ErrFailAddToBatch} {
		if errors.Is(err, refusal) {
			return true
		}
	}
	return strings.Contains(err.Error(), "MaxMessageSize") // where it is the batch or the metadata, the error is one that has no name
}

func terminated(topic string) error {
	return uplink.Config(fmt.Errorf("topic %s is terminated and takes nothing more (want another topic)", topic))
}

// says reports whether an error has one of the broker's words. The library keeps the codes in the text only.
func says(err error, words ...string) bool {
	text := err.Error()
	for _, word := range words {
		if strings.Contains(text, word) {
			return true
		}
	}
	return false
}

// explain puts an error into plain words.
func (l *link) explain(err error) error { return l.explainOf(l.topic, err) }

// explainOf puts an error that is about a topic into plain words, once.
func (l *link) explainOf(topic string, err error) error {
	if _, ok := errors.AsType[*explained](err); ok || err == nil || uplink.IsConfig(err) || errors.Is(err, errClosed) {
		return err
	}
	return &explained{l.plain(topic, err), err}
}

// plain returns an error in plain words. The order matters: the broker wraps one word in another.
func (l *link) plain(topic string, err error) error {
	config := func(format string, args ...any) error { return uplink.Config(fmt.Errorf(format, args...)) }
	switch {
	case errors.Is(err, errRepeat):
		return fmt.Errorf("%s is still storing what an earlier session sent, or remembers more of topic %s than the topic has (was it emptied?)", l.address, topic)
	case errors.Is(err, errCut):
		return config("the library has cut a batch in two, which must not be where %s drops repeats (want the version of it that this gateway was made for)", l.address)
	case errors.Is(err, errEnded):
		return config("topic %s or %s is terminated and takes nothing more (want another topic)", l.topic, l.cursor)
	case errors.Is(err, pulsar.ErrTopicTerminated), says(err, "TopicTerminated", "terminated"):
		return terminated(topic)
	case says(err, "Exceed maximum message size"):
		return fmt.Errorf("%s refuses a message as too large (the setting maxMessageSize of the broker, the namespace or the topic)", l.address)
	case errors.Is(err, pulsar.ErrProducerFenced), says(err, "ProducerFenced"):
		return fmt.Errorf("topic %s has another producer that wants it for itself (want a topic that nobody else writes to; "+
			"another gateway with this id gives way in seconds)", topic)
	case says(err, "quota", "Quota"):
		return fmt.Errorf("topic %s is full: its backlog quota is used up (are its consumers reading? want a larger quota otherwise): %w", topic, err)
	case says(err, "ProducerBusy", "is already connected"):
		return fmt.Errorf("topic %s is in use by a producer of the same name, or one that wants it for itself (is another gateway running with this id, "+
			"or has the broker not noticed yet that an earlier connection is gone?)", topic)
	case says(err, "AuthenticationError", "Unable to authenticate", "Failed to authenticate", "invalid_client", "unauthorized_client"):
		return config("%s refuses the sign-in: wrong or expired token, key or certificate", l.address)
	case says(err, "AuthorizationError", "not authorized", "is not authorized", "Don't have permission"):
		return config("%s: the user has no rights for this (want produce and consume on topic %s, "+
			"and on %s with effectively_once and exactly_once)", l.address, l.topic, l.cursor)
	case errors.Is(err, pulsar.ErrTopicNotfound), says(err, "TopicNotFound", "Topic does not exist", "Topic not found", "topic not found"):
		return config("topic %s does not exist, and %s makes none (want it made, and its namespace, or allowAutoTopicCreation there)", topic, l.address)
	case says(err, "Policies not found", "Namespace not found", "NamespaceNotFound", "Namespace missing", "does not have any clusters configured", "Tenant"):
		return config("the namespace of topic %s does not exist on %s (want it made there)", topic, l.address)
	case says(err, "ConsumerBusy", "max consumers limit"), says(err, "max producers limit"), says(err, "producers limit"):
		return fmt.Errorf("topic %s has as many producers or readers as %s allows: %w", topic, l.address, err)
	case says(err, "NotAllowedError", "NotAllowed"):
		return config("%s does not allow this on topic %s: %w", l.address, topic, err)
	case says(err, "ServiceNotReady", "ServiceUnitNotReady", "is being unloaded", "unloaded", "not served by this instance", "currently being unloaded"):
		return fmt.Errorf("%s is moving topic %s to another broker, or is starting", l.address, topic)
	case says(err, "PersistenceError", "MetadataError"):
		return fmt.Errorf("%s cannot store: its bookies or its metadata store have failed (are they up, and is there room on their disks?): %w", l.address, err)
	case errors.Is(err, os.ErrNotExist):
		return config("a file of the sign-in is missing: %w", err)
	case says(err, "request timed out", "TimeoutError", "connection timeout"):
		return fmt.Errorf("%s does not answer in time (is it up, and does a firewall let the gateway through?)", l.address)
	case says(err, "connection closed", "connection error", "connection was closed", "ConnectError"):
		return fmt.Errorf("%s closed the connection (is it starting or stopping, and does it want TLS on this port?)", l.address)
	}
	return uplink.Explain(l.address, err)
}

func (l *link) noAnchor(name string) error {
	return fmt.Errorf("%s makes no subscriptions by itself, and exactly_once needs one that keeps the last message of topic %s (want the subscription %s made, "+
		"or allowAutoSubscriptionCreation there)", l.address, l.topic, name)
}
