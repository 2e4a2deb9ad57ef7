// Package e2e tests the gateway from end to end, as a program, with parts nobody here wrote on both sides:
//
//	pymodbus ─────────────┐                              ┌─▶ Kafka (KRaft) ─────────┐
//	paho-mqtt (QoS 1, 2) ─┼─▶ edge-gateway, kill -9 ─────┼─▶ nats-server, JetStream ┼─▶ oracle
//	mosquitto_pub (QoS 1) ┘   at random moments, again   └─▶ redis-server ──────────┘    ▲
//	        └── ledgers: what was sent, how often, and what was acknowledged ────────────┘
//
// The clients write down what they sent and what was acknowledged. After the load the oracle reads all three brokers back
// and compares. The negative control runs the same test against a gateway that acknowledges before the commit, and wants the
// oracle to find losses. The other tests put a running gateway into bad circumstances, one at a time.
//
// This package itself holds what the benchmarks need too: the gateway as a process, and a small MQTT client.
package e2e
