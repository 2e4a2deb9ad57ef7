package kafka

import (
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"edgegateway/pipeline"
	"edgegateway/uplink"
)

// heads are the headers that are the same in each record of a session. They repeat the record id for those who do not read
// the payload.
type heads struct {
	fixed  []kgo.RecordHeader
	prefix string // of the record id
}

func newHeads(env uplink.Env) heads {
	header := func(key, value string) kgo.RecordHeader { return kgo.RecordHeader{Key: key, Value: []byte(value)} }
	return heads{
		fixed: []kgo.RecordHeader{
			header("gw-id", env.Gateway), header("gw-stream", env.Stream),
			header("gw-epoch", strconv.FormatUint(env.Epoch, 10)), header("content-type", "application/json"),
		},
		prefix: env.Gateway + "/" + env.Stream + "/" + strconv.FormatUint(env.Epoch, 10) + "/",
	}
}

// record makes what Kafka's consumers get. A time older than what the topic keeps would have the broker delete the record when it
// next looks, perhaps before anybody has read it: it gets the time at which it is sent, and the payload has its own.
func (h *heads) record(rec *uplink.Record, topic string, keeps time.Duration, now time.Time) *kgo.Record {
	key, quality := rec.Message.PartitionKey(), rec.Message.Quality
	buf := make([]byte, 0, len(h.prefix)+20+len(key))
	buf = strconv.AppendUint(append(buf, h.prefix...), rec.ID.Seq, 10)
	id := len(buf)
	buf = append(buf, key...)
	headers := make([]kgo.RecordHeader, len(h.fixed), len(h.fixed)+3)
	copy(headers, h.fixed)
	at := rec.Message.Time
	if keeps > 0 && now.Sub(at) > keeps/2 {
		at = now
	}
	return &kgo.Record{
		Topic: topic, Key: buf[id:], Value: rec.JSON, Timestamp: at,
		Headers: append(headers,
			kgo.RecordHeader{Key: "gw-seq", Value: buf[len(h.prefix):id:id]},
			kgo.RecordHeader{Key: "record-id", Value: buf[:id:id]},
			kgo.RecordHeader{Key: "quality", Value: qualityText(quality)}),
	}
}

func qualityText(q pipeline.Quality) []byte { return []byte(q.String()) }

// chunk returns how many records fit so many bytes, one at the least, and how many bytes they take.
func chunk(recs []uplink.Record, limit int) (n, bytes int) {
	for i := range recs {
		more := size(&recs[i])
		if i > 0 && bytes+more > limit {
			return i, bytes
		}
		bytes += more
	}
	return len(recs), bytes
}

// fits says why a record is too large for any batch of ours; nil if it is not.
func fits(rec *uplink.Record) error {
	if n := size(rec); n > recordBytes {
		return fmt.Errorf("the record has %d bytes with its headers, a batch takes %d", n, recordBytes)
	}
	return nil
}

// size returns no less than what a record takes of a batch.
func size(rec *uplink.Record) int {
	const names = 200 // of the headers, their fixed values and the framing
	return len(rec.JSON) + len(rec.Message.PartitionKey()) + 2*len(rec.ID.Gateway) + 2*len(rec.ID.Stream) + names
}
