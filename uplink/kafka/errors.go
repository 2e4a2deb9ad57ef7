package kafka

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"edgegateway/uplink"
)

// isRefused reports whether a batch was refused for what is in it. Which record it was, the broker does not say.
func isRefused(err error) bool {
	for _, refusal := range []*kerr.Error{
		kerr.MessageTooLarge, kerr.RecordListTooLarge, kerr.InvalidRecord, kerr.CorruptMessage,
		kerr.InvalidTimestamp, kerr.PolicyViolation,
	} {
		if errors.Is(err, refusal) {
			return true
		}
	}
	return false
}

// isFenced reports whether a producer with the same transactional id has come after ours.
func isFenced(err error) bool {
	return errors.Is(err, kerr.ProducerFenced) || errors.Is(err, kerr.InvalidProducerEpoch)
}

// isEnded reports whether the broker does not know a transaction as open: it was ended for its age, or there is a newer producer.
func isEnded(err error) bool {
	return isFenced(err) || errors.Is(err, kerr.InvalidTxnState) || errors.Is(err, kerr.InvalidProducerIDMapping)
}

// outcome turns the error of one record into its outcome.
func (l *link) outcome(err error) uplink.Outcome {
	switch {
	case isRefused(err):
		return uplink.Outcome{Verdict: uplink.Suspect, Err: l.explain(err)}
	case errors.Is(err, context.Canceled) && l.ctx.Err() == nil:
		return uplink.Outcome{Err: fmt.Errorf("not sent, for %s did not take records before it", l.address)}
	case errors.Is(err, kgo.ErrClientClosed), errors.Is(err, context.Canceled):
		return uplink.Outcome{Err: fmt.Errorf("%s: the session ended before the answer", l.address)}
	}
	return uplink.Outcome{Err: l.explain(err), Answered: isOfTopic(err)}
}

// isOfTopic reports whether the broker has not stored a record because of its topic; others take theirs.
func isOfTopic(err error) bool {
	for _, refusal := range []*kerr.Error{
		kerr.UnknownTopicOrPartition, kerr.InvalidTopicException, kerr.TopicAuthorizationFailed, kerr.NotEnoughReplicas,
	} {
		if errors.Is(err, refusal) {
			return true
		}
	}
	return false
}

// explain puts an error into plain words.
func (l *link) explain(err error) error { return l.explainOf(l.topic, err) }

// explainOf puts an error that is about a topic into plain words.
func (l *link) explainOf(topic string, err error) error {
	config := func(format string, args ...any) error { return uplink.Config(fmt.Errorf(format, args...)) }
	switch {
	case err == nil || uplink.IsConfig(err):
		return err
	case isFenced(err):
		return uplink.Fenced(fmt.Errorf("another gateway with the id %s writes this stream (want an id of its own for each gateway, or the other one stopped)", l.gateway))
	case errors.Is(err, kerr.TransactionalIDAuthorizationFailed):
		return config("the user may not use the transactional id %s (want the rights WRITE and DESCRIBE on it)", l.id)
	case errors.Is(err, kerr.InvalidTransactionTimeout):
		return config("%s does not allow transactions of %v (want its setting transaction.max.timeout.ms no lower)", l.address, transactionTimeout)
	case errors.Is(err, kerr.CoordinatorNotAvailable), errors.Is(err, kerr.NotCoordinator), errors.Is(err, kerr.CoordinatorLoadInProgress):
		return fmt.Errorf("%s has no coordinator for transactions yet (is it starting, or are brokers down that hold __transaction_state?)", l.address)
	case errors.Is(err, kerr.ConcurrentTransactions):
		return fmt.Errorf("%s is still ending an earlier transaction of %s", l.address, l.id)
	case errors.Is(err, kerr.TransactionAbortable), errors.Is(err, kerr.InvalidTxnState), errors.Is(err, kerr.InvalidProducerIDMapping),
		errors.Is(err, kerr.UnknownProducerID), errors.Is(err, kerr.OperationNotAttempted):
		return fmt.Errorf("%s wants the transaction begun again: %w", l.address, err)
	case errors.Is(err, kerr.UnknownTopicOrPartition), errors.Is(err, kerr.UnknownTopicID):
		return config("topic %s does not exist on %s (want it created there, or another name in topic)", topic, l.address)
	case errors.Is(err, kerr.InvalidTopicException):
		return config("%q is no name of a topic to %s", topic, l.address)
	case errors.Is(err, kerr.TopicAuthorizationFailed):
		return config("the user may not write to topic %s (want the rights WRITE and DESCRIBE on it)", topic)
	case errors.Is(err, kerr.ClusterAuthorizationFailed):
		return config("the user may not write to this cluster (want the right IDEMPOTENT_WRITE, or WRITE on topic %s)", topic)
	case errors.Is(err, kerr.SaslAuthenticationFailed):
		return config("%s refuses the sign-in: wrong user or password", l.address)
	case errors.Is(err, kerr.UnsupportedSaslMechanism), errors.Is(err, kerr.IllegalSaslState):
		return config("%s does not offer this way to sign in (want another sasl)", l.address)
	case errors.Is(err, kerr.UnsupportedCompressionType):
		return config("topic %s does not take this compression (want another compression)", topic)
	case errors.Is(err, kerr.MessageTooLarge), errors.Is(err, kerr.RecordListTooLarge):
		return fmt.Errorf("larger than topic %s takes (its setting max.message.bytes)", topic)
	case errors.Is(err, kerr.InvalidTimestamp):
		return fmt.Errorf("topic %s refuses the record's time (its settings message.timestamp.*; is the gateway's clock right?)", topic)
	case isRefused(err):
		return fmt.Errorf("topic %s refuses it for good: %w", topic, err)
	case errors.Is(err, kerr.NotEnoughReplicas), errors.Is(err, kerr.NotEnoughReplicasAfterAppend):
		return fmt.Errorf("topic %s has too few replicas in step to confirm (its setting min.insync.replicas)", topic)
	}
	if _, ok := errors.AsType[*kgo.ErrFirstReadEOF](err); ok {
		return fmt.Errorf("%s closes the connection at once (is it starting, or does it want TLS or a sign-in that is not set, or the reverse?)", l.address)
	}
	if strings.Contains(err.Error(), "invalid large response size") { // franz-go has no name for it; it is a TLS alert or the like
		return config("%s does not speak Kafka without encryption on this port (want its port without TLS, or tls.enabled: true)", l.address)
	}
	if e, ok := errors.AsType[*kerr.Error](err); ok {
		return fmt.Errorf("%s answers %s: %s", l.address, e.Message, e.Description)
	}
	return uplink.Explain(l.address, err)
}
