// Package uplink carries the records of one stream to one far broker and moves the cursor by what the broker says.
//
// A Runner reads records in sequence from its Cursor, decodes them, and hands them to a Session of its Driver. The
// session reports an Outcome for each. An ack or a drop goes to the cursor; the first sign of trouble ends the session:
// it is closed, the cursor is rewound to the first record without an outcome, and after a pause the next session begins
// there (docs/adr/0005-sessions.md).
//
//	Cursor.Read ─▶ decode ─▶ Session.Send ─▶ broker
//	     ▲                                      │
//	     └── Done, Drop ◀── Runner ◀── report ◀─┘
//
// The drivers stand in the packages below; uplinktest holds the suite that each of them passes against its real broker.
package uplink
