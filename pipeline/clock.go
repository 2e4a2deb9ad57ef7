package pipeline

import "time"

// Clock places a message in the time that one boot of the machine counts (DESIGN.md 3.12).
type Clock struct {
	Boot    uint32        // first four bytes of the kernel's boot id; 0 where there is none
	Offset  time.Duration // since boot, on a clock that is never set
	Trusted bool          // the wall clock could be trusted when Time was taken
}
