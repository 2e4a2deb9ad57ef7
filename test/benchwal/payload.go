package main

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
)

const payloadBytes = 256

// payloads are records to be appended. There are so many that a codec never sees one twice in a commit.
type payloads struct {
	kind string
	all  [][]byte
	n    atomic.Int64
}

func (p *payloads) next() []byte { return p.all[int(p.n.Add(1))%len(p.all)] }

const (
	incompressible = "incompressible"
	telemetry      = "telemetry"
)

// newPayloads makes records of 256 bytes: of noise, or JSON as a poller sends it.
func newPayloads(kind string) *payloads {
	const count = 16384
	p := &payloads{kind: kind, all: make([][]byte, count)}
	r := rand.NewChaCha8([32]byte{1})
	for i := range p.all {
		p.all[i] = make([]byte, payloadBytes)
		_, _ = r.Read(p.all[i])
	}
	if kind == telemetry {
		rnd := rand.New(r)
		for i := range p.all {
			copy(p.all[i], reading(rnd, i, true))
		}
	}
	return p
}

// points of a plant, as a poller names them.
func points() []string {
	return []string{
		"boiler/kettle/water", "boiler/kettle/return", "boiler/flue/oxygen", "pump-3/drive/current", "pump-3/drive/speed",
		"tank-1/level/raw", "tank-1/level/filtered", "meter/grid/power_l1", "meter/grid/power_l2", "meter/grid/energy",
	}
}

// reading is one value of a poll in the form of docs/payload.md, without the members that the log adds; the long form
// has those too and is filled up to 256 bytes with headers.
func reading(rnd *rand.Rand, i int, long bool) []byte {
	point := points()[i%len(points())]
	stamp := fmt.Sprintf("2026-11-29T%02d:%02d:%02d.%09dZ", i/3600%24, i/60%60, i%60, rnd.IntN(1e9))
	value := fmt.Sprintf("%.2f", 20+80*rnd.Float64())
	if !long {
		return fmt.Appendf(nil, `{"time":%q,"topic":%q,"value":%s,"quality":"good"}`, stamp, point, value)
	}
	text := fmt.Appendf(nil, `{"id":"plant-7/telemetry/1795985771/%d","gateway":"plant-7","stream":"telemetry",`+
		`"epoch":1795985771,"seq":%d,"time":%q,"source":"boiler","topic":%q,"value":%s,"unit":"degC","quality":"good"`,
		1000+i, 1000+i, stamp, point, value)
	for len(text) < payloadBytes-1 {
		text = append(text, ' ')
	}
	return append(text[:payloadBytes-1], '}')
}
