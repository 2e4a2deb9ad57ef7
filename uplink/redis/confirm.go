package redis

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// run runs a script and returns its reply: a number or a text, why it refused, the cursor, and perhaps more. What it wrote is
// then where the settings want it.
func (s *session) run(ctx context.Context, c *command) ([]any, error) {
	reply, err := s.runAndWait(ctx, c)
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		c.spellOut()
		reply, err = s.runAndWait(ctx, c)
	}
	return s.sensible(reply, err)
}

// read returns the reply of a script that was sent by itself.
func (s *session) read(cmd *redis.Cmd) ([]any, error) { return s.sensible(cmd.Slice()) }

func (s *session) sensible(reply []any, err error) ([]any, error) {
	if err != nil {
		return nil, err
	}
	if len(reply) >= 3 {
		_, refusal := reply[1].(string)
		_, cursor := reply[2].(string)
		if refusal && cursor {
			return reply, nil
		}
	}
	return nil, fmt.Errorf("%s gave an answer that makes no sense: %v", s.address, reply)
}

// runAndWait sends the script and the wait for its writes together: they must share a connection, because the server waits
// for what the connection wrote. The server waits for all earlier writes too, so a repeat is as safe as what it repeats.
func (s *session) runAndWait(ctx context.Context, c *command) ([]any, error) {
	script := c.cmd(ctx)
	wait := s.waits()
	if !wait && !s.asking {
		_ = s.client.Process(ctx, script) // the command has its error
		return script.Slice()
	}
	var waited *redis.Cmd
	_, _ = s.client.Pipelined(ctx, func(p redis.Pipeliner) error { // each command has its own error
		if s.asking {
			p.Do(ctx, "ASKING")
		}
		_ = p.Process(ctx, script)
		if wait {
			waited = p.Do(ctx, s.waitCommand()...)
		}
		return nil
	})
	reply, err := script.Slice()
	if err != nil || !wait {
		return reply, err
	}
	if err := s.reached(waited); err != nil {
		return nil, err
	}
	return reply, nil
}

// waitCommand waits for what the connection has written to be where the settings want it.
func (s *session) waitCommand() []any {
	if s.waitAOF {
		return []any{"WAITAOF", 1, s.waitReplicas, waitTimeout.Milliseconds()}
	}
	return []any{"WAIT", s.waitReplicas, waitTimeout.Milliseconds()}
}

// reached returns an error unless the counts that the server has waited for are those of the settings.
func (s *session) reached(waited *redis.Cmd) error {
	var local, replicas int64
	if s.waitAOF {
		counts, err := waited.Int64Slice()
		if err != nil {
			return err
		}
		if len(counts) != 2 {
			return fmt.Errorf("%s gave an answer that makes no sense: %v", s.address, counts)
		}
		local, replicas = counts[0], counts[1]
		if local < 1 {
			return fmt.Errorf("%s has not written to its disk within %v (is the disk slow or full?)", s.address, waitTimeout)
		}
	} else {
		var err error
		if replicas, err = waited.Int64(); err != nil {
			return err
		}
	}
	if replicas < int64(s.waitReplicas) {
		return fmt.Errorf("%d replicas of %s have the records after %v (want %d: are the replicas up, or is wait_replicas too high?)",
			replicas, s.address, waitTimeout, s.waitReplicas)
	}
	return nil
}
