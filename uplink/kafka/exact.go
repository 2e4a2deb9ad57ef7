package kafka

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"edgegateway/uplink"
)

// exact is the session of delivery: exactly_once. It implements uplink.Session, uplink.Resumer and uplink.Watcher.
//
//	BeginTransaction ─▶ records … ─▶ cursor record ─▶ EndTransaction ─▶ reports
type exact struct {
	link
	admin       *kadm.Client
	options     []kgo.Opt // to dial with
	cursorTopic string
	key         string        // of the cursor record
	epoch       uint64        // of the log
	timeout     time.Duration // after which the broker aborts a transaction
	cursorAt    place         // where that key belongs
	hooks       hooks
	log         *slog.Logger
	far         uplink.FarCursor // as it was at the start

	running  sync.WaitGroup // follow, the commit, settle, and Open's question; Close waits for them
	room     chan struct{}  // to Send: less waits; holds one
	answered chan struct{}  // to follow: the client has room; holds one

	mu         sync.Mutex // guards the fields below
	pace       uplink.Pace
	waiting    []part       // not in a transaction yet
	ahead      int          // records in it
	tx         *transaction // nil: none is open
	committing bool         // it is on its way, and nothing else touches it
	ending     bool         // the broker is asked whether it has ended the last one, and nothing is sent
	unsettled  bool         // that is not known
	hurry      bool         // commit when nothing waits
	last       uplink.FarCursor
	round      uint64 // counts Sends
	timer      *time.Timer
	asked      time.Time     // when the commit of the last one was
	committed  time.Time     // when it was answered
	took       time.Duration // its commit
	single     bool          // and it had one record
	failed     error         // the session is of no more use

	broken atomic.Int64 // when a connection broke last on which something was asked, or none could be made; in Unix nanoseconds
}

// hooks are for tests: committing is called before a commit and committed between it and its reports, outside leaves the cursor out
// of the transaction and writes it after, records and timeout bound a transaction. mending is called between the steps in which what
// hangs is ended, and an error stops them; unmarked ends it in a transaction of ours.
type hooks struct {
	committing, committed func()
	outside               bool
	mending               func() error
	unmarked              bool
	records               int
	timeout               time.Duration
}

// openExact fences older sessions, makes sure that nothing of theirs can still become visible, and reads the far cursor, in
// this order.
func (c *Config) openExact(ctx context.Context, env uplink.Env, h hooks) (*exact, error) {
	s := &exact{hooks: h, log: env.Log, cursorTopic: c.CursorTopic, epoch: env.Epoch, key: strings.Join([]string{env.Gateway, env.Stream, env.Uplink}, "/")}
	s.timeout = cmp.Or(h.timeout, transactionTimeout)
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.room, s.answered = make(chan struct{}, 1), make(chan struct{}, 1)
	s.link = c.link(ctx, env)
	s.id = "gw/" + s.key
	if err := s.open(ctx, c, env); err != nil {
		s.hangUp()
		return nil, s.explain(err)
	}
	s.running.Go(s.follow)
	return s, nil
}

func (s *exact) open(ctx context.Context, c *Config, env uplink.Env) (err error) {
	if s.options, err = c.dial(env); err != nil {
		return err
	}
	topics, settings, err := s.meet(ctx, func(batch int) (*kgo.Client, error) {
		client, err := kgo.NewClient(append(append(slices.Clip(s.options), c.produce(batch)...),
			kgo.TransactionalID(s.id), kgo.TransactionTimeout(s.timeout), kgo.ProducerLinger(linger), kgo.WithHooks(s.quota, s),
			// A broker that still ends the last transaction refuses the first batch of the next, and the client sends that again when it
			// has asked for the topic: soon, and so more often until a topic that goes away shows.
			kgo.MetadataMinAge(10*time.Millisecond), kgo.UnknownTopicRetries(400),
			kgo.MaxBufferedRecords(4*clientRecords), kgo.RecordPartitioner(partitioner()))...)
		if err == nil { // the coordinator is looked for and called while the topics are: asking it anything does
			s.running.Go(func() { _, _ = kadm.NewClient(client).DescribeTransactions(ctx, s.id) })
		}
		return client, err
	}, s.cursorTopic)
	if err != nil {
		return err
	}
	s.admin = kadm.NewClient(s.client)
	if err := s.makeCursorTopic(ctx, topics[s.cursorTopic], settings[s.cursorTopic]); err != nil {
		return err
	}
	producer, _, err := s.client.ProducerID(ctx) // fences
	if err != nil {
		return err
	}
	v, err := s.look(ctx)
	if err != nil {
		return err
	}
	s.cursorAt = s.findCursor(v.ends)
	if err := s.nothingHangs(ctx, producer, v, env.Acked); err != nil {
		return err
	}
	s.far, err = s.readCursor(ctx, v)
	return err
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

// OnBrokerE2E implements kgo.HookBrokerE2E. A connection on which nothing was asked is closed by the client itself, and does not count.
func (s *exact) OnBrokerE2E(_ kgo.BrokerMetadata, _ int16, asked kgo.BrokerE2E) {
	s.noteBreak(asked.Err())
}

// OnBrokerConnect implements kgo.HookBrokerConnect.
func (s *exact) OnBrokerConnect(_ kgo.BrokerMetadata, _ time.Duration, _ net.Conn, err error) {
	s.noteBreak(err)
}

func (s *exact) noteBreak(err error) {
	if err != nil {
		s.broken.Store(time.Now().UnixNano())
	}
}

// Far implements uplink.Resumer.
func (s *exact) Far() uplink.FarCursor { return s.far }

// Reset implements uplink.Resumer.
func (s *exact) Reset(ctx context.Context, to uplink.FarCursor) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tx != nil || s.committing || len(s.waiting) > 0 {
		return errors.New("records are in flight")
	}
	if err := s.write(ctx, to); err != nil {
		return s.explain(err)
	}
	s.far = to
	return nil
}

// write moves the far cursor in a transaction of its own, which is committed in the places given, too.
func (s *exact) write(ctx context.Context, to uplink.FarCursor, places ...place) error {
	if err := s.client.BeginTransaction(); err != nil {
		return err
	}
	alone := &transaction{}
	s.put(alone, s.cursorRecord(to))
	if err := s.client.Flush(ctx); err != nil {
		return err
	}
	if _, err := alone.faults(); err != nil {
		return err
	}
	if err := s.addPlaces(ctx, places); err != nil {
		return err
	}
	return s.client.EndTransaction(ctx, kgo.TryCommit)
}

// Alive implements uplink.Watcher. The coordinator says which producer has the transactional id; asking fences nobody.
func (s *exact) Alive(ctx context.Context) error {
	id, epoch, err := s.client.ProducerID(ctx)
	if err != nil {
		return s.explain(err)
	}
	answer, err := s.admin.DescribeTransactions(ctx, s.id)
	if err == nil {
		err = answer[s.id].Err
	}
	switch now := answer[s.id]; {
	case errors.Is(err, kerr.UnsupportedVersion), errors.Is(err, kerr.TransactionalIDNotFound): // too old, or the id has expired
		return nil
	case err != nil:
		return s.explain(err)
	case now.ProducerID != id || now.ProducerEpoch > epoch:
		if again, newer, err := s.client.ProducerID(ctx); err == nil && again == now.ProducerID && newer >= now.ProducerEpoch {
			return nil // a commit of ours came in between
		}
		return s.explain(kerr.ProducerFenced)
	}
	return nil
}
