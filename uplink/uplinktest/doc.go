// Package uplinktest is the suite that each driver passes against its real broker.
//
// Run drives the real Runner and the driver over a Log in memory, does to the broker and to the connection what plants
// do to them, and then reads back from the broker what it holds: every record, in order, and none of them twice where the
// driver says so. The part that kills the gateway does so to a child process over the real log.
package uplinktest
