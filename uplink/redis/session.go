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

type scripts struct{ append, latest, claim, reset *redis.Script }

func newScripts(appending string) scripts {
	if appending == "" {
		appending = appendText
	}
	return scripts{
		append: redis.NewScript(farText + appending), latest: redis.NewScript(latestText),
		claim: redis.NewScript(farText + claimText), reset: redis.NewScript(farText + resetText),
	}
}

// session implements uplink.Session. It sends synchronously: one script at a time keeps the order, whatever fails.
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
	sending          sync.Mutex // held by Send, Close waits for it; guards the fields below
	pace             uplink.Pace
	base             string // of entry ids: @EPOCH-SEQ where an operator has set the cursor back, or empty
	token, last      string // the fence's value and the cursor that the next append finds; empty without a fence
}

// Send implements uplink.Session.
func (s *session) Send(ctx context.Context, recs []uplink.Record, report func(uint64, uplink.Outcome)) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	for len(recs) > 0 {
		if err := s.tooLarge(&recs[0]); err != nil {
			report(recs[0].ID.Seq, uplink.Outcome{Verdict: uplink.Drop, Err: err})
			if s.fence != "" {
				return nil // nothing behind it may go: the cursor would pass it
			}
			recs = recs[1:]
			continue
		}
		n, bytes := s.chunk(recs, s.pace.Bytes(scriptBytes))
		begun := time.Now()
		stored, err := s.append(ctx, recs[:n])
		for _, rec := range recs[:stored] {
			report(rec.ID.Seq, uplink.Outcome{Verdict: uplink.Ack})
		}
		if err == nil {
			s.pace.Took(bytes, time.Since(begun))
			recs = recs[n:]
			continue
		}
		explained := s.explain(err)
		said, answered := errors.AsType[refused](err)
		alone := answered && s.apart && strings.Contains(string(said), "WRONGTYPE")
		if alone || answered && !uplink.IsConfig(explained) {
			report(recs[stored].ID.Seq, uplink.Outcome{Err: explained, Answered: true})
		}
		if !alone {
			return explained
		}
		recs = recs[stored+1:] // the hash of one topic is somebody else's: the others go on
	}
	return nil
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

// append runs the script and returns how many of recs are stored, counted from the first.
func (s *session) append(ctx context.Context, recs []uplink.Record) (stored int, err error) {
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
		return 0, err
	}
	n, isCount := reply[0].(int64)
	if !isCount || n < 0 || n > int64(len(recs)) {
		return 0, fmt.Errorf("%s gave an answer that makes no sense: %v", s.address, reply)
	}
	if refusal := reply[1].(string); refusal != "" {
		return int(n), refused(refusal)
	}
	if n != int64(len(recs)) {
		return int(n), fmt.Errorf("%s stored %d of %d records and did not say why", s.address, n, len(recs))
	}
	if s.fence != "" {
		s.last = reply[2].(string)
	}
	return int(n), nil
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
	s.sending.Lock()     // Send has returned
	defer s.sending.Unlock()
}
