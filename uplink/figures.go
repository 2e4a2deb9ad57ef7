package uplink

import (
	"slices"
	"strings"
	"sync"
)

// Metric is a metric that a driver keeps beside the common ones. Its name begins with the driver's, ends with the unit, and for a
// counter with _total; on /metrics edge_gateway_uplink_ stands before it.
type Metric struct{ Name, Help string }

// IsCounter reports whether it only grows.
func (m Metric) IsCounter() bool { return strings.HasSuffix(m.Name, "_total") }

// Figure is a Metric with its value.
type Figure struct {
	Metric
	Value float64
}

// Figures are what the sessions of one uplink and stream count and measure. They outlive the sessions, and so counters go on. The
// zero value is ready; a nil one forgets everything.
type Figures struct {
	mu   sync.Mutex // guards list
	list []Figure   // sorted by name
}

// Set sets a gauge.
func (f *Figures) Set(m Metric, value float64) { f.change(m, func(v *float64) { *v = value }) }

// Add adds to a metric, which begins at 0. Adding 0 has a counter shown before there is anything to count.
func (f *Figures) Add(m Metric, value float64) { f.change(m, func(v *float64) { *v += value }) }

func (f *Figures) change(m Metric, do func(*float64)) {
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	at, found := slices.BinarySearchFunc(f.list, m.Name, func(have Figure, name string) int { return strings.Compare(have.Name, name) })
	if !found {
		f.list = slices.Insert(f.list, at, Figure{Metric: m})
	}
	do(&f.list[at].Value)
}

// List returns them sorted by name.
func (f *Figures) List() []Figure {
	if f == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.list)
}
