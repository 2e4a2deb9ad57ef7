package nats

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"edgegateway/uplink"
)

// Probe implements uplink.Prober. No test record is written: whoever reads the stream would get it. Instead the server is asked
// what the user may do, and the stream what it takes and keeps.
func (c *Config) Probe(ctx context.Context, env uplink.Env, step func(uplink.Step)) {
	address := strings.Join(c.Servers, ", ")
	l, err := c.connect(ctx, env)
	if err != nil {
		if l == nil || !l.reached() {
			step(uplink.Step{Name: "connect to " + address, Err: err})
			return
		}
		step(uplink.Step{Name: "connect to " + address})
		if errors.Is(err, nats.ErrTimeout) || errors.Is(err, os.ErrDeadlineExceeded) {
			err = fmt.Errorf("%s takes the connection and then says nothing (is it the port of a NATS server?)", address)
		}
		step(uplink.Step{Name: c.signInName(), Err: err})
		return
	}
	defer l.hangUp()
	version := l.nc.ConnectedServerVersion()
	step(uplink.Step{Name: "connect to " + address, Note: fmt.Sprintf("NATS server %s, takes up to %d bytes a record", version, l.nc.MaxPayload())})
	begun := time.Now()
	if err := l.nc.FlushWithContext(ctx); err != nil {
		step(uplink.Step{Name: c.signInName(), Err: l.explain(err)})
		return
	}
	step(uplink.Step{Name: c.signInName(), Note: fmt.Sprintf("an answer takes %v", time.Since(begun).Round(100*time.Microsecond))})
	for _, try := range []func(context.Context, uplink.Env, *link) uplink.Step{c.probeStream, c.probeRights, c.probeDelivery} {
		s := try(ctx, env, l)
		s.Err = l.explain(s.Err)
		if step(s); s.Err != nil {
			return
		}
	}
}

// reached reports whether a server took the connection at all.
func (l *link) reached() bool {
	l.dial.mu.Lock()
	defer l.dial.mu.Unlock()
	return len(l.dial.conns) > 0
}

func (c *Config) signInName() string {
	switch {
	case c.User != "":
		return "sign in as " + c.User
	case c.Token.IsSet():
		return "sign in with the token"
	case c.NKeyFile != "":
		return "sign in with the nkey of " + c.NKeyFile
	case c.CredsFile != "":
		return "sign in with the credentials of " + c.CredsFile
	}
	return "sign in without a user"
}

// probeStream looks for the stream without making it.
func (c *Config) probeStream(ctx context.Context, env uplink.Env, l *link) uplink.Step {
	s := uplink.Step{Name: "find the stream for " + l.subject}
	got, err := l.js.StreamNameBySubject(ctx, l.subject)
	want := uplink.Expand(c.Stream, env)
	switch {
	case isNotFound(err) && c.Create:
		s.Note = "there is none yet; the uplink makes " + want + " when it starts"
		return s
	case err == nil || isNotFound(err):
		// Whatever it says, nothing is made: the stream is there, or create is off.
		l.stream, s.Err = c.findStream(ctx, env, l)
	default:
		s.Err = err
	}
	if s.Err != nil {
		return s
	}
	stream, err := l.js.Stream(ctx, got)
	if err != nil {
		s.Err = err
		return s
	}
	info := stream.CachedInfo()
	s.Note = fmt.Sprintf("%s, %s storage, %d copies, %d messages", got, strings.ToLower(info.Config.Storage.String()), info.Config.Replicas, info.State.Msgs)
	if waitsFor(uplink.Env{Promise: env.Promise}, stream) != "" {
		s.Note += ", one record at a time to keep the order"
		if env.Promise.Order == uplink.OrderKey {
			s.Note += " of each key"
		}
	}
	switch {
	case info.Config.Sealed:
		s.Err = uplink.Config(fmt.Errorf("stream %s is sealed and takes nothing more (want another stream)", got))
	case info.Config.NoAck:
		s.Err = uplink.Config(fmt.Errorf("stream %s confirms nothing, so no record would ever count as delivered (want no_ack: false in its settings)", got))
	case isFull(info):
		s.Err = fmt.Errorf("stream %s is full and refuses what is new (want higher limits, or discard: old)", got)
	}
	return s
}

func isFull(info *jetstream.StreamInfo) bool {
	limits, state := &info.Config, &info.State
	return limits.Discard == jetstream.DiscardNew &&
		(limits.MaxMsgs > 0 && state.Msgs >= uint64(limits.MaxMsgs) || limits.MaxBytes > 0 && state.Bytes >= uint64(limits.MaxBytes))
}

// permissions is what the server says of a user's rights to publish.
type permissions struct {
	Allow []string `json:"allow"`
	Deny  []string `json:"deny"`
}

// probeRights asks the server what the user may publish to. It is asked and not tried, because what is published arrives.
func (c *Config) probeRights(ctx context.Context, env uplink.Env, l *link) uplink.Step {
	s := uplink.Step{Name: "rights to publish to " + l.subject}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	answer, err := l.nc.RequestWithContext(ctx, "$SYS.REQ.USER.INFO", nil)
	var info struct {
		Data *struct {
			Permissions *struct {
				Publish *permissions `json:"publish"`
			} `json:"permissions"`
		} `json:"data"`
	}
	if err == nil {
		err = json.Unmarshal(answer.Data, &info)
	}
	if err != nil || info.Data == nil {
		s.Note = "not known: the server does not tell this user its rights"
		return s
	}
	subjects := []string{l.subject}
	if env.Promise.Delivery == uplink.ExactlyOnce {
		subjects = append(subjects, l.cursor)
	}
	s.Note = "granted"
	if p := info.Data.Permissions; p != nil && p.Publish != nil {
		for _, subject := range subjects {
			if !p.Publish.allows(subject) {
				s.Note = ""
				s.Err = uplink.Config(fmt.Errorf("the user may not publish to %s (want that right in the server's settings)", subject))
				return s
			}
		}
	}
	return s
}

func (p *permissions) allows(subject string) bool {
	matches := func(pattern string) bool { return subjectMatches(pattern, subject) }
	return (len(p.Allow) == 0 || slices.ContainsFunc(p.Allow, matches)) && !slices.ContainsFunc(p.Deny, matches)
}

// subjectMatches tells whether a pattern with * and > takes a subject.
func subjectMatches(pattern, subject string) bool {
	want, got := strings.Split(pattern, "."), strings.Split(subject, ".")
	for i, w := range want {
		switch {
		case w == ">":
			return len(got) > i
		case i >= len(got), w != "*" && w != got[i]:
			return false
		}
	}
	return len(want) == len(got)
}

// probeDelivery says which deliveries the stream can keep, and fails where the one that is asked for is not among them.
func (c *Config) probeDelivery(ctx context.Context, env uplink.Env, l *link) uplink.Step {
	delivery := env.Promise.Delivery
	if delivery == "" {
		delivery = uplink.AtLeastOnce
	}
	s := uplink.Step{Name: "keep delivery " + string(delivery)}
	if l.stream == "" {
		if delivery == uplink.ExactlyOnce && !atLeast(l.nc.ConnectedServerVersion(), 2, 12) {
			s.Err = uplink.Config(fmt.Errorf("the server has version %s (want 2.12 or newer, or delivery: effectively_once)", l.nc.ConnectedServerVersion()))
		}
		return s
	}
	stream, err := l.js.Stream(ctx, l.stream)
	if err != nil {
		s.Err = err
		return s
	}
	cfg := &stream.CachedInfo().Config
	window, batches := checkWindow(cfg), checkBatches(ctx, l, cfg)
	if batches != nil && !uplink.IsConfig(batches) {
		s.Err = batches
		return s
	}
	could := []string{string(uplink.AtLeastOnce)}
	if window == nil {
		could = append(could, string(uplink.EffectivelyOnce))
	}
	if batches == nil {
		could = append(could, string(uplink.ExactlyOnce))
	}
	s.Note = "the stream could keep " + strings.Join(could, ", ")
	if delivery != uplink.ExactlyOnce {
		s.Note += fmt.Sprintf("; it recognizes a record that comes again for %v, so it is stored twice after a longer outage in the middle of a send", cfg.Duplicates)
	}
	switch delivery {
	case uplink.EffectivelyOnce:
		s.Err = window
	case uplink.ExactlyOnce:
		s.Err = batches
	default:
	}
	return s
}
