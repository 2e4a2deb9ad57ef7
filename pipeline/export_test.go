package pipeline

import "time"

// SetUptime makes p's clock that of a machine that has been up for so long.
func SetUptime(p *Pipeline, up time.Duration) { p.clock = clockSource{uptime: up, start: time.Now()} }
