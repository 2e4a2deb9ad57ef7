// Command benchuplinks measures the uplinks against bare clients and prints one line for each figure:
//
//	bench NAME ratio R (ours X records/s, reference Y records/s)
//
//	real log ─▶ Runner ─▶ driver ─▶ broker        ours
//	memory ─────────▶ bare client ─▶ broker       the reference: the same library, the same bytes
//
// Both send the same records of 256 B to the same broker in turns, each to a place of its own, and the figure is the median of the
// rounds' ratios. memory-NAME is what a process that drains a large log has resident above what it had before it began.
//
// The names of uplinks as arguments measure only those, and -memory nothing but the memory. docs/performance.md explains each line.
package main
