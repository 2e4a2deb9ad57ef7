// Package kafka is the uplink to Apache Kafka and what speaks its protocol.
//
// With at_least_once records go out in chunks of a few batches, and the next chunk follows when the last one is answered. So a
// batch that the broker refuses is never overtaken by a later one, and what a key's records are in is always the order of
// the stream. With exactly_once they go out in transactions together with the far cursor.
package kafka
