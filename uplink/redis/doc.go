// Package redis is the uplink to Redis: a stream, a list, or a hash of the latest record for each topic.
//
// Each Send is one or more runs of a script. For streams and lists (append.lua) it appends a prefix of the records and moves
// a cursor beside them in the same step, so a record that was stored before, because its reply was lost or the gateway was
// killed, is recognized and counts as confirmed without being stored again. For hashes (latest.lua) it sets what is newer.
//
// Two scripts are on their way at a time. Each names the cursor that it expects, so the server itself sees to it that the second stores
// nothing unless the first has stored all.
//
// The server is at an address, or is the node of a cluster that has the keys (link.go), or the master that sentinels know
// (sentinel.go). Where it is another one in mid-flow the session ends, and the next one finds it.
//
// With delivery exactly_once, Open takes a fence (claim.lua) and reads the cursor in one step, the Runner begins there, and
// each append names the fence's token and the cursor that it expects: a second gateway with the same id, and a server that has
// lost confirmed writes, are noticed before anything is stored.
package redis
