package redis

import (
	"context"
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
	Address      string          `yaml:"address" doc:"HOST:PORT of the Redis server." required:"true"`
	DB           int             `yaml:"db" doc:"Number of the database." default:"0" min:"0"`
	User         string          `yaml:"user" doc:"User of Redis' ACL; empty for the default user."`
	Password     pipeline.Secret `yaml:"password" doc:"Password of the user."`
	TLS          uplink.TLS      `yaml:"tls" doc:"Encryption of the connection."`
	As           string          `yaml:"as" doc:"What the key is: stream (an entry for each record), list (an element for each record, taken off by its readers) or latest (a hash for each topic with its newest record)." default:"stream"`
	Key          string          `yaml:"key" doc:"Key of the stream or list; {gateway}, {stream} and {uplink} are filled in. Nobody else may write to it. For latest there is {topic} too, and :{topic} is added where it is missing." default:"edge:{gateway}:{stream}"`
	MaxLen       int64           `yaml:"max_len" doc:"Let Redis trim the stream to about so many entries, the list to exactly so many elements, oldest first; 0 for never." default:"0" min:"0"`
	WaitAOF      bool            `yaml:"wait_aof" doc:"Confirm a record only when the server has it on disk (Redis 7.2 with appendonly yes)." default:"false"`
	WaitReplicas int             `yaml:"wait_replicas" doc:"Confirm a record only when so many replicas have it; with wait_aof, on their disks." default:"0" min:"0"`

	script string // append.lua, unless a test wants to see what goes wrong with less

	Sending uplink.Policy `yaml:"sending" doc:"When and how much is sent."`
}

// SendingPolicy implements uplink.HasPolicy.
func (c *Config) SendingPolicy() *uplink.Policy { return &c.Sending }

// What a key can be.
const (
	asStream = "stream"
	asList   = "list"
	asLatest = "latest"
)

// Check implements pipeline.Checker.
func (c *Config) Check() []pipeline.Problem {
	problems := uplink.CheckPolicy("sending", &c.Sending)
	mistake := func(path, text string) { problems = append(problems, pipeline.Problem{Path: path, Text: text}) }
	template := c.Key
	switch c.As {
	case "", asStream, asList:
	case asLatest:
		template = strings.ReplaceAll(template, topicPlaceholder, "")
		if c.MaxLen > 0 {
			mistake("max_len", "is for streams and lists; a hash holds one record (want no max_len)")
		}
	case "pubsub":
		mistake("as", "Redis keeps nothing of what is published and does not say who got it, so a record would count as delivered that nobody has (want stream, list or latest)")
	default:
		mistake("as", "unknown "+strconv.Quote(c.As)+" (want stream, list or latest)")
	}
	problems = append(problems, uplink.CheckTemplate("key", template)...)
	if c.Key == "" {
		mistake("key", "is empty (want a key, such as edge:{gateway}:{stream})")
	}
	if c.User != "" && !c.Password.IsSet() {
		mistake("password", "missing for user "+strconv.Quote(c.User)+" (want password_file or password)")
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
	s, err := c.session(env)
	if err != nil {
		return nil, err
	}
	s.ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	if err := s.greet(ctx); err != nil {
		s.Close()
		return nil, s.explain(err)
	}
	if s.fence == "" {
		return s, nil
	}
	exact, err := s.claim(ctx, env.Claims)
	if err != nil {
		s.Close()
		return nil, s.explain(err)
	}
	return exact, nil
}

// session returns a session that has not talked to anybody yet.
func (c *Config) session(env uplink.Env) (*session, error) {
	tls, err := c.TLS.Client()
	if err != nil {
		return nil, err
	}
	s := &session{
		address: c.Address, encrypted: c.TLS.Enabled, gateway: env.Gateway, as: c.As, maxLen: strconv.FormatInt(c.MaxLen, 10),
		epoch: env.Epoch, scripts: newScripts(c.script),
		waitAOF: c.WaitAOF, waitReplicas: c.WaitReplicas,
		client: redis.NewClient(&redis.Options{
			Addr: c.Address, DB: c.DB, Username: c.User, Password: c.Password.Reveal(), TLSConfig: tls,
			// A retry is the Runner's business: the library's own would hide that a reply was lost.
			MaxRetries: -1, DialerRetries: 1,
			DialTimeout: 5 * time.Second, ReadTimeout: replyTimeout, WriteTimeout: replyTimeout,
			ContextTimeoutEnabled: true, PoolSize: window, PipelinePoolSize: -1, DisableIdentity: true,
			MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		}),
	}
	if s.as == "" {
		s.as = asStream
	}
	s.room = make(chan struct{}, window)
	if s.as == asLatest {
		s.room = make(chan struct{}, 1) // a hash has no cursor that would hold the second
	}
	template := c.Key
	if s.as == asLatest && !strings.Contains(template, topicPlaceholder) {
		template += ":" + topicPlaceholder
	}
	s.key = place(template, env)
	s.cursor = beside(s.key, "cursor")
	s.apart = s.as == asLatest && env.Promise.Order != uplink.OrderStrict && env.Promise.Order != ""
	if env.Promise.Delivery == uplink.ExactlyOnce && s.as != asLatest {
		s.fence = beside(s.key, "fence")
	}
	return s, nil
}

const topicPlaceholder = "{topic}"

// place returns the key of a stream. Dead letters that are sent again have a key of their own, with !UPLINK behind it: they
// have sequences of their own, and a key's ids and its cursor only grow.
func place(template string, env uplink.Env) string {
	key := uplink.Expand(template, env)
	if env.Route != "" {
		key += strings.TrimPrefix(env.Stream, env.Route)
	}
	return key
}

// beside returns a key in the same slot of a cluster as key.
func beside(key, name string) string {
	if _, rest, ok := strings.Cut(key, "{"); ok && strings.Index(rest, "}") > 0 {
		return key + ":" + name
	}
	return "{" + key + "}:" + name
}

// greet signs in and asks what the server takes and can do.
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
	if !s.waitAOF {
		return nil
	}
	return s.checkAOF(s.client.Do(ctx, "WAITAOF", 1, 0, 1).Err())
}

// checkAOF explains the answer to a WAITAOF.
func (s *session) checkAOF(err error) error {
	// Where nothing was written there is nothing to wait for: only whether the server knows the command, and writes a file at all, comes back.
	switch {
	case err == nil:
		return nil
	case strings.Contains(err.Error(), "unknown command"):
		return uplink.Config(fmt.Errorf("%s is older than Redis 7.2 and cannot say when a record is on disk (want wait_aof: false, and appendfsync always in the server's settings)", s.address))
	case strings.Contains(err.Error(), "appendonly is disabled"):
		return uplink.Config(fmt.Errorf("%s writes no append-only file, so a record is never on disk (want appendonly yes in the server's settings, or wait_aof: false)", s.address))
	}
	return err
}
