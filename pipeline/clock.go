package pipeline

import (
	"os"
	"strconv"
	"strings"
	"time"
)

// Clock places a message in the time that one boot of the machine counts (DESIGN.md 3.12).
type Clock struct {
	Boot    uint32        // first four bytes of the kernel's boot id; 0 where there is none
	Offset  time.Duration // since boot, on a clock that is never set; since the gateway's start where Boot is 0
	Trusted bool          // the wall clock could be trusted when Time was taken
}

// trustedFrom is the date of this code: a wall clock before it belongs to a machine without a battery-backed clock that
// has not heard the time yet.
var trustedFrom = time.Date(2026, time.November, 1, 0, 0, 0, 0, time.UTC)

// clockSource makes the Clock of a message. Where the kernel gives no boot id or uptime, Boot stays 0.
type clockSource struct {
	boot   uint32
	uptime time.Duration // of the machine, at start
	start  time.Time     // with its monotonic reading
}

func newClockSource() clockSource {
	c := clockSource{start: time.Now()}
	uptimeText, err := os.ReadFile("/proc/uptime") // "12345.67 …", seconds
	if err != nil {
		return c
	}
	seconds, err := strconv.ParseFloat(strings.SplitN(string(uptimeText), " ", 2)[0], 64)
	if err != nil {
		return c
	}
	idText, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil || len(idText) < 8 {
		return c
	}
	id, err := strconv.ParseUint(string(idText[:8]), 16, 32)
	if err != nil {
		return c
	}
	c.boot, c.uptime = uint32(id), time.Duration(seconds*float64(time.Second))
	return c
}

func (c clockSource) at(t time.Time) Clock {
	return Clock{Boot: c.boot, Offset: c.uptime + time.Since(c.start), Trusted: t.After(trustedFrom)}
}
