package blockdev

import (
	"time"

	"golang.org/x/sys/unix"
)

// takeTime returns when the emulated device has done an operation. What one sleep takes too long the next one makes up for.
func (m *medium) takeTime(d time.Duration, bytes int) {
	if m.timing.BytesPerSecond > 0 {
		d += time.Duration(int64(bytes) * int64(time.Second) / m.timing.BytesPerSecond)
	}
	if d <= 0 {
		return
	}
	now := time.Now()
	if now.Sub(m.free) > time.Millisecond {
		m.free = now // it was idle
	}
	m.free = m.free.Add(d)
	wait := m.free.Sub(now)
	if wait <= 0 {
		return
	}
	// The runtime's timers are too coarse for tens of microseconds, and so is the slack that a thread begins with.
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	for ts := unix.NsecToTimespec(int64(wait)); unix.Nanosleep(&ts, &ts) == unix.EINTR; {
	}
}
