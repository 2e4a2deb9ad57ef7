package redis

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
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

type scripts struct{ append, latest, claim, reset, known *redis.Script }

func newScripts(appending string) scripts {
	if appending == "" {
		appending = appendText
	}
	return scripts{
		append: redis.NewScript(farText + appending), latest: redis.NewScript(latestText),
		claim: redis.NewScript(farText + claimText), reset: redis.NewScript(farText + resetText),
		known: redis.NewScript(farText + knownText),
	}
}

// session implements uplink.Session. One script at a time keeps the order, whatever fails.
type session struct {
	client           *redis.Client
	scripts          scripts
	address, gateway string
	encrypted        bool
	as               string
	apart            bool // a hash that takes no record holds no others
	key, cursor      string
	fence            string // empty without exactly_once
	epoch            uint64
	maxLen           string
	waitAOF          bool
	waitReplicas     int
	maxValue         int64           // longest string the server takes
	ctx              context.Context //nolint:containedctx // ends with Close, and every Send with it
	cancel           context.CancelFunc
	running          sync.WaitGroup
	turn             chan struct{} // full from when a chunk is made until it is answered, and after Close; guards the fields below
	failed           error         // the session is of no more use
	pace             uplink.Pace
	base             string // of entry ids: @EPOCH-SEQ where an operator has set the cursor back, or empty
	token, last      string // the fence's value and the cursor that the next append finds; empty without a fence
}

// Send implements uplink.Session. It returns when the last chunk is on its way, so that the next records are read and encoded
// meanwhile.
func (s *session) Send(ctx context.Context, recs []uplink.Record, report func(uint64, uplink.Outcome)) error {
	for len(recs) > 0 {
		select {
		case s.turn <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		case <-s.ctx.Done():
			return s.ctx.Err()
		}
		if s.failed != nil {
			<-s.turn
			return s.failed
		}
		if err := s.tooLarge(&recs[0]); err != nil {
			report(recs[0].ID.Seq, uplink.Outcome{Verdict: uplink.Drop, Err: err})
			<-s.turn
			if s.fence != "" {
				return nil // nothing behind it may go: the cursor would pass it
			}
			recs = recs[1:]
			continue
		}
		n, bytes := s.chunk(recs, s.pace.Bytes(scriptBytes))
		chunk := recs[:n]
		recs = recs[n:]
		s.running.Go(func() {
			defer func() { <-s.turn }()
			s.settle(chunk, bytes, report)
		})
	}
	return nil
}

// settle has the script store a chunk and reports what comes of each record. What ends the session is in failed afterwards.
func (s *session) settle(recs []uplink.Record, bytes int, report func(uint64, uplink.Outcome)) {
	begun := time.Now()
	for len(recs) > 0 {
		stored, repeats, err := s.append(s.ctx, recs)
		for i, rec := range recs[:stored] {
			report(rec.ID.Seq, uplink.Outcome{Verdict: uplink.Ack, Repeat: i < repeats})
		}
		recs = recs[stored:]
		if err == nil {
			s.pace.Took(bytes, time.Since(begun))
			return
		}
		explained := s.explain(err)
		said, answered := errors.AsType[refused](err)
		if answered && s.apart && strings.Contains(string(said), "WRONGTYPE") {
			report(recs[0].ID.Seq, uplink.Outcome{Err: explained, Answered: true})
			recs = recs[1:] // the hash of one topic is somebody else's: the others go on
			continue
		}
		s.failed = explained
		for i, rec := range recs {
			report(rec.ID.Seq, uplink.Outcome{Err: explained, Answered: i == 0 && answered && !uplink.IsConfig(explained)})
		}
		return
	}
}

// tooLarge says why the server refuses a record for good; nil where it does not.
func (s *session) tooLarge(rec *uplink.Record) error {
	if int64(len(rec.JSON)) <= s.maxValue {
		return nil
	}
	return fmt.Errorf("the record has %d bytes, the server takes %d (its setting proto-max-bulk-len)", len(rec.JSON), s.maxValue)
}

// chunk returns how many records go into the next run of the script, up to one that is too large and one at the least, and
// their bytes.
func (s *session) chunk(recs []uplink.Record, limit int) (n, bytes int) {
	recs = recs[:min(len(recs), scriptRecords)]
	for i := range recs {
		more := len(recs[i].JSON)
		if i > 0 && (bytes+more > limit || s.tooLarge(&recs[i]) != nil) {
			return i, bytes
		}
		bytes += more
	}
	return len(recs), bytes
}

// append runs the script and returns how many of recs are stored, counted from the first, and how many of those were before.
func (s *session) append(ctx context.Context, recs []uplink.Record) (stored, repeats int, err error) {
	script, keys, args := s.scripts.append, s.keys(), make([]any, 0, 6+5*len(recs))
	if s.as == asLatest {
		script, keys = s.scripts.latest, make([]string, 0, len(recs))
		for _, rec := range recs {
			keys = append(keys, strings.ReplaceAll(s.key, topicPlaceholder, rec.Message.Topic))
		}
		args = append(args, strconv.FormatUint(s.epoch, 10))
	} else {
		args = append(args, s.as, strconv.FormatUint(s.epoch, 10), s.maxLen, s.token, s.last, s.base)
	}
	for _, rec := range recs {
		args = append(args, strconv.FormatUint(rec.ID.Seq, 10))
		if s.as != asLatest {
			args = append(args, s.entryID(rec.ID.Seq))
		}
		args = append(args, rec.ID.String(), rec.Message.Topic, rec.JSON)
	}
	reply, err := s.run(ctx, script, keys, args)
	if err != nil {
		return 0, 0, err
	}
	n, isCount := reply[0].(int64)
	if len(reply) > 3 {
		old, _ := reply[3].(int64)
		repeats = int(old)
	}
	if !isCount || n < 0 || n > int64(len(recs)) {
		return 0, 0, fmt.Errorf("%s gave an answer that makes no sense: %v", s.address, reply)
	}
	if refusal := reply[1].(string); refusal != "" {
		return int(n), repeats, refused(refusal)
	}
	if n != int64(len(recs)) {
		return int(n), repeats, fmt.Errorf("%s stored %d of %d records and did not say why", s.address, n, len(recs))
	}
	if s.fence != "" {
		s.last = reply[2].(string)
	}
	return int(n), repeats, nil
}

// keys returns those of the scripts for streams and lists. The fence needs no rights where there is none.
func (s *session) keys() []string {
	if s.fence == "" {
		return []string{s.key, s.cursor}
	}
	return []string{s.key, s.cursor, s.fence}
}

// Close implements uplink.Session.
func (s *session) Close() {
	s.cancel()
	_ = s.client.Close() // the session is over either way
	s.turn <- struct{}{} // no Send goes on, and none begins
	s.running.Wait()
}
