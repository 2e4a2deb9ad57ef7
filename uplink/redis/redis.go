package redis

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"edgegateway/pipeline"
	"edgegateway/uplink"
)

// Config is the section of a Redis uplink in the config file.
type Config struct {
	Address      string          `yaml:"address" doc:"HOST:PORT of the Redis server. Instead of it there may be cluster or sentinel."`
	Cluster      []string        `yaml:"cluster" doc:"HOST:PORT of the nodes of a cluster to ask first."`
	Sentinel     Sentinel        `yaml:"sentinel" doc:"Sentinels to ask for the address of the master."`
	DB           int             `yaml:"db" doc:"Number of the database; a cluster has only 0." default:"0" min:"0"`
	User         string          `yaml:"user" doc:"User of Redis' ACL; empty for the default user."`
	Password     pipeline.Secret `yaml:"password" doc:"Password of the user."`
	TLS          uplink.TLS      `yaml:"tls" doc:"Encryption of the connections, also to nodes and sentinels."`
	As           string          `yaml:"as" doc:"What the key is: stream (an entry for each record), list (an element for each record, taken off by its readers) or latest (a hash for each topic with its newest record)." default:"stream"`
	Key          string          `yaml:"key" doc:"Key of the stream or list; {gateway}, {stream} and {uplink} are filled in. Nobody else may write to it. For latest there is {topic} too, and :{topic} is added where it is missing." default:"edge:{gateway}:{stream}"`
	MaxLen       int64           `yaml:"max_len" doc:"Let Redis trim the stream to about so many entries, the list to exactly so many elements, oldest first; 0 for never." default:"0" min:"0"`
	WaitAOF      bool            `yaml:"wait_aof" doc:"Confirm a record only when the server has it on disk (Redis 7.2 with appendonly yes)." default:"false"`
	WaitReplicas int             `yaml:"wait_replicas" doc:"Confirm a record only when so many replicas have it; with wait_aof, on their disks." default:"0" min:"0"`

	script        string        // append.lua, unless a test wants to see what goes wrong with less
	sentinelEvery time.Duration // how often sentinels are asked; 0 for the usual

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
	for _, p := range c.checkPlace() {
		mistake(p.Path, p.Text)
	}
	if c.User != "" && !c.Password.IsSet() {
		mistake("password", "missing for user "+strconv.Quote(c.User)+" (want password_file or password)")
	}
	return append(problems, uplink.CheckTLS(&c.TLS)...)
}

// checkPlace checks where the server is.
func (c *Config) checkPlace() []pipeline.Problem {
	var problems []pipeline.Problem
	mistake := func(path, text string) { problems = append(problems, pipeline.Problem{Path: path, Text: text}) }
	sentinel := len(c.Sentinel.Addresses) > 0 || c.Sentinel.Master != ""
	given := 0
	for _, is := range []bool{c.Address != "", len(c.Cluster) > 0, sentinel} {
		if is {
			given++
		}
	}
	if given != 1 {
		mistake("address", "where the server is must be said once (want address, or cluster, or sentinel)")
	}
	if sentinel && (len(c.Sentinel.Addresses) == 0 || c.Sentinel.Master == "") {
		mistake("sentinel", "addresses and master belong together (want HOST:PORT of the sentinels, and the name under which they watch the master)")
	}
	if !sentinel && (c.Sentinel.User != "" || c.Sentinel.Password.IsSet()) {
		mistake("sentinel", "there is a sign-in but no sentinel (want addresses and master)")
	}
	if c.Sentinel.User != "" && !c.Sentinel.Password.IsSet() {
		mistake("sentinel.password", "missing for user "+strconv.Quote(c.Sentinel.User)+" (want password_file or password)")
	}
	if len(c.Cluster) == 0 {
		return problems
	}
	if c.DB != 0 {
		mistake("db", "a cluster has one database only (want db: 0)")
	}
	if c.As == asLatest && (c.WaitAOF || c.WaitReplicas > 0) {
		mistake("as", "the hashes are at several nodes of the cluster, and a wait is for one (want as: stream or list, or neither wait_aof nor wait_replicas)")
	}
	return problems
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
	if err := s.connect(ctx); err != nil {
		s.Close()
		return nil, err
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
		encrypted: c.TLS.Enabled, gateway: env.Gateway, as: c.As, maxLen: strconv.FormatInt(c.MaxLen, 10),
		epoch: env.Epoch, scripts: newScripts(c.script),
		waitAOF: c.WaitAOF, waitReplicas: c.WaitReplicas,
		options: c.options(tls), nodes: c.Cluster, sentinels: c.newSentinels(tls),
	}
	if len(s.nodes) > 0 && s.as == asLatest {
		s.many = newCluster(s.options, s.nodes)
	}
	if s.as == "" {
		s.as = asStream
	}
	s.room = make(chan struct{}, window)
	switch {
	case s.as == asLatest:
		s.room = make(chan struct{}, 1) // a hash has no cursor that would hold the second
	case s.waits():
		s.room = make(chan struct{}, waitWindow)
	}
	s.options.PoolSize = cap(s.room)
	s.use(c.Address, false)
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

// greet signs in and asks what the server takes and can do, all at once.
func (s *session) greet(ctx context.Context) error {
	const setting = "proto-max-bulk-len"
	var ping *redis.StatusCmd
	var got *redis.MapStringStringCmd
	var waited *redis.Cmd
	_, _ = s.client.Pipelined(ctx, func(p redis.Pipeliner) error { // each command has its own error
		ping, got = p.Ping(ctx), p.ConfigGet(ctx, setting)
		if s.waitAOF {
			waited = p.Do(ctx, "WAITAOF", 1, 0, 1)
		}
		return nil
	})
	if err := ping.Err(); err != nil {
		return err
	}
	s.maxValue = 512 << 20 // Redis' own default, where the setting may not be read
	if n, err := strconv.ParseInt(got.Val()[setting], 10, 64); err == nil && n > 0 {
		s.maxValue = n
	}
	if waited == nil {
		return nil
	}
	return s.checkAOF(waited.Err())
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
