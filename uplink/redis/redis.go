package redis

import (
	"context"
	_ "embed"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"edgegateway/pipeline"
	"edgegateway/uplink"
)

// Config is the section of a Redis uplink in the config file.
type Config struct {
	Address  string          `yaml:"address" doc:"HOST:PORT of the Redis server." required:"true"`
	DB       int             `yaml:"db" doc:"Number of the database." default:"0" min:"0"`
	User     string          `yaml:"user" doc:"User of Redis' ACL; empty for the default user."`
	Password pipeline.Secret `yaml:"password" doc:"Password of the user."`
	TLS      uplink.TLS      `yaml:"tls" doc:"Encryption of the connection."`
	Key      string          `yaml:"key" doc:"Key of the stream; {gateway}, {stream} and {uplink} are filled in. Nobody else may write to it." default:"edge:{gateway}:{stream}"`
	MaxLen   int64           `yaml:"max_len" doc:"Let Redis trim the stream to about so many entries; 0 for never." default:"0" min:"0"`
}

// Limits of one run of the script. Redis serves nobody else meanwhile.
const (
	scriptRecords = 500
	scriptBytes   = 1 << 20
	replyTimeout  = 10 * time.Second
)

//go:embed script.lua
var scriptText string

// Check implements pipeline.Checker.
func (c *Config) Check() []pipeline.Problem {
	problems := uplink.CheckTemplate("key", c.Key)
	if c.Key == "" {
		problems = append(problems, pipeline.Problem{Path: "key", Text: "is empty (want a key, such as edge:{gateway}:{stream})"})
	}
	if c.User != "" && c.Password == "" {
		problems = append(problems, pipeline.Problem{Path: "password", Text: "missing for user " + strconv.Quote(c.User) + " (want password_file or password)"})
	}
	return append(problems, uplink.CheckTLS(&c.TLS)...)
}

// quiet silences the library's own lines on stderr, whose logger is one for the whole process: what goes wrong is said by
// the Runner.
var quiet = sync.OnceFunc(func() { redis.SetLogger(silence{}) })

type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}

// Open implements uplink.Driver.
func (c *Config) Open(ctx context.Context, env uplink.Env) (uplink.Session, error) {
	quiet()
	tls, err := c.TLS.Client()
	if err != nil {
		return nil, err
	}
	key := uplink.Expand(c.Key, env)
	s := &session{
		address: c.Address, encrypted: c.TLS.Enabled, key: key, cursor: cursorKey(key),
		epoch: strconv.FormatUint(env.Epoch, 10), maxLen: strconv.FormatInt(c.MaxLen, 10),
		script: redis.NewScript(scriptText),
		client: redis.NewClient(&redis.Options{
			Addr: c.Address, DB: c.DB, Username: c.User, Password: c.Password.Reveal(), TLSConfig: tls,
			// A retry is the Runner's business: the library's own would hide that a reply was lost.
			MaxRetries: -1, DialerRetries: 1,
			DialTimeout: 5 * time.Second, ReadTimeout: replyTimeout, WriteTimeout: replyTimeout,
			ContextTimeoutEnabled: true, PoolSize: 1, PipelinePoolSize: -1, DisableIdentity: true,
			MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		}),
	}
	s.ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	if err := s.greet(ctx); err != nil {
		s.Close()
		return nil, s.explain(err)
	}
	return s, nil
}

// cursorKey returns the cursor's key, in the same slot of a cluster as the stream's.
func cursorKey(key string) string {
	if _, rest, ok := strings.Cut(key, "{"); ok && strings.Index(rest, "}") > 0 {
		return key + ":cursor"
	}
	return "{" + key + "}:cursor"
}

// session implements uplink.Session. It sends synchronously: one script at a time keeps the order, whatever fails.
type session struct {
	client        *redis.Client
	script        *redis.Script
	address       string
	encrypted     bool
	key, cursor   string
	epoch, maxLen string
	maxValue      int64           // longest string the server takes
	ctx           context.Context //nolint:containedctx // ends with Close, and every Send with it
	cancel        context.CancelFunc
	sending       sync.Mutex // held by Send, Close waits for it; guards pace
	pace          uplink.Pace
}

// greet signs in and asks what the server takes.
func (s *session) greet(ctx context.Context) error {
	if err := s.client.Ping(ctx).Err(); err != nil {
		return err
	}
	s.maxValue = 512 << 20 // Redis' own default, where the setting may not be read
	const setting = "proto-max-bulk-len"
	if got, err := s.client.ConfigGet(ctx, setting).Result(); err == nil {
		if n, err := strconv.ParseInt(got[setting], 10, 64); err == nil && n > 0 {
			s.maxValue = n
		}
	}
	return nil
}

// Send implements uplink.Session.
func (s *session) Send(ctx context.Context, recs []uplink.Record, report func(uint64, uplink.Outcome)) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	for len(recs) > 0 {
		if size := int64(len(recs[0].JSON)); size > s.maxValue {
			report(recs[0].ID.Seq, uplink.Outcome{Verdict: uplink.Drop, Err: fmt.Errorf(
				"the record has %d bytes, the server takes %d (its setting proto-max-bulk-len)", size, s.maxValue)})
			recs = recs[1:]
			continue
		}
		n, bytes := s.chunk(recs, s.pace.Bytes(scriptBytes))
		begun := time.Now()
		stored, err := s.append(ctx, recs[:n])
		for _, rec := range recs[:stored] {
			report(rec.ID.Seq, uplink.Outcome{Verdict: uplink.Ack})
		}
		if err != nil {
			return s.explain(err)
		}
		s.pace.Took(bytes, time.Since(begun))
		recs = recs[n:]
	}
	return nil
}

// chunk returns how many records go into the next run of the script, one at the least, and their bytes. It ends before
// a record that the server would not take.
func (s *session) chunk(recs []uplink.Record, limit int) (n, bytes int) {
	recs = recs[:min(len(recs), scriptRecords)]
	for i := range recs {
		more := len(recs[i].JSON)
		if i > 0 && (bytes+more > limit || int64(more) > s.maxValue) {
			return i, bytes
		}
		bytes += more
	}
	return len(recs), bytes
}

// append runs the script and returns how many of recs are stored, counted from the first.
func (s *session) append(ctx context.Context, recs []uplink.Record) (stored int, err error) {
	args := make([]any, 0, 2+4*len(recs))
	args = append(args, s.epoch, s.maxLen)
	for _, rec := range recs {
		args = append(args, strconv.FormatUint(rec.ID.Seq, 10), rec.ID.String(), rec.Message.Topic, rec.JSON)
	}
	reply, err := s.script.Run(ctx, s.client, []string{s.key, s.cursor}, args...).Slice()
	if err != nil {
		return 0, err
	}
	n, refusal, ok := parseReply(reply, len(recs))
	if !ok {
		return 0, fmt.Errorf("%s gave an answer that makes no sense: %v", s.address, reply)
	}
	if refusal != "" {
		return n, refused(refusal)
	}
	if n != len(recs) {
		return n, fmt.Errorf("%s stored %d of %d records and did not say why", s.address, n, len(recs))
	}
	return n, nil
}

func parseReply(reply []any, sent int) (stored int, refusal string, ok bool) {
	if len(reply) != 2 {
		return 0, "", false
	}
	n, isInt := reply[0].(int64)
	refusal, isText := reply[1].(string)
	return int(n), refusal, isInt && isText && n >= 0 && n <= int64(sent)
}

// Close implements uplink.Session.
func (s *session) Close() {
	s.cancel()
	_ = s.client.Close() // the session is over either way
	s.sending.Lock()     // Send has returned
	defer s.sending.Unlock()
}
