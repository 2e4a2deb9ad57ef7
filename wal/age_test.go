package wal

import (
	"testing"
	"time"
)

const year = 365 * 24 * time.Hour

// clockStep lets real time pass and sets the wall clock so far beside it.
type clockStep struct {
	pass time.Duration
	off  time.Duration // of the wall clock from the real time, from here on
}

func TestAgeFollowsNoClockThatJumps(t *testing.T) {
	const maxAge = 24 * time.Hour
	begin := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	tests := []struct {
		name     string
		steps    []clockStep
		min, max time.Duration // age of a record from the beginning, at the end
	}{
		{"an ordinary day", []clockStep{{24 * time.Hour, 0}}, 24 * time.Hour, 24 * time.Hour},
		{"a small correction is believed", []clockStep{{time.Hour, 2 * time.Hour}, {0, 2 * time.Hour}}, 3 * time.Hour, 3 * time.Hour},
		{"ten years ahead, for an instant", []clockStep{{time.Hour, 10 * year}, {time.Second, 0}}, time.Hour, time.Hour + 2*time.Second},
		{"ten years ahead, for an hour, and back", []clockStep{{time.Hour, 10 * year}, {time.Hour, 0}, {time.Second, 0}}, 2 * time.Hour, 3*time.Hour + time.Second},
		{"and right again after that", []clockStep{{time.Hour, 10 * year}, {time.Hour, 0}, {4 * time.Hour, 0}}, 6 * time.Hour, 6 * time.Hour},
		{"ten years ahead for good", []clockStep{{0, 10 * year}, {10 * time.Hour, 10 * year}}, 10 * time.Hour, 20 * time.Hour},
		{"six years back for good", []clockStep{{time.Hour, -6 * year}, {10 * time.Hour, -6 * year}}, 6 * time.Hour, 11 * time.Hour},
		{"back to 1970", []clockStep{{time.Hour, -56 * year}, {10 * time.Hour, -56 * year}}, 6 * time.Hour, 11 * time.Hour},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var c ageClock
			c.start(maxAge, 0, begin, 0)
			passed, off, last := time.Duration(0), time.Duration(0), begin
			read := func() {
				now := c.now(begin.Add(passed+off), passed)
				if now.Before(last) {
					t.Errorf("the clock of ages went back from %v to %v", last, now)
				}
				last = now
			}
			for _, s := range tt.steps {
				for end := passed + s.pass; passed < end; { // it is looked at once a minute
					passed += min(time.Minute, end-passed)
					read()
				}
				off = s.off
				read()
			}
			if age := last.Sub(begin); age < tt.min || age > tt.max {
				t.Errorf("after %v the record is %v old, want %v to %v", passed, age, tt.min, tt.max)
			}
		})
	}
}

func TestRecordsOfOneMomentHaveOneAgeWhateverTheClockSaid(t *testing.T) {
	begin := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	var c ageClock
	c.start(24*time.Hour, 0, begin, 0)
	wall := begin.Add(10 * year)
	now := c.now(wall, time.Hour)
	if got := c.stamp(nanos(wall), nanos(wall)); got != nanos(now) {
		t.Errorf("a record of now is stamped %v, want %v", time.Unix(0, got), now)
	}
	if got := c.stamp(nanos(wall.Add(-time.Hour)), nanos(wall)); got != nanos(now.Add(-time.Hour)) {
		t.Errorf("a record of an hour ago is stamped %v, want %v", time.Unix(0, got), now.Add(-time.Hour))
	}
	if got := c.stamp(nanos(wall.Add(year)), nanos(wall)); got != nanos(now) {
		t.Errorf("a record from the future is stamped %v, want %v", time.Unix(0, got), now)
	}
	if got := c.stamp(1e9, nanos(wall)); got != 1e9 {
		t.Errorf("a record without a clock is stamped %v, want as it is", time.Unix(0, got))
	}
}

func TestAgeAfterARestart(t *testing.T) {
	newest := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	tests := []struct {
		name  string
		wall  time.Time
		after time.Duration // time since the restart
		want  time.Duration // age of the newest record
	}{
		{"a minute off", newest.Add(time.Minute), 0, time.Minute},
		{"off for a week: it is caught up", newest.Add(7 * 24 * time.Hour), 24 * time.Hour, 48 * time.Hour},
		{"a clock ten years ahead", newest.Add(10 * year), time.Hour, 2 * time.Hour},
		{"a clock that was never set", time.Date(1970, 1, 1, 0, 0, 0, 0, time.UTC), time.Hour, time.Hour},
		{"a clock years behind", newest.Add(-year), time.Hour, time.Hour - year},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var c ageClock
			c.start(24*time.Hour, nanos(newest), tt.wall, 5*time.Second)
			if age := c.now(tt.wall.Add(tt.after), 5*time.Second+tt.after).Sub(newest); age != tt.want {
				t.Errorf("the newest record is %v old, want %v", age, tt.want)
			}
		})
	}
}
