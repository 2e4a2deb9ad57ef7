// Package redis is the uplink to Redis: a stream, a list, or a hash of the latest record for each topic.
//
// Each Send is one or more runs of a script. For streams and lists (append.lua) it appends a prefix of the records and moves
// a cursor beside them in the same step, so a record that was stored before, because its reply was lost or the gateway was
// killed, is recognized and counts as confirmed without being stored again. For hashes (latest.lua) it sets what is newer.
//
// With delivery exactly_once, Open takes a fence (claim.lua) and reads the cursor in one step, the Runner begins there, and
// each append names the fence's token and the cursor that it expects: a second gateway with the same id, and a server that has
// lost confirmed writes, are noticed before anything is stored.
package redis
