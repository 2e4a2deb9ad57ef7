// Package uplink carries the records of one stream to one far broker and moves the cursor by what the broker says.
//
// A Runner reads records in sequence from its Cursor, decodes them, and hands them to a Session of its Driver. The
// session reports an Outcome for each. An ack or a drop goes to the cursor; the first sign of trouble ends the session:
// it is closed, the cursor is rewound to the first record without an outcome, and after a pause the next session begins
// there (docs/adr/0005-sessions.md). Where the order allows, a record that is refused for now is held, and the session goes on; what
// becomes of one that is refused for good is in docs/adr/0014-dead-letters.md.
//
//	Cursor.Read ─▶ decode ─▶ Session.Send ─▶ broker
//	     ▲                                      │
//	     └─ Done, Refuse ◀─ Runner ◀─ report ◀──┘
//
// The drivers stand in the packages below; uplinktest holds the suite that each of them passes against its real broker.
package uplink
