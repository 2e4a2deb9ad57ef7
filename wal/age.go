package wal

import "time"

// ageClock counts the age of records for max_age. It goes with the monotonic clock, and comes to where the wall clock is
// without believing it: a step forward of up to a tenth of max_age is taken at once, a longer one at no more than double
// speed, and a step back at half speed. So a wall clock that is years ahead for a day ages the records by a day more, and
// not by years, and no clock of any kind drops at once what was not nearly due.
//
// After a restart it goes on from the newest record of the log, since nothing says how long the machine was off but the
// wall clock: what was off for a week takes a week until the ages are right again. Until then records stay longer.
type ageClock struct {
	slack time.Duration
	at    time.Time     // what the clock says, at:
	mono  time.Duration // on the monotonic clock
	shift int64         // nanoseconds from the wall clock to at
}

// start sets the clock. newest is the largest time in the log, 0 without any.
func (c *ageClock) start(maxAge time.Duration, newest int64, wall time.Time, mono time.Duration) {
	c.slack, c.mono, c.at = maxAge/10, mono, wall
	if maxAge == 0 {
		c.slack = time.Hour
	}
	if known := time.Unix(0, newest); newest != 0 && (wall.Before(clockSet) || known.Before(wall)) {
		c.at = known
	}
	c.now(wall, mono)
}

// now returns the time by which ages are counted.
func (c *ageClock) now(wall time.Time, mono time.Duration) time.Time {
	passed := max(0, mono-c.mono)
	c.mono = mono
	c.at = c.at.Add(passed)
	switch ahead := wall.Sub(c.at); {
	case ahead > 0 && ahead <= c.slack:
		c.at = wall
	case ahead > 0:
		c.at = c.at.Add(min(ahead, passed))
	case ahead < 0 && !wall.Before(clockSet):
		c.at = c.at.Add(max(ahead, -passed/2))
	}
	c.shift = nanos(c.at) - nanos(wall)
	return c.at
}

// stamp returns the time of a record as this clock counts, given its time and now on the wall clock. A record whose clock
// was not set has no age, and one from the future is of now.
func (c *ageClock) stamp(at, now int64) int64 {
	if at = min(at, now); at < nanos(clockSet) {
		return at
	}
	return at + c.shift
}
