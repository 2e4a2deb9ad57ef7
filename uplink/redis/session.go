package redis

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"edgegateway/uplink"
)

// Limits of one run of the script. Redis serves nobody else meanwhile.
const (
	scriptRecords = 500
	scriptBytes   = 1 << 20
	replyTimeout  = 10 * time.Second
	waitTimeout   = 5 * time.Second // for the disk and the replicas, within replyTimeout
	window        = 2               // scripts on their way: the server works on one while the line carries the other
	waitWindow    = 4               // the same where each waits for a disk, which may be written once a second
	waitUsual     = 1500 * time.Millisecond
)

//go:embed far.lua
var farText string

//go:embed append.lua
var appendText string

//go:embed latest.lua
var latestText string

//go:embed claim.lua
var claimText string

//go:embed reset.lua
var resetText string

type scripts struct{ append, latest, claim, reset, known script }

func newScripts(appending string) scripts {
	if appending == "" {
		appending = appendText
	}
	return scripts{
		append: newScript(farText + appending), latest: newScript(latestText),
		claim: newScript(farText + claimText), reset: newScript(farText + resetText),
		known: newScript(farText + knownText),
	}
}

// session implements uplink.Session. The scripts of a stream or list keep the order between themselves: each names the cursor
// that it expects, so that of two on their way the second stores nothing unless the first has stored all.
type session struct {
	options      *redis.Options // but for the address
	nodes        []string       // of a cluster to ask first
	sentinels    *sentinels     // or nil
	client       *redis.Client
	many         *redis.ClusterClient // where the keys are at several nodes; or nil
	address      string               // where client leads
	asking       bool                 // the slot is on its way to there
	scripts      scripts
	gateway      string
	encrypted    bool
	as           string
	apart        bool // a hash that takes no record holds no others
	key, cursor  string
	fence        string // empty without exactly_once
	epoch        uint64
	maxLen       string
	waitAOF      bool
	waitReplicas int
	maxValue     int64           // longest string the server takes
	ctx          context.Context //nolint:containedctx // ends with Close, and every Send with it
	cancel       context.CancelFunc
	running      sync.WaitGroup
	room         chan struct{} // an element for each chunk on its way; full after Close

	mu          sync.Mutex // guards the fields below
	failed      error      // the session is of no more use
	pace        uplink.Pace
	tail        chan struct{} // closed when the chunk that was launched last is settled; nil before the first
	still       bool          // that one leaves the cursor where it is
	base        string        // of entry ids: @EPOCH-SEQ where an operator has set the cursor back, or empty
	token, last string        // the fence's value, and the cursor that the next chunk finds; empty where they are not known
}

// chunk is what one run of a script stores.
type chunk struct {
	recs      []uplink.Record
	bytes     int
	cmd       *command
	report    func(uint64, uplink.Outcome)
	before    chan struct{} // closed when the chunk before is settled; nil where there is none
	settled   chan struct{}
	expected  string // cursor; empty where any will do
	overtakes bool   // the chunk before was on its way when this one was launched
}

// Send implements uplink.Session. It returns when the last chunk is on its way, so that the next records are read and encoded
// meanwhile.
func (s *session) Send(ctx context.Context, recs []uplink.Record, report func(uint64, uplink.Outcome)) error {
	for len(recs) > 0 {
		if err := s.tooLarge(&recs[0]); err != nil {
			report(recs[0].ID.Seq, uplink.Outcome{Verdict: uplink.Drop, Err: err})
			if s.fence != "" {
				return nil // nothing behind it may go: the cursor would pass it
			}
			recs = recs[1:]
			continue
		}
		n, bytes := s.chunk(recs)
		c := &chunk{recs: recs[:n], bytes: bytes, report: report, settled: make(chan struct{})}
		if s.as != asLatest {
			c.cmd = s.appending(c.recs)
		}
		recs = recs[n:]
		if err := s.launch(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// launch sends a chunk when there is room for it.
func (s *session) launch(ctx context.Context, c *chunk) error {
	select {
	case s.room <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
	s.mu.Lock()
	// Before the first answer nobody knows where the key stands. One that is behind a chunk of repeats finds the same cursor whether that
	// one has come or not, and would be counted first.
	for s.failed == nil && (s.last == "" || s.still) && s.tail != nil && !isClosed(s.tail) {
		before := s.tail
		s.mu.Unlock()
		<-before
		s.mu.Lock()
	}
	defer s.mu.Unlock()
	if s.failed != nil {
		<-s.room
		return s.failed
	}
	c.before, s.tail = s.tail, c.settled
	if s.as != asLatest {
		c.overtakes = c.before != nil && !isClosed(c.before)
		c.expected = s.last
		s.last = s.after(s.last, c.recs[len(c.recs)-1].ID.Seq)
		s.still = s.last == c.expected
	}
	s.running.Go(func() {
		defer func() { <-s.room }()
		defer close(c.settled)
		s.settle(c)
	})
	return nil
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// settle has a script store a chunk and reports what comes of each record. What ends the session is in failed afterwards.
func (s *session) settle(c *chunk) {
	begun := time.Now()
	for recs := c.recs; len(recs) > 0; {
		stored, repeats, err := s.store(c, recs)
		for i, rec := range recs[:stored] {
			c.report(rec.ID.Seq, uplink.Outcome{Verdict: uplink.Ack, Repeat: i < repeats})
		}
		recs = recs[stored:]
		s.mu.Lock()
		if err == nil {
			took := time.Since(begun)
			if s.waits() {
				took = max(0, took-waitUsual) // that is not for the line
			}
			s.pace.Took(c.bytes, took)
			s.mu.Unlock()
			return
		}
		if c.expected != "" {
			s.last = c.expected // for the text
		}
		explained := s.explain(err)
		said, answered := errors.AsType[refused](err)
		answered = answered && s.failed == nil
		if answered && s.apart && strings.Contains(string(said), "WRONGTYPE") {
			s.mu.Unlock()
			c.report(recs[0].ID.Seq, uplink.Outcome{Err: explained, Answered: true})
			recs = recs[1:] // the hash of one topic is somebody else's: the others go on
			continue
		}
		if s.failed == nil {
			s.failed = explained
		}
		explained = s.failed
		s.mu.Unlock()
		for i, rec := range recs {
			c.report(rec.ID.Seq, uplink.Outcome{Err: explained, Answered: i == 0 && answered && !uplink.IsConfig(explained)})
		}
		return
	}
}

// store runs the script for recs, the last ones of a chunk, and returns how many of them are stored, counted from the first, and how
// many of those were before.
func (s *session) store(c *chunk, recs []uplink.Record) (stored, repeats int, err error) {
	if s.as == asLatest {
		if s.many != nil {
			stored, err := s.spread(recs)
			return stored, 0, err
		}
		reply, err := s.run(s.ctx, s.newest(recs))
		return s.outcome(reply, err, len(recs))
	}
	c.cmd.argv()[argExpected] = c.expected
	reply, err := s.run(s.ctx, c.cmd)
	if c.before != nil {
		<-c.before // one after the other from here on
	}
	if c.overtakes && err == nil && strings.HasPrefix(reply[1].(string), "ELSEWHERE ") && s.alright() {
		// The two have gone by connections of their own, and this one was the faster: the one before has stored its records since.
		reply, err = s.run(s.ctx, c.cmd)
	}
	if err == nil && c.expected == "" {
		s.mu.Lock()
		s.last = reply[2].(string)
		s.mu.Unlock()
	}
	return s.outcome(reply, err, len(recs))
}

// waits reports whether each script is followed by a wait.
func (s *session) waits() bool { return s.waitAOF || s.waitReplicas > 0 }

func (s *session) alright() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed == nil
}

// tooLarge says why the server refuses a record for good; nil where it does not.
func (s *session) tooLarge(rec *uplink.Record) error {
	if int64(len(rec.JSON)) <= s.maxValue {
		return nil
	}
	return fmt.Errorf("the record has %d bytes, the server takes %d (its setting proto-max-bulk-len)", len(rec.JSON), s.maxValue)
}

// chunk returns how many records go into the next run of a script, and their bytes: one at the least, and no further than one
// that is too large or does not follow the one before.
func (s *session) chunk(recs []uplink.Record) (n, bytes int) {
	s.mu.Lock()
	limit := s.pace.Bytes(scriptBytes)
	s.mu.Unlock()
	recs = recs[:min(len(recs), scriptRecords)]
	for i := range recs {
		more := len(recs[i].JSON)
		if i > 0 && (bytes+more > limit || s.gap(&recs[i-1], &recs[i]) || s.tooLarge(&recs[i]) != nil) {
			return i, bytes
		}
		bytes += more
	}
	return len(recs), bytes
}

// gap reports whether append.lua cannot count from one record to the next.
func (s *session) gap(a, b *uplink.Record) bool { return s.as != asLatest && b.ID.Seq != a.ID.Seq+1 }

// outcome reads the reply to a script that was given n records.
func (s *session) outcome(reply []any, err error, n int) (stored, repeats int, _ error) {
	if err != nil {
		return 0, 0, err
	}
	count, isCount := reply[0].(int64)
	if len(reply) > 3 {
		old, _ := reply[3].(int64)
		repeats = int(old)
	}
	if !isCount || count < 0 || count > int64(n) {
		return 0, 0, fmt.Errorf("%s gave an answer that makes no sense: %v", s.address, reply)
	}
	if refusal := reply[1].(string); refusal != "" {
		return int(count), repeats, refused(refusal)
	}
	if count != int64(n) {
		return int(count), repeats, fmt.Errorf("%s stored %d of %d records and did not say why", s.address, count, n)
	}
	return int(count), repeats, nil
}

// Close implements uplink.Session.
func (s *session) Close() {
	s.cancel()
	s.cut()
	s.hold() // no Send goes on, and none begins
	s.running.Wait()
}

// cut ends all connections. Those of a session that is over either way.
func (s *session) cut() {
	_ = s.client.Close()
	if s.many != nil {
		_ = s.many.Close()
	}
	if s.sentinels != nil {
		s.sentinels.close()
	}
}

// hold waits until nothing is on its way, and lets nothing begin until release.
func (s *session) hold() {
	for range cap(s.room) {
		s.room <- struct{}{}
	}
}

func (s *session) release() {
	for range cap(s.room) {
		<-s.room
	}
}
