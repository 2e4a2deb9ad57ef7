// Package kafka is the uplink to Apache Kafka and what speaks its protocol.
//
// Records go out in chunks that fit one batch: a chunk is produced, flushed and answered before the next one goes. So a
// batch that the broker refuses is never overtaken by a later one, and what a key's records are in is always the order of
// the stream.
package kafka
