// Package pulsar is the uplink to Apache Pulsar.
//
// A session is one producer that is never mended: it sends in sequence and ends at the first sign of trouble. With
// effectively_once what is stored together has the sequence id of its last record, and the broker says up to which one it has the
// stream. With exactly_once (exact.go) the producer has the topic to itself, and the topic's last message says how far the stream is
// stored. With both, one message is in flight at a time, so that nothing passes one that is refused, and the broker compares the first one
// of a session with what an earlier session still has on its way; the decision is docs/adr/0015-pulsar-exactly-once.md.
package pulsar
