package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"edgegateway/uplink"
)

// probe is what the steps of Probe share.
type probe struct {
	link
	cursors string
	exact   bool
	admin   *kadm.Client
}

// Probe implements uplink.Prober. No test record is written: whoever reads the topic would get it. Instead the brokers are asked
// what the user may do. No transaction is begun either: that would fence the session that runs.
func (c *Config) Probe(ctx context.Context, env uplink.Env, step func(uplink.Step)) {
	p := &probe{link: c.link(ctx, env), cursors: c.CursorTopic, exact: env.Promise.Delivery == uplink.ExactlyOnce}
	defer p.cancel()
	p.id = "gw/" + strings.Join([]string{env.Gateway, env.Stream, env.Uplink}, "/")
	options, err := c.dial(env)
	if err == nil {
		p.client, err = kgo.NewClient(append(options, kgo.RequestRetries(0))...)
	}
	if err != nil {
		step(uplink.Step{Name: "read the settings", Err: p.explain(err)})
		return
	}
	defer p.client.Close()
	p.admin = kadm.NewClient(p.client)
	tries := []func(context.Context) uplink.Step{c.probeBrokers(p)}
	if p.topic != "" {
		tries = append(tries, p.probeTopic, p.probeRights)
	}
	if p.exact {
		tries = append(tries, p.probeTransactions, p.probeCursors)
	}
	for _, try := range tries {
		s := try(ctx)
		s.Err = p.explain(s.Err)
		if step(s); s.Err != nil {
			return
		}
	}
	if p.topic == "" {
		step(uplink.Step{Name: "topics", Note: "each message names its own; they are looked for when the first record for one comes"})
	}
}

func (c *Config) probeBrokers(p *probe) func(context.Context) uplink.Step {
	return func(ctx context.Context) uplink.Step {
		s := uplink.Step{Name: "connect to " + p.address}
		switch {
		case c.SASL == "oauthbearer":
			s.Name += " and sign in with the token"
		case c.SASL != "":
			s.Name += " and sign in as " + c.User
		}
		if s.Err = p.client.Ping(ctx); s.Err != nil {
			return s
		}
		brokers, err := p.admin.ListBrokers(ctx)
		if err != nil {
			s.Err = err
			return s
		}
		version := "of a version it does not tell"
		if told, err := p.admin.ApiVersions(ctx); err == nil {
			for _, v := range told {
				version = "Kafka " + v.VersionGuess()
			}
		}
		s.Note = fmt.Sprintf("%d brokers, %s", len(brokers), version)
		return s
	}
}

func (p *probe) probeTopic(ctx context.Context) uplink.Step {
	s := uplink.Step{Name: "topic " + p.topic}
	terms, err := p.learn(ctx, p.topic)
	if err != nil {
		s.Err = err
		return s
	}
	topics, err := p.admin.ListTopics(ctx, p.topic)
	if err != nil {
		s.Err = err
		return s
	}
	replicas, inStep := 1<<30, 1<<30
	for _, part := range topics[p.topic].Partitions {
		replicas, inStep = min(replicas, len(part.Replicas)), min(inStep, len(part.ISR))
	}
	s.Note = fmt.Sprintf("%d partitions, %d replicas, of which %d are in step; takes batches up to %d bytes", len(topics[p.topic].Partitions), replicas, inStep, terms.bytes)
	if terms.keeps > 0 {
		s.Note += fmt.Sprintf("; keeps records for %v", terms.keeps.Round(time.Second))
	}
	if replicas < 2 {
		s.Note += "; the loss of its broker would lose confirmed records"
	}
	return s
}

// may returns an error where the user lacks a right on a topic.
func (p *probe) may(ctx context.Context, topic string, wanted ...kadm.ACLOperation) error {
	topics, err := p.admin.ListTopics(kadm.WithAuthorizedOps(ctx), topic)
	if err != nil {
		return err
	}
	if err := topics[topic].Err; err != nil {
		return p.explainOf(topic, err)
	}
	granted := topics[topic].AuthorizedOperations
	if len(granted) == 0 { // a broker that does not tell
		return nil
	}
	var missing []string
	for _, w := range wanted {
		if !slices.Contains(granted, w) {
			missing = append(missing, strings.ToUpper(w.String()))
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return uplink.Config(fmt.Errorf("the user may not do what it takes with topic %s (want the rights %s on it)", topic, strings.Join(missing, ", ")))
}

// probeRights wants the right to read, too, where a session has to look at what a crash of the broker left open.
func (p *probe) probeRights(ctx context.Context) uplink.Step {
	wanted := []kadm.ACLOperation{kadm.OpWrite, kadm.OpDescribe}
	if p.exact {
		wanted = append(wanted, kadm.OpRead)
	}
	return uplink.Step{Name: "rights to write to topic " + p.topic, Err: p.may(ctx, p.topic, wanted...)}
}

func (p *probe) probeTransactions(ctx context.Context) uplink.Step {
	s := uplink.Step{Name: "transactional id " + p.id}
	answer, err := p.admin.DescribeTransactions(ctx, p.id)
	if err == nil {
		err = answer[p.id].Err
	}
	if denied := p.mayWrite(ctx); denied != nil && (err == nil || errors.Is(err, kerr.TransactionalIDNotFound) || errors.Is(err, kerr.UnsupportedVersion)) {
		s.Err = denied
		return s
	}
	switch now := answer[p.id]; {
	case errors.Is(err, kerr.TransactionalIDNotFound):
		s.Note = "not used yet"
	case errors.Is(err, kerr.UnsupportedVersion):
		s.Note = "the broker is too old to be asked"
	case err != nil:
		s.Err = err
	default:
		s.Note = fmt.Sprintf("in use, its last transaction is in the state %s", now.State)
	}
	return s
}

// mayWrite returns an error where the user may not write with the transactional id. It has the coordinator abort a transaction of a
// producer that does not exist: it looks at the rights first, and then finds nothing to abort.
func (p *probe) mayWrite(ctx context.Context) error {
	abort := kmsg.NewPtrEndTxnRequest()
	abort.TransactionalID, abort.ProducerID = p.id, 1<<62
	answer, err := abort.RequestWith(ctx, p.client)
	if err == nil {
		err = kerr.ErrorForCode(answer.ErrorCode)
	}
	if errors.Is(err, kerr.TransactionalIDAuthorizationFailed) {
		return err
	}
	return nil // the session will tell of anything else
}

func (p *probe) probeCursors(ctx context.Context) uplink.Step {
	s := uplink.Step{Name: "cursor topic " + p.cursors}
	topics, settings, err := p.ask(ctx, p.cursors)
	switch {
	case err != nil:
		s.Err = err
	case errors.Is(topics[p.cursors].Err, kerr.UnknownTopicOrPartition):
		s.Note = "it is made when the first session begins"
	case topics[p.cursors].Err != nil:
		s.Err = p.explainOf(p.cursors, topics[p.cursors].Err)
	default:
		if s.Err = cursorsStay(p.cursors, settings[p.cursors]); s.Err == nil {
			s.Err = p.may(ctx, p.cursors, kadm.OpRead, kadm.OpWrite, kadm.OpDescribe)
		}
	}
	return s
}
