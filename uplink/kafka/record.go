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

// load is what one Send hands over, made ready for the client: what the client takes itself is made when its turn comes, for it is
// larger. Its room is used again once the broker has stored all of it: what failed, the client may still hold.
type load struct {
	out  []outgoing
	text []byte // keys, record ids and payloads
	left atomic.Int32
}

// outgoing is a record on its way. One that no batch takes, or whose topic is not known, has err.
type outgoing struct {
	seq     uint64
	err     error
	to      *terms      // those of its topic
	at      int64       // Kafka's time, in milliseconds
	rec     *kgo.Record // when it is produced
	text    [4]uint32   // in the load: the record id, the key, the payload, and where that ends
	size    int32
	quality pipeline.Quality
	drop    bool // for good
}

// slab is the room for records that are in the client.
type slab struct {
	records []kgo.Record
	headers []kgo.RecordHeader
	left    atomic.Int32
}

// loads lends loads and slabs. It keeps those that came back until the collector wants the room.
type loads struct {
	heads heads
	pool  sync.Pool
	slabs sync.Pool
}

// take returns an empty load with room for records.
func (l *loads) take(recs []uplink.Record) *load {
	text := 0
	for i := range recs {
		text += len(l.heads.prefix) + 20 + len(recs[i].Message.PartitionKey()) + len(recs[i].JSON)
	}
	if old, ok := l.pool.Get().(*load); ok && cap(old.out) >= len(recs) && cap(old.text) >= text {
		old.out, old.text = old.out[:0], old.text[:0]
		return old
	}
	return &load{out: make([]outgoing, 0, len(recs)), text: make([]byte, 0, text+text/32)}
}

// stored says that n more records of a load are.
func (l *loads) stored(p *load, n int) {
	if p.left.Add(-int32(n)) == 0 {
		clear(p.out)
		l.pool.Put(p)
	}
}

// add puts a record into a load. A time older than what the topic keeps would have the broker delete the record when it next looks,
// perhaps before anybody has read it: it gets the time at which it is sent, and the payload has its own.
func (l *loads) add(p *load, o outgoing, rec *uplink.Record, now time.Time) {
	o.text[0] = uint32(len(p.text))
	p.text = append(p.text, l.heads.prefix...)
	p.text = strconv.AppendUint(p.text, rec.ID.Seq, 10)
	o.text[1] = uint32(len(p.text))
	p.text = append(p.text, rec.Message.PartitionKey()...)
	o.text[2] = uint32(len(p.text))
	p.text = append(p.text, rec.JSON...)
	o.text[3] = uint32(len(p.text))
	at := rec.Message.Time
	if keeps := o.to.keeps; keeps > 0 && now.Sub(at) > keeps/2 {
		at = now
	}
	o.at, o.quality = at.UnixMilli(), rec.Message.Quality
	p.out = append(p.out, o)
}

// slabRecords is how many records a slab has room for.
const slabRecords = 256

// slab returns room for n records, slabRecords at most.
func (l *loads) slab(n int) *slab {
	s, ok := l.slabs.Get().(*slab)
	if !ok {
		s = &slab{records: make([]kgo.Record, slabRecords), headers: make([]kgo.RecordHeader, 0, slabRecords*headCount)}
		for range slabRecords {
			s.headers = append(s.headers, l.heads.all...)
		}
	}
	s.left.Store(int32(n))
	return s
}

// produced says that one more record of a slab is stored.
func (l *loads) produced(s *slab) {
	if s.left.Add(-1) == 0 {
		l.slabs.Put(s)
	}
}

// record makes what Kafka's consumers get of a record, in the n-th place of a slab.
func (l *loads) record(p *load, o *outgoing, s *slab, n int) *kgo.Record {
	id, key, payload, end := int(o.text[0]), int(o.text[1]), int(o.text[2]), int(o.text[3])
	headers := s.headers[n*headCount : (n+1)*headCount : (n+1)*headCount]
	headers[headSeq].Value = p.text[id+len(l.heads.prefix) : key : key]
	headers[headID].Value = p.text[id:key:key]
	headers[headQuality].Value = l.heads.quality(o.quality)
	s.records[n] = kgo.Record{
		Topic: o.to.topic, Partition: byKey, Key: p.text[key:payload:payload], Value: p.text[payload:end:end], Timestamp: time.UnixMilli(o.at), Headers: headers,
	}
	o.rec = &s.records[n]
	return o.rec
}

// seqOf returns the sequence of a record that record has made.
func seqOf(rec *kgo.Record) uint64 {
	seq, _ := strconv.ParseUint(string(rec.Headers[headSeq].Value), 10, 64) // add has written it
	return seq
}

// payload returns the bytes of a record's key and payload.
func (o *outgoing) payload() int { return int(o.text[3] - o.text[1]) }

// chunk returns how many records fit so many bytes of keys and payloads, one at the least, and how many they take.
func chunk(out []outgoing, limit int) (n, bytes int) {
	for i := range out {
		more := out[i].payload()
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
