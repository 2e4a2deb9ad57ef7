package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"edgegateway/uplink"
)

// exact is the session of delivery: exactly_once. It implements uplink.Session and uplink.Resumer.
//
//	BeginTransaction ─▶ records … ─▶ cursor record ─▶ EndTransaction ─▶ reports
//
// All fields below far are guarded by session.sending.
type exact struct {
	session
	admin       *kadm.Client
	options     []kgo.Opt // to dial with
	cursorTopic string
	key         string // of the cursor record
	cursorAt    place  // where that key belongs
	hooks       hooks
	log         *slog.Logger
	far         uplink.FarCursor // as it was at the start

	tx        *transaction // nil: none is open
	last      uplink.FarCursor
	round     uint64 // counts Sends
	timer     *time.Timer
	committed time.Time // when the last one was
	single    bool      // and it had one record
	failed    error     // the session is of no more use
}

// hooks are for tests: committed is called between a commit and its reports, outside leaves the cursor out of the
// transaction and writes it after.
type hooks struct {
	committed func()
	outside   bool
	logger    kgo.Logger
}

// openExact fences older sessions, makes sure that nothing of theirs can still become visible, and reads the far cursor, in
// this order.
func (c *Config) openExact(ctx context.Context, env uplink.Env, h hooks) (_ *exact, err error) {
	s := &exact{hooks: h, log: env.Log, cursorTopic: c.CursorTopic, key: strings.Join([]string{env.Gateway, env.Stream, env.Uplink}, "/")}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.topic, s.address = uplink.Expand(c.Topic, env), strings.Join(c.Brokers, ", ")
	s.gateway, s.id = env.Gateway, "gw/"+s.key
	s.ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	defer func() {
		if err != nil {
			if s.client != nil {
				s.client.Close()
			}
			s.cancel()
			err = s.explain(err)
		}
	}()
	if s.options, err = c.dial(env); err != nil {
		return nil, err
	}
	if err := s.look(ctx); err != nil {
		return nil, err
	}
	if s.client, err = kgo.NewClient(append(append(slices.Clip(s.options), c.produce(s.takes)...),
		kgo.TransactionalID(s.id), kgo.TransactionTimeout(transactionTimeout), kgo.ProducerLinger(2*time.Millisecond),
		kgo.RecordPartitioner(partitioner()), kgo.WithLogger(h.logger))...); err != nil {
		return nil, uplink.Config(fmt.Errorf("settings: %w", err))
	}
	s.admin = kadm.NewClient(s.client)
	producer, _, err := s.client.ProducerID(ctx) // fences
	if err != nil {
		return nil, err
	}
	ends, err := s.ends(ctx)
	if err != nil {
		return nil, err
	}
	s.cursorAt = s.findCursor(ends)
	if err := s.nothingHangs(ctx, producer, ends); err != nil {
		return nil, err
	}
	s.far, err = s.readCursor(ctx, ends)
	return s, err
}

// look asks the broker about the topics with a client of its own: how large a batch may be, the producing one is told when
// it is made.
func (s *exact) look(ctx context.Context) error {
	client, err := kgo.NewClient(s.options...)
	if err != nil {
		return uplink.Config(fmt.Errorf("settings: %w", err))
	}
	defer client.Close()
	s.client = client
	defer func() { s.client = nil }()
	if err := s.greet(ctx); err != nil {
		return err
	}
	s.takes = max(s.takes, 1<<10) // the least that the client allows
	return s.makeCursorTopic(ctx, kadm.NewClient(client))
}

// byKey is the partition of a record that goes where its key says.
const byKey = -1

// partitioner is the one of at_least_once, but for records that name their partition.
func partitioner() kgo.Partitioner {
	return kgo.BasicConsistentPartitioner(func(topic string) func(*kgo.Record, int) int {
		keyed := kgo.StickyKeyPartitioner(nil).ForTopic(topic)
		return func(r *kgo.Record, n int) int {
			if r.Partition != byKey {
				return int(r.Partition)
			}
			return keyed.Partition(r, n)
		}
	})
}

// Far implements uplink.Resumer.
func (s *exact) Far() uplink.FarCursor { return s.far }

// Reset implements uplink.Resumer.
func (s *exact) Reset(ctx context.Context, to uplink.FarCursor) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	if s.tx != nil {
		return errors.New("records are in flight")
	}
	if err := s.write(ctx, to); err != nil {
		return s.explain(err)
	}
	s.far = to
	return nil
}

// write moves the far cursor in a transaction of its own.
func (s *exact) write(ctx context.Context, to uplink.FarCursor) error {
	if err := s.client.BeginTransaction(); err != nil {
		return err
	}
	alone := &transaction{}
	s.put(s.cursorRecord(to), alone.promise(0))
	if err := s.client.Flush(ctx); err != nil {
		return err
	}
	if _, err := alone.faults(); err != nil {
		return err
	}
	return s.client.EndTransaction(ctx, kgo.TryCommit)
}
