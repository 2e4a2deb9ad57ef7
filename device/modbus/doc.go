// Package modbus polls the units behind one Modbus TCP server and puts their readings into the pipeline.
//
//	Config ─Check, Open─▶ Device.Run: one goroutine owns the link and all below it
//
//	link   one connection, its back-off and the schedule   link.go, conn.go
//	└ unit   what answers to one unit number, its back-off    unit.go
//	  └ block  neighbouring points read by one request          plan.go
//	    └ point  registers or a bit → value of a message          decode.go
//
// A turn of the owner: the due block with the earliest deadline is read through simonvetter/modbus (poll.go), its bytes
// become one message for each point, and the messages go to Sink.Put as one batch. Whatever goes wrong becomes messages
// with quality bad and the reason, at the period of the point; an old value is never sent with a new time.
//
// Errors fall into three classes (fault.go). An exception reply blames the block and keeps the connection; 2 and 3 make
// the block fall apart around the point that is not there. Silence and garbled replies blame the unit, which is then
// probed at growing intervals; the connection is closed, so that nothing that comes late can be taken for the answer to
// a later request. A connection that cannot be opened or breaks blames the link, which waits with jitter between tries.
//
// The library takes no dialer and no connection, dials for 5 s whatever its timeout, and its Close waits for the request
// in flight. So it never sees the network: it talks over loopback to a relay of ours that owns the real connection
// (conn.go). The relay dials with a context, can be shut at any moment, and notices a peer that hangs up between requests.
//
// Where later parts go. A serial line replaces the relay's far side: the relay then speaks RTU on a port that it owns, and
// link, unit and block stay as they are. A write is a second queue of the owner in link.run, served before due blocks. A
// planner that reads across holes replaces plan in plan.go; falling apart on exception 2 and 3 is its learner already.
package modbus
