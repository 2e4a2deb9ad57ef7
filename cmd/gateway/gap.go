package main

import (
	"encoding/json"
	"time"

	"edgegateway/pipeline"
	"edgegateway/wal"
)

// What marks a gap record for the far side; docs/payload.md describes it.
const (
	gapType   = "application/vnd.edge-gateway.gap+json"
	gapSource = "edge-gateway"
)

// gap is the value of a gap record.
type gap struct {
	First  uint64    `json:"first,omitempty"` // without them where the records never had a number
	Last   uint64    `json:"last,omitempty"`
	Count  uint64    `json:"count"`
	Reason string    `json:"reason"`
	Time   time.Time `json:"time"`
}

// gapRecord is wal.Options.Gap: a message that says which records are gone, for the streams that want it.
func (l *laneRun) gapRecord(stream string, r wal.DropRange) []byte {
	if !l.gaps[stream] {
		return nil
	}
	value, err := json.Marshal(map[string]gap{"gap": {r.First, r.Last, r.Count, r.Why.String(), r.When.UTC()}})
	if err != nil { // a year beyond 9999
		return nil
	}
	return pipeline.Encode(nil, &pipeline.Message{
		Time: r.When, Source: gapSource, Topic: gapSource + "/gap",
		Headers: []pipeline.Header{{Name: "content-type", Value: gapType}},
		Value:   pipeline.Bytes(value), Quality: pipeline.Bad, Reason: "gap",
		Clock: pipeline.Clock{Trusted: r.When.Unix() > buildTime},
	})
}
