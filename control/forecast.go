package control

import (
	"fmt"
	"time"
)

// maxForecast bounds what a forecast may claim.
const maxForecast = 100 * 8766 * time.Hour

// trend is a figure over time: points of at most trendPoints to a window, oldest first.
type trend struct {
	points []point
}

type point struct {
	at    time.Time
	value float64
}

const trendPoints = 60

// add takes a new value. Points come evenly over the window; what is older goes, but for one.
func (t *trend) add(now time.Time, value float64, window time.Duration) {
	if n := len(t.points); n > 1 && now.Sub(t.points[n-2].at) < window/trendPoints {
		t.points = t.points[:n-1] // the last one is only the newest
	}
	t.points = append(t.points, point{now, value})
	drop := 0
	for drop+1 < len(t.points) && now.Sub(t.points[drop+1].at) >= window {
		drop++
	}
	t.points = t.points[:copy(t.points, t.points[drop:])]
}

// perSecond returns the growth over the points there are; ok false where they do not reach back so far.
func (t *trend) perSecond(least time.Duration) (rate float64, ok bool) {
	first, last := t.points[0], t.points[len(t.points)-1]
	elapsed := last.at.Sub(first.at)
	if elapsed < least || elapsed <= 0 {
		return 0, false
	}
	return (last.value - first.value) / elapsed.Seconds(), true
}

// addForecasts says when a lane will be full, from the growth of what it holds on disk. That is what compression and each
// commit really take, and what stays because one uplink alone has not confirmed it. The size of the files would tell less:
// it goes up and down with the segments while all is well.
func (m *Monitor) addForecasts(now time.Time, s *Status) {
	for i := range s.Lanes {
		l := &s.Lanes[i]
		if l.State == LaneStopped {
			delete(m.fill, l.Name)
			continue
		}
		t := m.fill[l.Name]
		if t == nil {
			t = &trend{}
			m.fill[l.Name] = t
		}
		t.add(now, float64(l.Held), fillWindow)
		room := l.MaxBytes - l.Bytes
		if l.Room >= 0 {
			room = min(room, l.Room) // the disk may be full first
		}
		if rate, ok := t.perSecond(growthWindow / 2); ok && rate > 0 && room > 0 {
			l.FullIn = forecast(float64(room), rate)
		}
	}
}

// addWear sums up what the lanes cost the flash memory, and says how long its budget lasts.
func (m *Monitor) addWear(now time.Time, s *Status) {
	rate, known := 0.0, len(s.Lanes) > 0
	for i := range s.Lanes {
		l := &s.Lanes[i]
		s.Flash.Written += l.Flash
		t := m.wear[l.Name]
		if l.State == LaneStopped {
			delete(m.wear, l.Name)
			continue
		}
		if t == nil || t.points[len(t.points)-1].value > float64(l.Flash) { // a new log
			t = &trend{}
			m.wear[l.Name] = t
		}
		t.add(now, float64(l.Flash), wearWindow)
		r, ok := t.perSecond(wearLeast)
		rate, known = rate+r, known && ok
	}
	if !known {
		return
	}
	s.Flash.PerDay = rate * 86400
	if left := float64(s.Flash.Budget) - float64(s.Flash.Written); s.Flash.Budget > 0 && rate > 0 {
		s.Flash.Lasts = max(forecast(left, rate), time.Second)
	}
}

func forecast(left, perSecond float64) time.Duration {
	return time.Duration(min(max(left/perSecond, 0), maxForecast.Seconds()) * float64(time.Second))
}

func flashProblems(list []Problem, f *Flash) []Problem {
	if f.Lasts <= 0 || f.Lasts >= time.Duration(f.Years)*8766*time.Hour {
		return list
	}
	text := fmt.Sprintf("At this rate the flash budget of %s lasts %s: %s are used, %s a day come to it.",
		BytesText(f.Budget), YearsText(f.Lasts), BytesText(f.Written), BytesText(uint64(f.PerDay)))
	if f.Written >= f.Budget {
		text = fmt.Sprintf("The flash budget of %s is used up: %s were written.", BytesText(f.Budget), BytesText(f.Written))
	}
	return append(list, Problem{
		Warning, "gateway", text,
		"Each commit costs about 32 kB. Raise max_delay, take less with deadband or throttle, or put fewer streams into lanes of their own.",
	})
}
