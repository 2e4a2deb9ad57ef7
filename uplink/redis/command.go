package redis

import (
	"context"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"edgegateway/uplink"
)

// script is a script with its text, for a server that does not know it yet.
type script struct {
	*redis.Script

	text string
}

func newScript(text string) script { return script{redis.NewScript(text), text} }

// command is a run of a script, as it goes over the line.
type command struct {
	script script
	args   []any // of EVALSHA: its name, the script's, the number of keys, the keys, and what the script calls ARGV
	keys   int
}

// newCommand begins a command, with room for so many arguments.
func newCommand(script script, keys []string, room int) *command {
	c := &command{script: script, args: make([]any, 3, 3+len(keys)+room), keys: len(keys)}
	c.args[0], c.args[1], c.args[2] = "EVALSHA", script.Hash(), len(keys)
	for i := range keys {
		c.args = append(c.args, &keys[i])
	}
	return c
}

// argv returns the arguments behind the keys.
func (c *command) argv() []any { return c.args[3+c.keys:] }

// spellOut has the command bring the script's text along.
func (c *command) spellOut() { c.args[0], c.args[1] = "EVAL", c.script.text }

// cmd returns what the library sends.
func (c *command) cmd(ctx context.Context) *redis.Cmd { return redis.NewCmd(ctx, c.args...) }

// argExpected is the place of the expected cursor in the arguments of append.lua. It is known only when a chunk is launched.
const argExpected = 4

// appending returns the run of append.lua for records without a gap.
func (s *session) appending(recs []uplink.Record) *command {
	s.mu.Lock()
	base := s.base
	s.mu.Unlock()
	c := newCommand(s.scripts.append, s.keys(), 7+4*len(recs))
	c.args = append(c.args, s.as, strconv.FormatUint(s.epoch, 10), s.maxLen, s.token, "", base, strconv.FormatUint(recs[0].ID.Seq, 10))
	if s.as == asList {
		for i := range recs {
			c.args = append(c.args, recs[i].JSON)
		}
		return c
	}
	before := uplink.FarCursor{Epoch: s.epoch} // of the entry ids
	if at, ok := parseCursor(strings.TrimPrefix(base, "@")); ok {
		before = at
	}
	prefix := strconv.FormatUint(before.Epoch, 10) + "-"
	texts := make([]string, 2*len(recs)) // pointers to them need no room of their own in an any
	var buf [64]byte
	for i := range recs {
		texts[2*i] = string(strconv.AppendUint(append(buf[:0], prefix...), before.Seq+recs[i].ID.Seq, 10))
		texts[2*i+1] = recs[i].ID.String()
		c.args = append(c.args, &texts[2*i], &texts[2*i+1], &recs[i].Message.Topic, recs[i].JSON)
	}
	return c
}

// newest returns the run of latest.lua for records.
func (s *session) newest(recs []uplink.Record) *command {
	keys := make([]string, len(recs))
	for i := range recs {
		keys[i] = strings.ReplaceAll(s.key, topicPlaceholder, recs[i].Message.Topic)
	}
	c := newCommand(s.scripts.latest, keys, 1+4*len(recs))
	c.args = append(c.args, strconv.FormatUint(s.epoch, 10))
	for i := range recs {
		c.args = append(c.args, strconv.FormatUint(recs[i].ID.Seq, 10), recs[i].ID.String(), &recs[i].Message.Topic, recs[i].JSON)
	}
	return c
}

// keys returns those of the scripts for streams and lists. The fence needs no rights where there is none.
func (s *session) keys() []string {
	if s.fence == "" {
		return []string{s.key, s.cursor}
	}
	return []string{s.key, s.cursor, s.fence}
}
