// Command bench measures the gateway as a program and prints one line for each figure:
//
//	bench NAME ratio R (ours X UNIT, reference Y UNIT)
//
//	own MQTT clients ─▶ edge-gateway ─▶ nats-server        publishes/s, memory
//	pymodbus ─────────▶ edge-gateway ─▶ nats-server        latency
//	go build for each GOARCH                               size
//
// The names of parts (publishes, latency, memory, size) as arguments measure only those.
//
// The reference is measured in the same run on the same machine where it is not a fixed goal, because the machine is often
// shared and no figure of another day can be compared. docs/performance.md explains each line.
package main
