package modbus

import (
	"edgegateway/device"
	"edgegateway/pipeline"
)

// Request is one request of a plan.
type Request struct {
	Table       string
	Addr, Count int
	Points      int
}

// Plan returns the requests by which a unit is read.
func Plan(u Unit) []Request {
	points := make([]*point, 0, len(u.Points))
	for _, p := range u.Points {
		points = append(points, newPoint("device", u, p))
	}
	names := map[table]string{holding: "holding", input: "input", coil: "coil", discrete: "discrete"}
	var requests []Request
	for _, b := range plan(&unit{}, points, u.MaxRegisters, u.MaxBits) {
		requests = append(requests, Request{names[b.table], b.addr, b.count, len(b.points)})
	}
	return requests
}

// Decode decodes the bytes of a point.
func Decode(p Point, raw []byte) (v pipeline.Value, noValue string) {
	return newDecoder(p, orders[p.WordOrder])(raw)
}

// PanicOnce makes the decoder of a point of the first block panic once.
func PanicOnce(d device.Device) {
	p := d.(*link).units[0].blocks[0].points[0]
	decode := p.decode
	p.decode = func([]byte) (pipeline.Value, string) {
		p.decode = decode
		panic("decoder fell over")
	}
}
