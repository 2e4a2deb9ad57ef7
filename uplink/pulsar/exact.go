package pulsar

import (
	"context"
	"crypto/rand"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"

	"edgegateway/uplink"
)

// place is how far a stream is stored, and which generation of sequence ids is in use.
type place struct {
	At         uplink.FarCursor `json:"at"`
	Generation uint64           `json:"generation,omitempty"`
}

// exactSession is a session that has a topic to itself and goes on behind the topic's last message. It implements
// uplink.Resumer and uplink.Watcher.
type exactSession struct {
	*session
	config *Config
	keep   bool // the last message is read back
	notes  *notes
	anchor pulsar.Consumer // nil where the broker makes no subscriptions
	moved  time.Time       // the anchor
	stored place           // as the last message says
	far    place           // the same, or where it was moved since
}

// takeover is how long Open waits for an older instance to give way.
const takeover = 3 * time.Second

// open claims the topic, makes the only producer it has, and reads back how far the stream is stored.
func (s *exactSession) open() error {
	if err := s.partitions(); err != nil {
		return err
	}
	var data *tail
	err := s.together(
		func() (err error) { s.notes, err = s.openNotes(&s.config.claims); return s.explainOf(s.cursor, err) },
		func() (err error) { data, err = s.follow(s.topic); return err })
	if err != nil {
		return err
	}
	defer s.calls.Go(data.consumer.Close)
	err = s.together(
		func() error { return s.explainOf(s.cursor, s.notes.claimAgain()) },
		func() error { return s.find(data) })
	if err != nil {
		return err
	}
	if s.stored == (place{}) && s.notes.stored != (place{}) && s.keep {
		return uplink.Config(fmt.Errorf("topic %s has been emptied, and with its last message went what says how far the stream is stored (want retention, or no "+
			"time to live, on its namespace; to go on where the gateway's log stands, delete topic %s)", s.topic, s.notes.topic))
	}
	// The next session finds where the stream stands more quickly, and knows that there was something.
	err = s.together(
		func() error {
			return s.explainOf(s.cursor, s.notes.writeMark(mark{After: s.stored, To: s.far}, s.stored))
		},
		s.dropAnchor)
	if err == nil {
		s.notes.listen(s.env.Gateway, s.leave)
	}
	return err
}

// partitions finds out where in the two topics the stream goes.
func (s *exactSession) partitions() error {
	topic, cursor := s.topic, s.cursor
	err := s.together(
		func() (err error) { topic, err = s.partition(topic, ""); return err },
		func() (err error) { cursor, err = s.partition(cursor, ""); return s.explainOf(s.cursor, err) })
	if err == nil {
		s.topic, s.cursor = topic, cursor
	}
	return err
}

// find makes the only producer and reads back where the stream stands.
func (s *exactSession) find(data *tail) error {
	for begin := true; begin || s.far.Generation != s.generation; begin = false {
		if !begin {
			s.producer.Close()
		}
		s.generation = s.notes.stored.Generation
		if s.notes.mark != nil {
			s.generation = max(s.generation, s.notes.mark.To.Generation)
		}
		if err := s.takeOver(); err != nil {
			return err
		}
		// Only now does nobody else write.
		if err := s.readBack(data); err != nil {
			return err
		}
	}
	return nil
}

// leave gives the data's topic up. The link has ended.
func (s *exactSession) leave() {
	s.sending.Lock()
	defer s.sending.Unlock()
	s.flushing.Wait() // it ends with the link
	s.producer.Close()
}

// takeOver makes the exclusive producer, once an older instance has given way.
func (s *exactSession) takeOver() error {
	for deadline := time.Now().Add(takeover); ; {
		name := producerName(s.env, s.generation)
		if !s.keep {
			name += rand.Text() // or the broker would drop what comes again
		}
		err := s.produce(s.config, name, pulsar.ProducerAccessModeExclusive)
		if err == nil || time.Now().After(deadline) || !says(err, "ProducerFenced", "ProducerBusy") {
			return err
		}
		select {
		case <-s.ctx.Done():
			return s.failure()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// readBack reads where the stream stands.
func (s *exactSession) readBack(data *tail) error {
	if !s.keep {
		return nil
	}
	var last pulsar.Message
	err := s.together(
		func() (err error) { last, err = data.lastMessage(); return err },
		func() error { return s.explainOf(s.cursor, s.notes.catchUp(s.env.Gateway)) })
	if err != nil {
		return err
	}
	s.stored = place{}
	if last != nil {
		if s.stored, err = s.placeOf(last); err != nil {
			return err
		}
		s.newest = last.ID()
	}
	s.far = s.stored
	if m := s.notes.mark; m != nil && m.After == s.stored {
		s.far = m.To
	}
	return nil
}

// placeOf returns what a message of ours says.
func (s *exactSession) placeOf(m pulsar.Message) (p place, err error) {
	id, ours := strings.CutPrefix(m.Properties()[propertyID], s.env.Gateway+"/"+s.env.Stream+"/")
	if ours {
		p.At, err = parseCursor(id)
	}
	if generation := m.Properties()[propertyGeneration]; err == nil && generation != "" {
		p.Generation, err = strconv.ParseUint(generation, 10, 64)
	}
	if !ours || err != nil {
		return p, uplink.Config(fmt.Errorf("the last message of topic %s is not one of this gateway and stream (want a topic that nobody else writes to)", s.topic))
	}
	return p, nil
}

// parseCursor reads EPOCH/SEQUENCE.
func parseCursor(text string) (c uplink.FarCursor, err error) {
	epoch, seq, _ := strings.Cut(text, "/")
	if c.Epoch, err = strconv.ParseUint(epoch, 10, 64); err == nil {
		c.Seq, err = strconv.ParseUint(seq, 10, 64)
	}
	return c, err
}

// Far implements uplink.Resumer.
func (s *exactSession) Far() uplink.FarCursor { return s.far.At }

// Reset implements uplink.Resumer. The mark says behind which last message it holds, so the next record that is stored makes it
// void. Below what is stored, sequence ids begin a new generation: the broker would drop the old ones.
func (s *exactSession) Reset(ctx context.Context, to uplink.FarCursor) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	return s.explain(s.do(ctx, func() error {
		if err := s.drain(ctx); err != nil {
			return s.failure()
		}
		s.buried()
		if top := s.confirmed(); top > 0 {
			s.stored = place{uplink.FarCursor{Epoch: s.env.Epoch, Seq: top}, s.generation}
			s.far = s.stored
		}
		next := place{At: to, Generation: s.generation}
		if !behind(s.far.At, to) {
			next.Generation++
		}
		if err := s.notes.writeMark(mark{After: s.stored, To: next}, s.stored); err != nil {
			return s.explainOf(s.cursor, err)
		}
		s.far = next
		if next.Generation == s.generation {
			return nil
		}
		s.generation = next.Generation
		return s.rename()
	}))
}

// behind reports whether a cursor may become the other one with sequence ids that grow.
func behind(from, to uplink.FarCursor) bool {
	return from.Epoch < to.Epoch || from.Epoch == to.Epoch && from.Seq <= to.Seq
}

// rename takes a producer of another name. Nobody can come in between who has not claimed the topic, and that ends this session.
func (s *exactSession) rename() error {
	s.flushing.Wait() // nothing is in flight
	s.producer.Close()
	return s.takeOver()
}

// Alive implements uplink.Watcher. The session hears of another claim by itself.
func (s *exactSession) Alive(context.Context) error {
	if s.ctx.Err() != nil {
		return s.failure()
	}
	s.moveAnchor()
	return nil
}

// Send implements uplink.Session.
func (s *exactSession) Send(ctx context.Context, recs []uplink.Record, report func(uint64, uplink.Outcome)) error {
	s.moveAnchor()
	return s.session.Send(ctx, recs, report)
}

// Close implements uplink.Session.
func (s *exactSession) Close() {
	s.fail(errClosed)
	s.notes.wait()
	s.session.Close()
}
