package uplink

import "time"

// Pace sizes the chunks of a driver that waits for the answer to each. It begins small, so that a session proves itself
// cheaply, and finds what the line carries: a megabyte over a 2G modem would take longer than anybody waits.
type Pace struct {
	bytes int
}

// Bounds of a chunk, and the times of an answer between which its size is right.
const (
	paceMin   = 16 << 10
	paceQuick = 300 * time.Millisecond
	paceSlow  = time.Second
)

// Bytes returns the size of the next chunk, at most limit. A single record may be larger.
func (p *Pace) Bytes(limit int) int { return min(max(p.bytes, paceMin), limit) }

// Took says that a chunk of so many bytes was answered after d.
func (p *Pace) Took(bytes int, d time.Duration) {
	p.bytes = max(p.bytes, paceMin)
	switch {
	case d > paceSlow:
		p.bytes = max(p.bytes/2, paceMin)
	case d < paceQuick && bytes > p.bytes/2 && p.bytes < 64<<20: // a small chunk proves nothing about a large one
		p.bytes *= int(min(max(paceQuick/max(d, 1), 2), 16)) // a chunk that takes as long as is quick, in not too large steps
	}
}

// Held says that the far side answers nothing more for d, because of a chunk of so many bytes.
func (p *Pace) Held(bytes int, d time.Duration) {
	if d > paceQuick {
		p.bytes = max(int(float64(bytes)*float64(paceQuick)/float64(d)), paceMin)
	}
}
