package pulsar

import (
	"context"
	"errors"
	"fmt"

	"github.com/apache/pulsar-client-go/pulsar"

	"edgegateway/uplink"
)

// Probe implements uplink.Prober. Consumers of the data would see a test record, so none is written to the topic itself: a
// producer that shares it shows the rights, and one that a running session refuses shows that the session is there.
func (c *Config) Probe(ctx context.Context, env uplink.Env, step func(uplink.Step)) {
	l, err := c.connect(ctx, env)
	step(uplink.Step{Name: "connect", Note: "somebody answers", Err: err})
	if err != nil {
		return
	}
	defer l.hangUp()
	s := &session{link: l, env: env, pack: 1, aloft: map[*message]struct{}{}}
	try := func(name, note string, call func() error) bool {
		err := l.explain(l.do(ctx, call))
		if err != nil {
			note = ""
		}
		step(uplink.Step{Name: name, Note: note, Err: err})
		return err == nil
	}
	key := env.Gateway + "/" + env.Stream
	if env.Promise.Delivery == uplink.ExactlyOnce {
		key = ""
	}
	ok := try("sign in and look for topic "+l.topic, "it is there, or will be made", func() (err error) {
		s.topic, err = l.partition(s.topic, key)
		return err
	})
	note := "allowed"
	ok = ok && try("produce to "+s.topic, note, func() error {
		err := s.produce(c, "", pulsar.ProducerAccessModeShared)
		if err != nil && says(err, "ProducerFenced", "ProducerBusy") {
			return nil // a session of exactly_once has it, with the same rights
		}
		return err
	})
	if !ok || env.Promise.Delivery == "" || env.Promise.Delivery == uplink.AtLeastOnce {
		return
	}
	_ = try("write a note to "+l.cursor+" twice and read it back", "stored once: repeats are dropped", func() error { return s.probeNotes() })
}

// probeNotes writes a note that says nothing, and reads the last one.
func (s *session) probeNotes() error {
	topic, err := s.partition(s.cursor, "")
	if err != nil {
		return s.explainOf(s.cursor, err)
	}
	p, err := s.noteProducer(topic)
	if err != nil {
		return s.explainOf(s.cursor, err)
	}
	if err := s.twice(p, topic, note{Kind: noteProbe}); err != nil {
		return s.explainOf(s.cursor, err)
	}
	last, err := s.lastMessage(topic)
	if err == nil && last == nil {
		err = errors.New("the note that was written is not there")
	}
	if err != nil {
		return s.explainOf(s.cursor, fmt.Errorf("read %s back: %w", topic, err))
	}
	return nil
}
