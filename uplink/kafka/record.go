package kafka

import (
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"edgegateway/pipeline"
	"edgegateway/uplink"
)

// heads are the headers of a session's records. They repeat the record id for those who do not read the payload.
type heads struct {
	all       []kgo.RecordHeader // in their order; those that differ from record to record have no value here
	prefix    string             // of the record id
	qualities [3][]byte
}

// Where the headers that differ stand.
const (
	headSeq = iota + 4
	headID
	headQuality
	headCount
)

func newHeads(env uplink.Env) heads {
	header := func(key, value string) kgo.RecordHeader { return kgo.RecordHeader{Key: key, Value: []byte(value)} }
	h := heads{
		all: []kgo.RecordHeader{
			header("gw-id", env.Gateway), header("gw-stream", env.Stream),
			header("gw-epoch", strconv.FormatUint(env.Epoch, 10)), header("content-type", "application/json"),
			headSeq: {Key: "gw-seq"}, headID: {Key: "record-id"}, headQuality: {Key: "quality"},
		},
		prefix: env.Gateway + "/" + env.Stream + "/" + strconv.FormatUint(env.Epoch, 10) + "/",
	}
	for q := range h.qualities {
		h.qualities[q] = []byte(pipeline.Quality(q).String())
	}
	return h
}

func (h *heads) quality(q pipeline.Quality) []byte {
	if int(q) < len(h.qualities) {
		return h.qualities[q]
	}
	return []byte(q.String())
}

// load is what one Send hands over, made ready for the client. Its room is used again once the broker has stored all of it: what
// failed, the client may still hold.
type load struct {
	out     []outgoing
	records []kgo.Record
	headers []kgo.RecordHeader
	text    []byte // keys and record ids
	left    atomic.Int32
}

// outgoing is a record on its way. One that no batch takes, or whose topic is not known, only has err.
type outgoing struct {
	seq   uint64
	size  int
	batch int // bytes that its topic takes in one batch
	rec   *kgo.Record
	err   error
	drop  bool // for good
}

// loads lends loads. It keeps those that came back until the collector wants the room.
type loads struct {
	heads heads
	pool  sync.Pool
}

// take returns an empty load with room for n records.
func (l *loads) take(n int) *load {
	if old, ok := l.pool.Get().(*load); ok && cap(old.records) >= n {
		old.out, old.records, old.text = old.out[:0], old.records[:0], old.text[:0]
		return old
	}
	p := &load{out: make([]outgoing, 0, n), records: make([]kgo.Record, 0, n), headers: make([]kgo.RecordHeader, 0, n*headCount)}
	for range n {
		p.headers = append(p.headers, l.heads.all...)
	}
	return p
}

// stored says that n more records of a load are.
func (l *loads) stored(p *load, n int) {
	if p.left.Add(-int32(n)) > 0 {
		return
	}
	for i := range p.records {
		p.records[i].Value = nil // payloads share memory with others
	}
	l.pool.Put(p)
}

// seqOf returns the sequence of a record that was made by add.
func seqOf(rec *kgo.Record) uint64 {
	seq, _ := strconv.ParseUint(string(rec.Headers[headSeq].Value), 10, 64) // add has written it
	return seq
}

// add makes what Kafka's consumers get of a record. A time older than what the topic keeps would have the broker delete the record
// when it next looks, perhaps before anybody has read it: it gets the time at which it is sent, and the payload has its own.
func (l *loads) add(p *load, rec *uplink.Record, topic string, keeps time.Duration, now time.Time) *kgo.Record {
	n := len(p.records)
	from := len(p.text)
	p.text = append(p.text, l.heads.prefix...)
	p.text = strconv.AppendUint(p.text, rec.ID.Seq, 10)
	id := len(p.text)
	p.text = append(p.text, rec.Message.PartitionKey()...)
	headers := p.headers[n*headCount : (n+1)*headCount : (n+1)*headCount]
	headers[headSeq].Value = p.text[from+len(l.heads.prefix) : id : id]
	headers[headID].Value = p.text[from:id:id]
	headers[headQuality].Value = l.heads.quality(rec.Message.Quality)
	at := rec.Message.Time
	if keeps > 0 && now.Sub(at) > keeps/2 {
		at = now
	}
	p.records = append(p.records, kgo.Record{
		Topic: topic, Partition: byKey, Key: p.text[id:len(p.text):len(p.text)], Value: rec.JSON, Timestamp: at, Headers: headers,
	})
	return &p.records[n]
}

// chunk returns how many records fit so many bytes, one at the least, and how many bytes they take.
func chunk(out []outgoing, limit int) (n, bytes int) {
	for i := range out {
		more := out[i].size
		if i > 0 && bytes+more > limit {
			return i, bytes
		}
		bytes += more
	}
	return len(out), bytes
}

// fits says why a record of a size is too large for any batch of ours; nil if it is not.
func fits(size int) error {
	if size > recordBytes {
		return fmt.Errorf("the record has %d bytes with its headers, a batch takes %d", size, recordBytes)
	}
	return nil
}

// size returns no less than what a record takes of a batch.
func size(rec *uplink.Record) int {
	const names = 200 // of the headers, their fixed values and the framing
	return len(rec.JSON) + len(rec.Message.PartitionKey()) + 2*len(rec.ID.Gateway) + 2*len(rec.ID.Stream) + names
}
