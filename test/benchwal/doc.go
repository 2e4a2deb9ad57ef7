// Program benchwal measures the log against the least that a durable queue can cost, and beside other logs.
//
//	go run .                         everything, 6 to 8 minutes; BENCH_SHORT=1: about a minute
//	go run . rates backlog           some parts: rates, steady, backlog, lanes, outcomes, wear
//	go run . -table FILE             write the tables between the two marks in FILE too
//	go run . -strict                 exit with 1 when a figure falls short of its goal
//	go run . -device emmc            measure on a device in memory that is as slow as a flash chip
//	go run . -dir DIR                measure in DIR, on a device that somebody else has made
//
// Each figure is a line
//
//	bench NAME ratio R (ours X UNIT, reference Y UNIT) (goal ≥ G)
//
// What a disk does in a second changes from one minute to the next, so whatever is timed is set against a reference that
// was measured right before it, in turns of a quarter of a second, and the figure is the median of the ratios. Bytes and
// flushes are not timed but counted, where they reach the device.
//
//	subject (ours, raw, peers) ──▶ ext4 with journal ──▶ loop device ──▶ image in build/, past the page cache
//	                                                       │
//	                                                       └─ /sys/dev/block/…/stat, tracefs: writes, bytes, flushes
//
// The device needs root. Without it, or without loop devices, a plain directory in build/ is used and said to be one:
// what is counted there is then the whole disk's, other programs' writes included.
//
// The program is a module of its own, so that nothing of the other logs reaches the gateway's go.mod.
package main
