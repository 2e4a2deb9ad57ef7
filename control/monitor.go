package control

import (
	"context"
	"sync"
	"time"
)

const (
	samplePeriod = time.Second
	rateWindow   = 10 * time.Second
	growthWindow = 60 * time.Second // longer than a stall of the far broker that mends itself

	fillWindow = 10 * time.Minute // over which the growth of a lane is measured
	wearWindow = 24 * time.Hour   // over which the wear of the flash memory is measured: a day has its shifts
	wearLeast  = time.Hour        // before that nothing is said of it
)

// Monitor takes a picture of the gateway once a second and adds what only the run of time can tell: rates, forecasts and
// the list of problems.
type Monitor struct {
	gather func() Status

	// Only Run touches these.
	history  []sample                // oldest first, growthWindow long
	troubles map[uplinkKey]time.Time // since when an uplink has not delivered
	losses   map[lossKey]loss
	fill     map[string]*trend // what each lane holds
	wear     map[string]*trend // what each lane has cost the flash memory

	mu      sync.Mutex // guards the fields below
	last    Status
	changed chan struct{} // closed when last changes, and then replaced
}

type uplinkKey struct{ uplink, stream string }

type sample struct {
	at      time.Time
	streams map[string]streamCount
	acked   map[uplinkKey]uint64
}

type streamCount struct {
	records uint64
	backlog Backlog
}

// NewMonitor returns a Monitor over gather, which fills in everything but the rates, FullIn and Problems. Gather is
// called from Run only, and must not block.
func NewMonitor(gather func() Status) *Monitor {
	return &Monitor{
		gather:   gather,
		troubles: map[uplinkKey]time.Time{},
		losses:   map[lossKey]loss{},
		fill:     map[string]*trend{},
		wear:     map[string]*trend{},
		changed:  make(chan struct{}),
	}
}

// Run takes pictures until ctx ends, the first one at once.
func (m *Monitor) Run(ctx context.Context) error {
	tick := time.NewTicker(samplePeriod)
	defer tick.Stop()
	for {
		m.sample(time.Now())
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// Status returns the newest picture; its Time is zero before the first one. The caller must not change what its slices
// and maps hold.
func (m *Monitor) Status() Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.last
}

// Changed returns a channel that is closed with the next picture. Whoever watches takes the channel first, then the
// Status, and so misses nothing; a slow watcher skips pictures and holds nobody up.
func (m *Monitor) Changed() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.changed
}

func (m *Monitor) sample(now time.Time) {
	s := m.gather()
	if s.Time.IsZero() {
		s.Time = now
	}
	m.remember(now, &s)
	m.addRates(now, &s)
	m.addForecasts(now, &s)
	m.addWear(now, &s)
	s.Problems = m.problems(now, &s)

	m.mu.Lock()
	defer m.mu.Unlock()
	m.last = s
	close(m.changed)
	m.changed = make(chan struct{})
}

func (m *Monitor) remember(now time.Time, s *Status) {
	taken := sample{now, make(map[string]streamCount, len(s.Streams)), make(map[uplinkKey]uint64, len(s.Uplinks))}
	for _, st := range s.Streams {
		taken.streams[st.Name] = streamCount{st.Records, st.Backlog}
	}
	for _, u := range s.Uplinks {
		taken.acked[uplinkKey{u.Name, u.Stream}] = u.Acked
	}
	drop := 0
	for drop < len(m.history) && now.Sub(m.history[drop].at) > growthWindow {
		drop++
	}
	m.history = append(m.history[:copy(m.history, m.history[drop:])], taken)
}

// before returns the oldest sample that is no older than window. It is the newest one itself when there is no other.
func (m *Monitor) before(now time.Time, window time.Duration) sample {
	for _, old := range m.history {
		if now.Sub(old.at) <= window {
			return old
		}
	}
	return m.history[len(m.history)-1]
}

func (m *Monitor) addRates(now time.Time, s *Status) {
	old := m.before(now, rateWindow)
	elapsed := now.Sub(old.at)
	for i := range s.Streams {
		st := &s.Streams[i]
		st.Rate = rate(old.streams[st.Name].records, st.Records, elapsed)
	}
	for i := range s.Uplinks {
		u := &s.Uplinks[i]
		u.Rate = rate(old.acked[uplinkKey{u.Name, u.Stream}], u.Acked, elapsed)
	}
}

// rate is 0 where the counter went backwards: it began anew.
func rate(before, now uint64, elapsed time.Duration) float64 {
	if now < before || elapsed <= 0 {
		return 0
	}
	return float64(now-before) / elapsed.Seconds()
}
