package nats

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"edgegateway/pipeline"
	"edgegateway/uplink"
)

// shortestWindow is the server's own default, and what a stream must remember for effectively_once: a session that has broken
// is found out, and its records sent again, in less. Only tests change it.
var shortestWindow = 2 * time.Minute

// checkWindow refuses a stream that recognizes a record that comes again for too short a time.
func checkWindow(cfg *jetstream.StreamConfig) error {
	if cfg.Duplicates < shortestWindow {
		return uplink.Config(fmt.Errorf("stream %s recognizes a record sent twice for %v only, too short for effectively_once (want its "+
			"duplicate_window to be %v at least, and longer than outages last; or delivery: at_least_once)", cfg.Name, cfg.Duplicates, shortestWindow))
	}
	return nil
}

var (
	duplicateWindow = uplink.Metric{
		Name: "nats_duplicate_window_seconds",
		Help: "How long the stream recognizes a record that comes again. What has been in doubt for longer may be stored twice.",
	}
	lateRepeats = uplink.Metric{
		Name: "nats_late_repeats_total",
		Help: "Records that came again, or may have, later than the duplicate window, and so may be stored twice, since the start.",
	}
)

// repeats is what a session of effectively_once must know to say which records the stream will take twice: those that it had
// before an outage longer than its window, and of which the gateway was not told.
type repeats struct {
	log     *slog.Logger
	figures *uplink.Figures
	stream  string
	window  time.Duration
	prefix  string        // of the ids of the log's records
	last    uint64        // the last of them that the stream has
	age     time.Duration // since it was stored
}

// openWindow makes the limit of effectively_once visible: how long the stream recognizes a record that comes again, and, once it is
// known what comes again, whether that was too long ago. The age is by the server's clock alone, for a gateway's may be wrong.
func openWindow(ctx context.Context, env uplink.Env, l *link, stream jetstream.Stream) (*repeats, error) {
	info := stream.CachedInfo()
	if err := checkWindow(&info.Config); err != nil || env.Log == nil {
		return nil, err
	}
	env.Figures.Add(lateRepeats, 0)
	env.Log.Warn("a record that comes again later than the duplicate window is stored twice",
		"stream", l.stream, "duplicate_window", info.Config.Duplicates.String())
	prefix := pipeline.RecordID{Gateway: env.Gateway, Stream: env.Stream, Epoch: env.Epoch}.String()
	r := &repeats{log: env.Log, figures: env.Figures, stream: l.stream, window: info.Config.Duplicates, prefix: strings.TrimSuffix(prefix, "0")}
	m, err := lastOn(ctx, stream, l.subject)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, nil //nolint:nilnil // nothing can come again
	}
	if err != nil {
		return nil, err
	}
	seq, ok := strings.CutPrefix(m.Header.Get(jetstream.MsgIDHeader), r.prefix)
	if !ok {
		return nil, nil //nolint:nilnil // another stream has the subject too, or a log before this one
	}
	if r.last, err = strconv.ParseUint(seq, 10, 64); err != nil {
		return nil, nil //nolint:nilnil,nilerr // not an id of ours
	}
	r.age = info.TimeStamp.Sub(m.Time)
	return r, nil
}

// warn says which records are stored a second time when the first one to be sent is this.
func (r *repeats) warn(first pipeline.RecordID) {
	if r.age <= r.window || first.Seq > r.last || !strings.HasPrefix(first.String(), r.prefix) {
		return
	}
	r.figures.Add(lateRepeats, float64(r.last-first.Seq+1))
	r.log.Warn("records may now be stored twice: the gateway was not told that the stream has them, and it has forgotten their ids since",
		"first", first.Seq, "last", r.last, "stream", r.stream, "duplicate_window", r.window.String(), "stored_ago", r.age.Round(time.Second).String())
}
