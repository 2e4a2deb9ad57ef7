// Package pipeline is the first half of the data path: it takes messages from the sources, runs the processors of each
// stream that wants them, and appends the result to the stream's lane. It also holds the vocabulary that the other
// packages share: Message, Value, RecordID, and the form of a message in the log (Encode) and at the far side (AppendJSON).
//
//	device ──Put──▶ source ──▶ pipeline ──▶ for each lane:  streams' processors ──▶ lane.Append ──▶ log
//	   ▲              │                                          (state in the same commit)          │
//	   └────done──────┴───────────────── ticket ◀── committed ────────────────────────────────────────┘
//
// Put (put.go) is the way in and says what an acknowledgement means. A batch becomes a ticket (source.go) that waits for
// the commits of all lanes it went into and calls done in the order of Put. Each lane (lane.go) is entered by one batch at a
// time, so the processors see messages in the order in which they are stored.
//
// The package imports nothing but the standard library and starts no goroutine.
package pipeline
