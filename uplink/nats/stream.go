package nats

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"edgegateway/uplink"
)

// findStream returns the name of the stream that takes the subject, and makes it if that is wanted.
func (c *Config) findStream(ctx context.Context, env uplink.Env, l *link) (string, error) {
	want := uplink.Expand(c.Stream, env)
	got, err := l.streamOf(ctx, l.subject)
	switch {
	case err == nil && (want == "" || want == got):
		return got, nil
	case err == nil:
		return "", uplink.Config(fmt.Errorf("subject %s goes to the stream %s, not to %s (want stream: %s, or another subject)",
			l.subject, got, want, got))
	case !isNotFound(err):
		return "", err
	case !c.Create:
		if want == "" {
			want = "a stream"
		}
		return "", uplink.Config(fmt.Errorf("no stream on the server takes the subject %s (want %s to have it among its subjects, or create: true)",
			l.subject, want))
	}
	cfg := jetstream.StreamConfig{
		Name: want, Subjects: []string{wildcards(c.Subject)}, Storage: jetstream.FileStorage,
		Replicas: max(1, c.Replicas), Duplicates: c.DuplicateWindow,
		Description: "records of edge gateways",
	}
	if env.Promise.Delivery == uplink.ExactlyOnce {
		cfg.Subjects = append(cfg.Subjects, wildcards(c.cursorSubject()))
		cfg.AllowAtomicPublish, cfg.AllowRollup = true, true
	}
	_, err = within(ctx, func(ctx context.Context) (jetstream.Stream, error) { return l.js.CreateStream(ctx, cfg) })
	if apiCode(err) == jetstream.JSErrCodeStreamNameInUse {
		// Another stream's session, or another gateway, has made it in the meantime.
		if got, again := l.streamOf(ctx, l.subject); again == nil && got == want {
			return got, nil
		}
	}
	if err != nil {
		return "", uplink.Config(fmt.Errorf("make the stream %s: %w", want, err))
	}
	return want, nil
}

// wildcards turns a subject's template into the subjects that all gateways, streams and uplinks make of it.
func wildcards(template string) string {
	words := strings.Split(template, ".")
	for i, w := range words {
		if strings.Contains(w, "{") {
			words[i] = "*"
		}
	}
	return strings.Join(words, ".")
}

// checkBatches says why a stream cannot keep the cursor in one step with the data. A server that does not know such batches would
// store them message by message and say nothing, so what it does not state it does not have.
func checkBatches(ctx context.Context, l *link, cfg *jetstream.StreamConfig) error {
	refuse := func(format string, args ...any) error {
		return uplink.Config(fmt.Errorf(format, args...))
	}
	version := l.nc.ConnectedServerVersion()
	switch {
	case !atLeast(version, 2, 12):
		return refuse("%s runs version %s, which cannot store the cursor in one step with the data (want every server to be 2.12 or "+
			"newer, or delivery: effectively_once)", l.address, version)
	case !cfg.AllowAtomicPublish:
		return refuse("stream %s takes no atomic batches, which exactly_once needs (want allow_atomic: true in its settings, "+
			"or delivery: effectively_once)", l.stream)
	case cfg.Sealed:
		return refuse("stream %s is sealed and takes nothing more (want another stream)", l.stream)
	case cfg.Retention != jetstream.LimitsPolicy:
		return refuse("stream %s removes messages as they are consumed, and so the cursor (want retention: limits, or delivery: effectively_once)", l.stream)
	case !cfg.AllowRollup || cfg.DenyPurge:
		return refuse("stream %s cannot replace the cursor, so a message would be left for each batch (want allow_rollup_hdrs: true and "+
			"deny_purge: false in its settings)", l.stream)
	}
	if slices.ContainsFunc(cfg.Subjects, func(pattern string) bool { return subjectMatches(pattern, l.cursor) }) {
		return nil
	}
	switch got, err := l.streamOf(ctx, l.cursor); {
	case isNotFound(err):
		return refuse("stream %s does not take the subject of the cursor, %s (want it among its subjects, or another cursor_subject)", l.stream, l.cursor)
	case err != nil:
		return err
	case got != l.stream:
		return refuse("the subject of the cursor, %s, goes to the stream %s (want a cursor_subject that goes to %s, as the data does)", l.cursor, got, l.stream)
	}
	return nil
}

// atLeast compares a version as servers state it: 2.15.3, or 2.12.0-RC.1.
func atLeast(version string, major, minor int) bool {
	parts := strings.SplitN(version, ".", 3)
	if len(parts) < 2 {
		return false
	}
	x, err := strconv.Atoi(parts[0])
	if err != nil {
		return false
	}
	y, err := strconv.Atoi(parts[1])
	return err == nil && (x > major || x == major && y >= minor)
}
