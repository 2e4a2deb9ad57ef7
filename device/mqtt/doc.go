// Package mqtt is the local MQTT broker: a device whose messages are what local clients publish.
//
//	client ──▶ conn (frame check, size, deadline) ──▶ mochi (decode) ──▶ hook.OnPacketRead
//	                                                                        │ ACL, alias, QoS 2 ledger, window
//	                                                                        ▼
//	client ◀── PUBACK, PUBREC, PUBCOMP ◀──────────── done ◀── commit ◀── Sink.Put
//	                                                   │
//	subscribers ◀── mochi ◀── fan-out goroutine ◀──────┘
//
// The broker is mochi-mqtt, unmodified. It keeps the sessions, the subscriptions and the deliveries; what a client
// publishes never reaches its own publish path. Each PUBLISH and PUBREL is taken over as it is read, put into the sink,
// and acknowledged from the sink's callback and nowhere else, so that nothing is acknowledged that is not on stable
// storage (DESIGN.md 3.1). docs/adr/0004 says why, and what this leaves open.
package mqtt
