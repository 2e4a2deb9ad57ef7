// Package nats is the uplink to NATS JetStream.
//
// A session is one connection that is never mended: it publishes in sequence, with the record id as message id, and takes
// the answers in the same order. Records that were stored before are recognised by the stream within its duplicate
// window and count as confirmed.
package nats
