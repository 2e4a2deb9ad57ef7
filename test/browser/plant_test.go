package browser_test

import (
	"fmt"
	"math"
	"sync"
	"time"

	"edgegateway/control"
	"edgegateway/device"
	"edgegateway/pipeline"
)

// plant is a heating plant that exists only here: its figures move, and its uplink can be taken down.
type plant struct {
	start time.Time

	mu   sync.Mutex // guards the field below
	down bool
}

func newPlant() *plant { return &plant{start: time.Now()} }

func (p *plant) takeDown(down bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = down
}

// gather is what cmd/gateway would give to the Monitor.
func (p *plant) gather() control.Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	seconds := now.Sub(p.start).Seconds()
	stored := 18_402_000 + uint64(38*seconds)
	s := control.Status{
		Gateway: "heating-plant-north", Version: "0.1.0", Started: p.start.Add(-(9*24 + 5) * time.Hour), Time: now,
		Devices: []control.Device{
			p.boiler(now, seconds), p.pumps(now, seconds),
			{Name: "local-mqtt", Driver: "mqtt", Status: device.Status{State: device.Up, Since: ago(9 * 24 * time.Hour),
				Parts:    []device.Part{{Name: "hall-sensors", State: device.Up}, {Name: "meter-bridge", State: device.Up}},
				Counters: map[string]uint64{"publishes_total": 812_000}},
				Values: []control.LastValue{
					{Topic: "hall/2/co2", Value: wave(612, 18, 40, seconds, 0), Unit: "ppm", Time: ago(4 * time.Second)},
					{Topic: "hall/2/humidity", Value: wave(47, 2, 55, seconds, 1), Unit: "%", Time: ago(4 * time.Second)},
					{Topic: "hall/2/temperature", Value: wave(19.4, .3, 60, seconds, 1), Unit: "°C", Time: ago(4 * time.Second)},
					{Topic: "meters/gas/volume", Value: fmt.Sprintf("%.2f", 48_211.64+seconds/50), Unit: "m³", Time: ago(11 * time.Second)},
					{Topic: "meters/power/active", Value: wave(38.2, 4, 17, seconds, 1), Unit: "kW", Time: ago(time.Second)},
				}},
		},
		Streams: []control.Stream{
			{Name: "alarms", Lane: "alarms", Records: 1_204},
			{Name: "readings", Lane: "default", Records: stored},
		},
		Uplinks: []control.Uplink{
			{Name: "control-room", Driver: "nats", Stream: "alarms", Delivery: "at_least_once", Order: "key", State: control.Sending, Since: ago(40 * time.Hour), LastAck: ago(47 * time.Minute), Acked: 1_204},
			{Name: "control-room", Driver: "nats", Stream: "readings", Delivery: "effectively_once", Order: "strict", State: control.Sending, Since: ago(40 * time.Hour), LastAck: ago(800 * time.Millisecond), Acked: stored - 18_000_000},
			{Name: "head-office", Driver: "kafka", Stream: "readings", Delivery: "exactly_once", Order: "strict", State: control.Sending, Since: ago(6 * time.Hour), LastAck: ago(900 * time.Millisecond), Acked: stored - 18_000_000},
		},
		Lanes: []control.Lane{
			{Name: "alarms", State: control.LaneOK, Epoch: 1, Bytes: 1_400_000, MaxBytes: 64 << 20, Segments: 1, Commits: 1_190},
			{Name: "default", State: control.LaneOK, Epoch: 1, Bytes: 48_300_000, MaxBytes: 2 << 30, Segments: 3, Commits: 921_000},
		},
	}
	if p.down {
		office := &s.Uplinks[2]
		office.State, office.Since, office.NextTry = control.Waiting, ago(134*time.Minute), now.Add(9*time.Second)
		office.Error = "cannot reach kafka.head-office.example:9093: connection timed out"
		office.LastAck, office.Acked = ago(134*time.Minute), 95_000
		behind := 305_520 + uint64(38*seconds)
		office.Backlog = control.Backlog{Records: behind, Bytes: behind * 212, Age: 134 * time.Minute}
		s.Streams[1].Backlog = office.Backlog
		s.Lanes[1].Bytes, s.Lanes[1].Segments = 1_312_000_000, 79
		s.Lanes[1].FullIn = 26*time.Hour + 40*time.Minute
	}
	return s
}

func (p *plant) boiler(now time.Time, seconds float64) control.Device {
	t := now.Add(-600 * time.Millisecond)
	return control.Device{Name: "boiler-house", Driver: "modbus", Status: device.Status{State: device.Up, Since: now.Add(-53 * time.Hour),
		Parts:    []device.Part{{Name: "boiler-1", State: device.Up}, {Name: "boiler-2", State: device.Up}},
		Counters: map[string]uint64{"requests_total": 1_402_118, "errors_total": 12}},
		Values: []control.LastValue{
			{Topic: "boiler-house/boiler-1/burner/modulation", Value: wave(62, 9, 23, seconds, 0), Unit: "%", Time: t},
			{Topic: "boiler-house/boiler-1/flow/temperature", Value: wave(74.3, 1.8, 19, seconds, 1), Unit: "°C", Time: t},
			{Topic: "boiler-house/boiler-1/flue-gas/temperature", Value: wave(131.5, 4, 31, seconds, 1), Unit: "°C", Time: t},
			{Topic: "boiler-house/boiler-1/pressure", Value: wave(1.84, .03, 29, seconds, 2), Unit: "bar", Time: t},
			{Topic: "boiler-house/boiler-1/return/temperature", Value: wave(56.1, 1.1, 27, seconds, 1), Unit: "°C", Time: t},
			{Topic: "boiler-house/boiler-1/running", Value: "true", Time: t},
			{Topic: "boiler-house/boiler-2/flow/temperature", Value: wave(41.7, .4, 37, seconds, 1), Unit: "°C", Time: t},
			{Topic: "boiler-house/boiler-2/pressure", Value: wave(1.79, .02, 33, seconds, 2), Unit: "bar", Time: t},
			{Topic: "boiler-house/boiler-2/running", Value: "false", Time: t},
		}}
}

func (p *plant) pumps(now time.Time, seconds float64) control.Device {
	t := now.Add(-900 * time.Millisecond)
	d := control.Device{Name: "pump-station", Driver: "modbus", Status: device.Status{State: device.Up, Since: now.Add(-53 * time.Hour),
		Parts: []device.Part{{Name: "pump-a", State: device.Up}, {Name: "pump-b", State: device.Up}, {Name: "heat-meter", State: device.Up}}},
		Values: []control.LastValue{
			{Topic: "pump-station/heat-meter/energy", Value: fmt.Sprintf("%.3f", 9_412.338+seconds/900), Unit: "MWh", Time: t},
			{Topic: "pump-station/heat-meter/power", Value: wave(318, 12, 21, seconds, 0), Unit: "kW", Time: t},
			{Topic: "pump-station/pump-a/flow", Value: wave(21.6, .5, 13, seconds, 1), Unit: "m³/h", Time: t},
			{Topic: "pump-station/pump-a/speed", Value: wave(1_452, 11, 11, seconds, 0), Unit: "1/min", Time: t},
			{Topic: "pump-station/pump-b/flow", Value: wave(20.9, .5, 15, seconds, 1), Unit: "m³/h", Time: t},
			{Topic: "pump-station/pump-b/speed", Value: wave(1_448, 11, 12, seconds, 0), Unit: "1/min", Time: t},
		}}
	if p.down { // a second, smaller trouble
		lost := now.Add(-7 * time.Minute)
		d.State, d.Since = device.Degraded, lost
		d.Error = "1 of 3 units does not answer"
		d.Parts[1] = device.Part{Name: "pump-b", State: device.Down, Since: lost, Error: "no reply within 1 s"}
		for i := range d.Values[4:] {
			v := &d.Values[4+i]
			v.Value, v.Quality, v.Reason, v.Time = "", pipeline.Bad, "no reply within 1 s", now.Add(-time.Second)
		}
	}
	return d
}

// wave is a figure that swings around mean, with that many decimals.
func wave(mean, swing, period, seconds float64, decimals int) string {
	v := mean + swing*math.Sin(2*math.Pi*seconds/period) + swing/5*math.Sin(11*seconds/period)
	return fmt.Sprintf("%.*f", decimals, v)
}
