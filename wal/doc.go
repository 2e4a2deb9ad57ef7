// Package wal is the log of one lane: an append-only queue on bbolt that survives power loss, with a durable cursor for
// each uplink and stream, and a small keyed state that changes in the same commit as the records.
//
//	Append ──▶ queue ──▶ committer ──▶ segment files ──▶ callbacks, in order
//	           ≤ 1 MiB   one goroutine  + ring in RAM
//	                        ▲                  │
//	            cursors ────┘                  ▼
//	            Done, Drop ◀── uplink ◀── Cursor.Read
//
// A source hands over a batch and gets it back by a callback when it is on stable storage. The committer takes all that
// waits into one bbolt transaction, so load shares flushes: a commit costs two, however much is in it. Where the cursors
// stand is in each of these transactions and costs nothing more; without any, a cursor that moved is written within 1 s.
// Outcomes come in any order; a cursor moves over the unbroken run of them only. A segment that every cursor has passed is
// unlinked.
//
// # Numbers of a record
//
// Its position is its place in the lane: 1, 2, 3, … over all streams, internal, the key of blocks. Its sequence is its
// place in its stream: 1, 2, 3, … without gaps but for counted drops, so that the far side can prove that nothing is
// missing. See docs/adr/0002-sequences.md.
//
// # Directory
//
//	LOCK           flock of the process that has the log open; holds its number
//	00000001.seg   bbolt files, numbered without gaps; the last one is active, the others are only read
//	*.tmp          a segment being built; deleted at start
//
// A segment is built as .tmp, made durable, renamed, and the directory flushed, so a .seg is always whole. A new one
// begins when the active one has SegmentBytes; it carries state and cursors, so the newest file is all that has to be
// known.
//
// # Segment
//
// bbolt with pages of 4096 bytes and without a freelist on disk. Buckets, each value of h, c and s followed by the CRC32C
// (little endian) over key and value:
//
//	h  "h" → header, written once:
//	         uvarint version (2) · 16 B id of the log · uvarint epoch · uvarint number · uvarint base position
//	         varint created (Unix ns) · uvarint n · n × uvarint newest sequence before base, by stream number
//	         1 where its records are gone because no cursor needed them (hollow.go), nothing otherwise
//	c  "c" → control, written by each commit:
//	         uvarint position of the newest record · varint largest time in this segment (Unix ns, 0: none)
//	         uvarint dead letters lost · uvarint records refused · uvarint newest dead letter · uvarint newest dropped range
//	         uvarint next cursor id
//	         uvarint n · n streams by number: uvarint newest sequence · uvarint bytes of data · uvarint dropped · uvarint refused
//	         uvarint n · n cursors: uvarint id · uvarint position · uvarint sequence
//	                     uvarint k · k runs of outcomes beyond it: uvarint without · uvarint with (k ≤ 32)
//	         8 B sum of the CRC64s of all pairs of s · uvarint bytes written to the disk ever · uvarint the same in flash pages
//	         (version 1 ends before these three, and has no refused)
//	s  state:
//	         "u" KEY        → value of Batch.State
//	         "s" NAME       → uvarint stream number: 0, 1, 2, …
//	         "k" uvarint ID → uvarint stream number · name of the uplink
//	         "d" NUMBER     → dead letter: uplink, stream (uvarint length + bytes each) · uvarint sequence
//	                          varint time · varint time of the refusal (Unix ns) · reason, data (uvarint length + bytes)
//	         "g" uvarint stream number → uvarint refused records of it that gap records have told of
//	         "r" NUMBER     → dropped range: uvarint stream number · uvarint first · uvarint last · varint when (Unix ns)
//	                          1 B why (1 drop_oldest, 2 max_age, 3 files were missing)
//	                          NUMBER is 8 B big endian
//	q  position of the first record (8 B big endian) → block; one of more than 1500 B is the value of "b" in a bucket of
//	   that name, so that bbolt does not write it again with the next commit
//
// c stays below 1 KiB, and with it in the root page, up to about 30 cursors; beyond, it costs one page more per commit.
//
// # Block
//
// Little endian. At most 256 KiB raw, unless a single record is that large. There are no records of a commit in the blocks
// of another.
//
//	 0  1 B  0xB1: block, version 1
//	 1  1 B  codec: 0 raw (others are free for compression)
//	 2  2 B  flags: 0
//	 4  4 B  number of records
//	 8  8 B  position of the first
//	16  8 B  time of the first, Unix ns
//	24  4 B  length of the body
//	28  4 B  CRC32C of bytes 0..27 and the body
//	32       body: uvarint n · n × (uvarint stream number · uvarint sequence of its first record here)
//	               per record: uvarint stream number · uvarint length · varint time since the record before, ns · data
//
// # Bounds
//
// A record has at most 260 KiB (an MQTT packet of 256 KiB and what the codec adds), a commit 1 MiB; as much again may wait
// for the next one, beyond which Append waits. The state has 4 MiB, 1 MiB of it dead letters, in a small log a sixteenth of
// max_bytes (the oldest go, counted). 256 dropped ranges are kept; each stream counts all.
// Memory: those, 1 MiB of newest blocks, and 8 B for each record of a cursor's window.
//
// A stream with a quota is bounded for itself: by the data that its slowest cursor has not passed. That is known exactly at the
// end of each commit (of the last 256, further back of fewer, after a restart at the ends of segments) and estimated between.
// What one stream has waiting keeps the segments that hold a part of it, whatever else is in them. A segment behind them that no
// cursor needs is replaced by a hollow one of a few pages, which keeps the chain of segments whole.
//
// Age is counted by a clock of its own (age.go), which no step of the wall clock can make jump.
//
// # Gap records
//
// Where Options.Gap gives one, a drop appends a record to its stream in the same commit. Records that were refused are told of
// before the next one that is taken; "g" says how many have been. On a full disk gap records wait, in memory, until what was
// dropped has made room: a power cut then leaves the range in the state without its gap record.
//
// # Errors
//
// A full disk is a state: the policy is followed, reading, cursors and freeing go on, and it ends by itself. Dead letters
// that find no room then are lost, and counted. Any other error of a commit stops the log: what the kernel shows after a
// failed flush is not what is on the medium, so nothing is acknowledged any more, until the log is opened again. It stops too
// when the file it writes to is no longer under its name (looked at after each commit, and each second). Segments
// are read through a map, so a bad sector shows as a fault; that, a panic of bbolt and a wrong checksum are ErrDamaged.
//
// Before bbolt gets a file every page that can be reached is looked at once (preflight.go): on a damaged one it would panic
// in a goroutine of its own, or never come back. What a killed process has written and not flushed is flushed at the start,
// before anybody sees it.
//
// # What is not here yet
//
// Salvage, recycling of files, and compression come later and change no signature (docs/adr/0003-log-interface.md).
package wal
