// Package pulsar is the uplink to Apache Pulsar.
//
// A session is one producer that is never mended: it sends in sequence and ends at the first sign of trouble. With
// effectively_once each record is a message whose sequence id is the record's, and the broker drops what it has already. With
// exactly_once (exact.go) the producer has the topic to itself, the topic's last message says how far the stream is stored,
// and the first message of a session is sent alone, so that the broker compares it with what an earlier session still has on
// its way; the decision is docs/adr/0015-pulsar-exactly-once.md.
package pulsar
