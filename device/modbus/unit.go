package modbus

import (
	"time"

	"edgegateway/device"
)

// unit is what answers to one unit number. Only the link's owner touches it.
type unit struct {
	name   string
	number uint8
	index  int // in the link's units and in the status
	blocks []*block

	// silent counts requests in a row that got no answer, or none that could be used. From the second on the unit is
	// left alone until probeAt, so that waiting for it does not take the time of the others.
	silent  int
	probeAt time.Time
	reason  string // why it is left alone
}

// A unit that does not answer is probed after 1, 2, 4 … 60 s. Where no other unit of the link answers there is nobody
// to be held up, and it comes back within 5 s.
const (
	probeFirst = time.Second
	probeAlone = 5 * time.Second
	probeLast  = time.Minute
)

// left reports whether the unit is being left alone at now.
func (u *unit) left(now time.Time) bool { return u.silent >= 2 && now.Before(u.probeAt) }

// struck notes that a request got no answer.
func (u *unit) struck(now time.Time, reason string, alone bool) {
	u.silent++
	u.reason = reason
	longest := probeLast
	if alone {
		longest = probeAlone
	}
	u.probeAt = now.Add(doubling(probeFirst, longest, u.silent-1))
}

// doubling returns first, 2·first, 4·first and so on for n = 1, 2, 3 and so on, but at most longest.
func doubling(first, longest time.Duration, n int) time.Duration {
	d := first
	for i := 1; i < n && d < longest; i++ {
		d *= 2
	}
	return min(d, longest)
}

// state sums up the unit's blocks.
func (u *unit) state() (device.State, string) {
	var good, bad int
	var fault string
	for _, b := range u.blocks {
		switch {
		case !b.served:
		case b.fault == "":
			good++
		default:
			bad++
			fault = b.fault
		}
	}
	switch {
	case good == 0 && bad == 0:
		return device.Starting, ""
	case bad == 0:
		return device.Up, ""
	case good == 0:
		return device.Down, fault
	}
	return device.Degraded, fault
}
