package nats

import (
	"context"
	"errors"
	"math"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"edgegateway/pipeline"
	"edgegateway/uplink"
)

var _ uplink.Knower = (*session)(nil)

// Knows implements uplink.Knower. The last message of the subject says how far the stream came, by its message id. Where consumers have
// taken that away, or others write to the subject as well, the server is asked for the very id.
func (s *session) Knows(ctx context.Context, id pipeline.RecordID) (bool, error) {
	stream, err := s.js.Stream(ctx, s.stream)
	if err != nil {
		return false, s.explain(err)
	}
	switch m, err := stream.GetLastMsgForSubject(ctx, s.subject); {
	case err == nil:
		if at, ok := idOf(m.Header.Get(jetstream.MsgIDHeader), id); ok {
			return at.Epoch == id.Epoch && at.Seq >= id.Seq, nil
		}
	case !errors.Is(err, jetstream.ErrMsgNotFound):
		return false, s.explain(err)
	}
	return s.remembers(ctx, id, stream.CachedInfo().Config.Replicas)
}

// idOf returns epoch and sequence of a message id, where it is of the same stream of the same gateway as another one.
func idOf(text string, like pipeline.RecordID) (at uplink.FarCursor, ok bool) {
	rest, ok := strings.CutPrefix(text, like.Gateway+"/"+like.Stream+"/")
	if !ok {
		return at, false
	}
	at, err := parseCursor(rest)
	return at, err == nil
}

// noMessage is the id of no message.
const noMessage = "edge-gateway asks only"

// remembers asks for a message id within the duplicate window: a message with that id is published on a condition that does not hold.
// A server looks for repeats before the condition, so it either says that this is one, or refuses it; it stores nothing. With
// replicas that holds for the number of the last message, and since 2.12; older ones would take the record itself for a repeat
// afterwards, and are not asked.
func (s *session) remembers(ctx context.Context, id pipeline.RecordID, replicas int) (bool, error) {
	m := &nats.Msg{Subject: s.subject, Header: nats.Header{jetstream.MsgIDHeader: {id.String()}, jetstream.ExpectedStreamHeader: {s.stream}}}
	switch {
	case replicas <= 1:
		m.Header.Set(jetstream.ExpectedLastMsgIDHeader, noMessage)
	case atLeast(s.nc.ConnectedServerVersion(), 2, 12):
		m.Header.Set(jetstream.ExpectedLastSeqHeader, strconv.FormatUint(math.MaxInt64, 10))
	default:
		return false, nil
	}
	ack, err := s.js.PublishMsg(ctx, m, jetstream.WithRetryAttempts(0))
	code := apiCode(err)
	switch {
	case code == jetstream.JSErrCodeStreamWrongLastSequence, code == jetstream.JSErrCodeStreamWrongLastSequenceConstant, code == codeWrongLastID:
		return false, nil
	case err != nil:
		return false, s.explain(err)
	}
	return ack.Duplicate, nil
}
