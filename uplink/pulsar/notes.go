package pulsar

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"sync"

	"github.com/apache/pulsar-client-go/pulsar"

	"edgegateway/uplink"
)

// note is a message of the cursor topic. Claims say who writes; the last one counts. Marks say that the far cursor was moved
// without a record; only who has the data's topic to itself writes them, and the last one counts. Probes say nothing.
type note struct {
	Kind     string `json:"kind"`
	Instance string `json:"instance,omitempty"`
	// From is where to look for the last mark, as a message id of the library: what is older is of no more use.
	From []byte `json:"from,omitempty"`
	// Stored is a place up to which the stream was stored when the claim was made.
	Stored place `json:"stored,omitzero"`
	After  place `json:"after,omitzero"`
	To     place `json:"to,omitzero"`
}

const (
	noteClaim = "claim"
	noteMark  = "mark"
	noteProbe = "probe"
)

// mark holds while After is what the data's topic says.
type mark struct{ After, To place }

// claims is what this instance of the gateway knows of its claims. It outlives the sessions, so that an instance which lost a
// topic to another one does not take it back at its next try: the two would fence each other for ever.
type claims struct {
	mu       sync.Mutex         // guards the fields below
	instance string             // its name in claims; a new one with each start
	held     map[string]bool    // topics it has claimed
	lost     map[string]bool    // those that another instance has claimed after it, whatever became of their notes
	probed   map[string]bool    // topics that drop repeats
	narrows  map[string]*narrow // what topics have refused
}

func (c *claims) of(topic string) (instance string, held, lost bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held == nil {
		c.instance, c.held, c.lost = rand.Text(), map[string]bool{}, map[string]bool{}
	}
	return c.instance, c.held[topic], c.lost[topic]
}

func (c *claims) lose(topic string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lost[topic] = true
}

func (c *claims) hold(topic string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held[topic] = true
}

func (c *claims) wasProbed(topic string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.probed[topic]
}

func (c *claims) hasProbed(topic string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.probed == nil {
		c.probed = map[string]bool{}
	}
	c.probed[topic] = true
}

func (c *claims) narrow(topic string) *narrow {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.narrows[topic]
	if n == nil {
		n = &narrow{}
		if c.narrows == nil {
			c.narrows = map[string]*narrow{}
		}
		c.narrows[topic] = n
	}
	return n
}

// notes is the cursor topic of one session.
type notes struct {
	*link
	topic    string
	claims   *claims
	instance string
	producer pulsar.Producer
	tail     *tail // of what is written from the beginning of Open on
	hearing  sync.WaitGroup
	claim    note
	mine     bool // its own claim was heard; used by Open, then by who listens
	state
}

// state is what the notes say.
type state struct {
	claimed string // by this instance
	mark    *mark
	from    []byte // where the last mark stands, or where to look for it
	stored  place
}

// openNotes claims the topic and hears from then on of other claims.
func (s *exactSession) openNotes(c *claims) (*notes, error) {
	topic := s.cursor
	instance, held, lost := c.of(topic)
	n := &notes{link: s.link, topic: topic, claims: c, instance: instance}
	err := s.together(
		func() (err error) {
			if n.tail, err = s.follow(topic); err == nil {
				n.state, err = n.read()
			}
			return err
		},
		func() (err error) { n.producer, err = s.noteProducer(topic); return err })
	if err != nil {
		return nil, err
	}
	if lost || held && n.claimed != instance && n.claimed != "" { // without any claim the notes were deleted, or not retained
		return nil, n.fenced(s.env.Gateway)
	}
	n.claim = note{Kind: noteClaim, Instance: instance, From: n.from, Stored: n.stored}
	if _, err := s.write(n.producer, n.claim, nil); err != nil {
		return nil, err
	}
	c.hold(topic)
	return n, nil
}

// claimAgain sees whether the broker drops repeats.
func (n *notes) claimAgain() error { return n.again(n.producer, n.topic, n.claim) }

// catchUp takes over what was written since.
func (n *notes) catchUp(gateway string) error {
	return n.tail.through(func(m pulsar.Message) error {
		heard, err := n.heard(m, gateway)
		if err == nil && heard.Kind == noteMark && heard.Instance != n.instance {
			n.state = heard.state(m.ID())
		}
		return err
	})
}

// listen ends the link when another instance claims the topic after this one, and leaves the data's topic to it at once: a Runner
// that has nothing to send hears of it later.
func (n *notes) listen(gateway string, leave func()) {
	n.hearing.Go(func() {
		for {
			m, err := n.tail.next(n.ctx)
			if err == nil {
				_, err = n.heard(m, gateway)
			}
			if err != nil {
				n.fail(err) // nothing new where the link has ended
				n.links.Go(leave)
				return
			}
		}
	})
}

// heard reads a note that came after Open had begun. A claim that follows its own is another instance's.
func (n *notes) heard(m pulsar.Message, gateway string) (heard note, err error) {
	if err := json.Unmarshal(m.Payload(), &heard); err != nil {
		return heard, n.foreign(err)
	}
	switch {
	case heard.Kind != noteClaim:
	case heard.Instance == n.instance:
		n.mine = true
	case n.mine:
		return heard, n.fenced(gateway)
	}
	return heard, nil
}

// wait returns when nobody listens any more. The link has ended.
func (n *notes) wait() {
	if n != nil {
		n.hearing.Wait()
	}
}

func (n *notes) fenced(gateway string) error {
	n.claims.lose(n.topic)
	return uplink.Config(fmt.Errorf("another gateway with the id %s writes this stream: it has claimed topic %s after this one, which sends no more until it is started again "+
		"(want an id of its own for each gateway)", gateway, n.topic))
}

func (l *link) noteProducer(topic string) (pulsar.Producer, error) {
	never := uint(0)
	return l.client.CreateProducer(pulsar.ProducerOptions{
		Topic: topic, SendTimeout: -1, DisableBatching: true, MaxReconnectToBroker: &never, BackOffPolicyFunc: l.lost,
	})
}

// twice writes a note two times under one sequence id, and wants the broker to store it once.
func (l *link) twice(p pulsar.Producer, topic string, n note) error {
	if _, err := l.write(p, n, nil); err != nil {
		return err
	}
	return l.again(p, topic, n)
}

// again writes the note that was written last under the same sequence id.
func (l *link) again(p pulsar.Producer, topic string, n note) error {
	seq := p.LastSequenceID()
	id, err := l.write(p, n, &seq)
	if err == nil && id.LedgerID() >= 0 {
		err = l.storesRepeats(topic)
	}
	return err
}

func (l *link) storesRepeats(topic string) error {
	return uplink.Config(fmt.Errorf("%s stores a message that comes again a second time: it has just done so in topic %s "+
		"(want deduplication enabled for the namespace, or brokerDeduplicationEnabled=true on the brokers; or delivery: at_least_once)", l.address, topic))
}

// write writes a note and returns where it stands.
func (l *link) write(p pulsar.Producer, n note, seq *int64) (pulsar.MessageID, error) {
	text, err := json.Marshal(n)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(l.ctx, operationTimeout)
	defer cancel()
	id, err := p.Send(ctx, &pulsar.ProducerMessage{Payload: text, SequenceID: seq})
	if err != nil && l.ctx.Err() != nil {
		return nil, l.failure()
	}
	return id, err
}

// probeRepeats sees, once in the gateway's life, whether the broker drops repeats.
func (c *Config) probeRepeats(s *session) error {
	topic, err := s.partition(s.cursor, "")
	if err != nil {
		return s.explainOf(s.cursor, err)
	}
	if c.claims.wasProbed(topic) {
		return nil
	}
	p, err := s.noteProducer(topic)
	if err != nil {
		return s.explainOf(s.cursor, err)
	}
	defer p.Close()
	if err := s.twice(p, topic, note{Kind: noteProbe}); err != nil {
		return s.explainOf(s.cursor, err)
	}
	c.claims.hasProbed(topic)
	return nil
}

// read returns what the notes say, from the last mark that the last note knows of.
func (n *notes) read() (state, error) {
	last, err := n.tail.lastMessage()
	if err != nil || last == nil {
		return state{}, err
	}
	var newest note
	if err := json.Unmarshal(last.Payload(), &newest); err != nil {
		return state{}, n.foreign(err)
	}
	if newest.Kind == noteMark {
		return newest.state(last.ID()), nil
	}
	start := pulsar.EarliestMessageID()
	if newest.From != nil {
		if start, err = pulsar.DeserializeMessageID(newest.From); err != nil {
			return state{}, n.foreign(err)
		}
	}
	return n.readFrom(start)
}

// state returns what a mark says.
func (m note) state(id pulsar.MessageID) state {
	return state{claimed: m.Instance, mark: &mark{m.After, m.To}, from: id.Serialize(), stored: m.Stored}
}

func (n *notes) readFrom(start pulsar.MessageID) (now state, err error) {
	err = n.tail.from(start, func(m pulsar.Message) error {
		var read note
		if err := json.Unmarshal(m.Payload(), &read); err != nil {
			return n.foreign(err)
		}
		switch read.Kind {
		case noteClaim:
			now.claimed, now.stored = read.Instance, read.Stored
		case noteMark:
			now = read.state(m.ID())
		}
		return nil
	})
	return now, err
}

func (n *notes) foreign(err error) error {
	return uplink.Config(fmt.Errorf("topic %s holds what this gateway did not write (want a cursor_topic that nobody else writes to): %w", n.topic, err))
}

// writeMark moves the far cursor without a record.
func (n *notes) writeMark(m mark, stored place) error {
	id, err := n.write(n.producer, note{Kind: noteMark, Instance: n.instance, Stored: stored, After: m.After, To: m.To}, nil)
	if err != nil {
		return err
	}
	n.from, n.mark, n.stored = id.Serialize(), &m, stored
	return nil
}
