// Package kafka is the uplink to Apache Kafka and what speaks its protocol.
//
// With at_least_once records go out in chunks of a few batches. A batch that the broker refuses is never overtaken by a later one, so
// what a key's records are in is always the order of the stream: session says how. With exactly_once they go out in transactions
// together with the far cursor, and the next one is made ready while one is committed.
package kafka
