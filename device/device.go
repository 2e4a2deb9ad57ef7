// Package device runs the field side: each device produces messages and puts them into the pipeline.
//
//	device/modbus   polls units on Modbus TCP connections     (non-replayable)
//	device/mqtt     the local MQTT broker                      (replayable: QoS 1 and 2)
//
// A driver is a Config that the config file is decoded into, with one method, Open. It knows the pipeline and nothing
// to the right of it.
package device

import (
	"context"
	"log/slog"
	"time"

	"edgegateway/pipeline"
)

// Driver is a device's section of the config file, strictly decoded. A driver may also have `Check() []pipeline.Problem`
// for what a single field cannot tell.
type Driver interface {
	// Open makes the device. It never dials and never blocks; it may bind a local port, and its error ends the start
	// of this device only.
	Open(env Env) (Device, error)
}

// Env is what the gateway gives a driver.
type Env struct {
	Name string // the device's name in the config; messages carry it as their source
	Log  *slog.Logger
	Sink pipeline.Sink
}

// Device is a running source of messages.
type Device interface {
	// Run works until ctx ends, and returns only when everything it started has ended. Faults of the field never end
	// it: they show in Status and as messages with quality bad.
	Run(ctx context.Context) error
	// Status tells how the device does now. It is cheap and safe to call from any goroutine.
	Status() Status
}

// State is how a device does, in one word.
type State string

// The states of a device.
const (
	Starting State = "starting" // nothing has been tried yet
	Up       State = "up"       // all of it answers
	Degraded State = "degraded" // part of it answers
	Down     State = "down"     // nothing of it answers
)

// Status is how a device does.
type Status struct {
	State State
	Since time.Time // when State began
	// Error says in plain words what is wrong and, where it can be told, what to do. Empty when State is Up.
	Error string
	// Parts are the device's parts that fail one by one: a Modbus link's units, a broker's signed-in clients.
	Parts []Part
	// Counters count since the start, by name in the style of Prometheus without prefix: "requests_total".
	Counters map[string]uint64
}

// Part is one part of a device that has a state of its own.
type Part struct {
	Name  string
	State State
	Since time.Time
	Error string
}
