// Package pulsar is the uplink to Apache Pulsar.
//
// A session is one producer that is never mended: it sends in sequence and ends at the first sign of trouble. With
// effectively_once what is stored together has the sequence id of its last record, and the broker drops what it has already; a
// session begins with records one by one, until one is stored that is new. With exactly_once (exact.go) the producer has the topic
// to itself, the topic's last message says how far the stream is stored, and the first message of a session is sent alone, so
// that the broker compares it with what an earlier session still has on its way; the decision is docs/adr/0015-pulsar-exactly-once.md.
package pulsar
