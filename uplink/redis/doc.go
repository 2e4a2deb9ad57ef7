// Package redis is the uplink to Redis Streams.
//
// Each Send is one or more runs of script.lua: it appends a prefix of the records with the ids EPOCH-SEQ and moves a
// cursor beside the stream in the same step. A record that was stored before, because its reply was lost or the gateway
// was killed, is recognised by the cursor and counts as confirmed without being stored again.
package redis
