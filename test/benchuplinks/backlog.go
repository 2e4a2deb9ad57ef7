package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"edgegateway/pipeline"
	"edgegateway/uplink"
	"edgegateway/wal"
)

const (
	gateway = "bench"
	stream  = "line"
	epoch   = 7
	payload = 256 // bytes of a record as it is sent
)

// backlog is a real log, full of records, and the same records as they are sent.
type backlog struct {
	*wal.Log

	payloads []bare
	cursors  int
}

// bare is a record for a client that knows nothing of gateways.
type bare struct {
	id, topic, key string
	json           []byte
}

// message returns the n-th reading. Its JSON has 256 bytes.
func message(n int) (pipeline.Message, bare) {
	m := pipeline.Message{
		Time: time.Unix(1_700_000_000+int64(n), 123_456_789).UTC(), Source: "boiler", Topic: fmt.Sprintf("boiler/%d/flow", n%50),
		Value: pipeline.Float(20 + float64(n%1000)/7), Unit: "l/min",
	}
	id := pipeline.RecordID{Gateway: gateway, Stream: stream, Epoch: epoch, Seq: uint64(n)}
	text := pipeline.AppendJSON(nil, id, &m)
	m.Topic += strings.Repeat("_", max(0, payload-len(text)))
	text = pipeline.AppendJSON(nil, id, &m)
	return m, bare{id.String(), m.Topic, m.PartitionKey(), text}
}

// backlog fills a log. A cursor that never moves keeps it full.
func (b *bench) backlog(dir string, records int) (*backlog, error) {
	log, err := wal.Open(dir, wal.Options{NewEpoch: epoch, MaxBytes: 8 << 30})
	if err != nil {
		return nil, err
	}
	l := &backlog{Log: log}
	if _, err := log.Cursor("keeper", stream, wal.Oldest); err != nil {
		return nil, err
	}
	return l, fill(log, records, func(p bare) { l.payloads = append(l.payloads, p) })
}

func fill(log *wal.Log, records int, sent func(bare)) error {
	stored := make(chan error, 1)
	for n := 1; n <= records; {
		batch := wal.Batch{Urgent: true}
		for ; len(batch.Entries) < 2000 && n <= records; n++ {
			m, p := message(n)
			batch.Entries = append(batch.Entries, wal.Entry{Stream: stream, Time: m.Time, Data: pipeline.Encode(nil, &m)})
			sent(p)
		}
		if err := log.Append(context.Background(), batch, func(err error) { stored <- err }); err != nil {
			return err
		}
		if err := <-stored; err != nil {
			return err
		}
	}
	return nil
}

// send sends the whole backlog and returns when the log knows that it is delivered.
func (l *backlog) send(ctx context.Context, s subject, place string) error {
	l.cursors++
	name := fmt.Sprintf("far%d", l.cursors)
	cursor, err := l.Cursor(name, stream, wal.Oldest)
	if err != nil {
		return err
	}
	err = drain(ctx, cursor, s.far.driver(s.addr, place), s.promise())
	cursor.Close()
	if err == nil {
		err = l.Release(name, stream)
	}
	return err
}

// drain runs a Runner until nothing is left.
func drain(ctx context.Context, cursor *wal.Cursor, driver uplink.Driver, p uplink.Promise) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := uplink.New(uplink.RunnerConfig{
		Driver: driver, Cursor: cursor,
		Env: uplink.Env{Gateway: gateway, Stream: stream, Epoch: epoch, Uplink: "far", Promise: p},
	})
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	for at, end := cursor.Position(); at < end; at, end = cursor.Position() {
		select {
		case err := <-ended:
			return fmt.Errorf("the runner ended: %w", err)
		case <-time.After(time.Millisecond):
		}
		if s := r.Status(); s.State == uplink.Waiting || s.Dropped > 0 {
			return fmt.Errorf("the runner failed: %+v", s)
		}
	}
	cancel()
	return <-ended
}

// resident returns what this process has resident in MB: all, and without the pages of files.
func resident() (all, anonymous float64, err error) {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(text)) {
		var kib float64
		switch name, value, _ := strings.Cut(line, ":"); name {
		case "VmRSS", "RssAnon":
			if _, err := fmt.Sscanf(value, "%f kB", &kib); err != nil {
				return 0, 0, err
			}
			if name == "VmRSS" {
				all = kib * 1024 / 1e6
			} else {
				anonymous = kib * 1024 / 1e6
			}
		default:
		}
	}
	return all, anonymous, nil
}
