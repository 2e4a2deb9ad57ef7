package modbus

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"edgegateway/device"
)

// counters count since the start.
type counters struct {
	requests, errors, exceptions, timeouts, skipped, reconnects, refused, panics atomic.Uint64
}

func (c *counters) read() map[string]uint64 {
	return map[string]uint64{
		"requests_total":         c.requests.Load(),
		"errors_total":           c.errors.Load(), // dials, and requests without a usable answer
		"exceptions_total":       c.exceptions.Load(),
		"timeouts_total":         c.timeouts.Load(),
		"skipped_polls_total":    c.skipped.Load(),
		"reconnects_total":       c.reconnects.Load(),
		"readings_refused_total": c.refused.Load(),
		"panics_total":           c.panics.Load(),
	}
}

// health is the device's status as others see it. Its log lines are those of the device: one for each change of state.
type health struct {
	log *slog.Logger

	mu      sync.Mutex // guards the fields below
	parts   []device.Part
	state   device.State
	since   time.Time
	refused string // why readings are not stored, "" where they are
}

func newHealth(log *slog.Logger, units []*unit) *health {
	h := &health{log: log, state: device.Starting, since: time.Now()}
	for _, u := range units {
		h.parts = append(h.parts, device.Part{Name: u.name, State: device.Starting, Since: h.since})
	}
	return h
}

// unit notes the state of one unit.
func (h *health) unit(index int, state device.State, fault string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := &h.parts[index]
	p.Error = fault
	if p.State == state {
		return
	}
	p.State, p.Since = state, time.Now()
	if state == device.Up {
		h.log.Info("unit is up", "unit", p.Name)
	} else {
		h.log.Warn("unit does not deliver all values", "unit", p.Name, "state", state, "err", fault)
	}
	h.sumLocked()
}

// stored notes whether the pipeline takes the readings: err is nil where it does.
func (h *health) stored(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case err == nil && h.refused != "":
		h.refused = ""
		h.log.Info("readings are stored again")
	case err != nil && h.refused == "":
		h.refused = err.Error()
		h.log.Error("readings are not stored", "err", err)
	case err != nil:
		h.refused = err.Error()
		return
	default:
		return
	}
	h.sumLocked()
}

func (h *health) sumLocked() {
	n := map[device.State]int{}
	for _, p := range h.parts {
		n[p.State]++
	}
	state := device.Degraded
	switch len(h.parts) {
	case n[device.Down]:
		state = device.Down
	case n[device.Up]:
		state = device.Up
	case n[device.Up] + n[device.Starting]:
		state = device.Starting
	}
	if state == device.Up && h.refused != "" {
		state = device.Degraded
	}
	if state != h.state {
		h.state, h.since = state, time.Now()
	}
}

func (h *health) read() device.Status {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := device.Status{State: h.state, Since: h.since, Parts: append([]device.Part(nil), h.parts...)}
	if h.state == device.Up {
		return s
	}
	if h.refused != "" {
		s.Error = "readings are not stored: " + h.refused
		return s
	}
	for _, p := range h.parts {
		if p.Error != "" {
			s.Error = "unit " + p.Name + ": " + p.Error
			return s
		}
	}
	return s
}
