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
// Outcomes come in any order; a cursor moves over the unbroken run of them only. A segment that every cursor has passed
// becomes a spare, the file of a later one, or is unlinked.
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
//	*.spare        up to two drained files, kept for later segments; what they hold means nothing
//	*.tmp          a segment being built; deleted at start
//	SALVAGE        how a salvage ends that was begun (rebuild.go); finished at start, before anything else
//	*.bad          damaged files that a salvage has replaced; never read
//
// A segment is built as .tmp or in a .spare, made durable, renamed, and the directory flushed, so a .seg is always whole.
// A drained one is renamed to .spare, and the directory flushed before the first byte of it changes (spare.go), so a name
// that a cut brings back still has its contents. A new segment begins when the active one has SegmentBytes; it carries state
// and cursors, so the newest file is all that has to be known.
//
// # Segment
//
// bbolt with pages of 4096 bytes and without a freelist on disk. Buckets, each value of h, c and s followed by the CRC32C
// (little endian) over key and value:
//
//	h  "h" → header, written once:
//	         uvarint version (3) · 16 B id of the log · uvarint epoch · uvarint number · uvarint base position
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
//	                          and, from version 3 on, where they are known: uvarint attempts · driver (uvarint length + bytes)
//	         "g" uvarint stream number → uvarint refused records of it that gap records have told of
//	         "r" NUMBER     → dropped range: uvarint stream number · uvarint first · uvarint last · varint when (Unix ns)
//	                          1 B why (1 drop_oldest, 2 max_age, 3 files were missing, 5 damaged)
//	                          NUMBER is 8 B big endian
//	q…  "q" and a position (8 B big endian): up to 94 blocks, the first of which begins there
//	         position of the first record (8 B big endian) → a bucket with "b" → block
//	t  position of the first record (8 B big endian) → small block; as many as one page takes
//
// In version 1 there was one queue bucket, "q", with small blocks as plain values, and no t. A program that does not know a version
// returns ErrVersion and changes nothing.
//
// bbolt writes each page again that is on the way from the root to what changes, so places are chosen for that (queue.go).
// 94 names and what bbolt adds to each, 40 B, fill a page, so a queue bucket has no branch page; a block in a bucket of its own
// is not written again with the next one; small blocks gather in t, which up to 1 KiB lies in the root page, and become one
// block of the queue when they fill a page. A commit of one small record costs 8 to 16 KiB, 11 on the average.
//
// c stays below 1 KiB, and with it in the root page, up to about 30 cursors; beyond, it costs one page more per commit.
//
// # Block
//
// Little endian. At most 256 KiB before it is compressed, unless a single record is that large. There are no records of a
// commit in the blocks of another, but for small ones that have become one block.
//
//	 0  1 B  0xB2: block, version 2
//	 1  1 B  codec: 0 none, 1 s2 (its block format), 2 zstd (one frame)
//	 2  2 B  flags: 0
//	 4  4 B  number of records
//	 8  8 B  position of the first
//	16  8 B  time of the first, Unix ns
//	24  4 B  length of the body as it lies here
//	28  4 B  CRC32C of bytes 0..27 and of all from 32 on
//	32  4 B  length of the body when it is decompressed; the same as at 24 without a codec
//	36       body, compressed as a whole:
//	           uvarint n · n × (uvarint stream number · uvarint sequence of its first record here)
//	           per record: uvarint stream number · uvarint length · varint time since the record before, ns · data
//
// The checksum is over what lies in the file and is looked at first, so a decompressor only gets what this program wrote.
// The length at 32 is at most that of the largest record (260 KiB and 35 B), and nothing more is allocated, whatever the
// compressed bytes say of themselves. A body of less than 200 bytes, or one of which a codec would save less than a
// sixteenth, has none. Version 1 (0xB1) has neither codec nor the length at 32: its body begins there.
//
// # Bounds
//
// A record has at most 260 KiB (an MQTT packet of 256 KiB and what the codec adds), a commit 1 MiB; as much again may wait
// for the next one, beyond which Append waits. The state has 4 MiB, 1 MiB of it dead letters, in a small log a sixteenth of
// max_bytes (the oldest go, counted). 256 dropped ranges are kept; each stream counts all.
// Memory: those, 1 MiB of newest blocks, decompressed, and 8 B for each record of a cursor's window. What a batch costs is
// counted before compression, what a log has on the disk after it.
//
// A stream with a quota is bounded for itself: by the data that one of its cursors has not passed. That is known exactly at the
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
// that find no room then wait for it in memory; what is durable of their cursors stops before their records (letters.go). Any other error of a commit stops the log: what the kernel shows after a
// failed flush is not what is on the medium, so nothing is acknowledged any more, until the log is opened again. It stops too
// when the file it writes to is no longer under its name (looked at after each commit, and each second). bbolt reads
// the active segment through a map, so a bad sector shows as a fault there; that, a panic of bbolt, an error of the device
// and a wrong checksum are ErrDamaged.
//
// Sealed segments are not bbolt's any more: cursors read them by their pages (blockfile.go), in order and ahead, so that a
// cold backlog drains as fast as the device reads.
//
// Before bbolt gets a file every page that can be reached is looked at once (preflight.go): on a damaged one it would panic
// in a goroutine of its own, or never come back. What a killed process has written and not flushed is flushed at the start,
// before anybody sees it.
//
// # Damage
//
// Verify looks at every page, block and record; Salvage makes a log of what is left; Export takes records out. They read by
// pages and go on behind what is torn (walk.go, carve.go). In a salvaged log a block whose table of streams is empty, a
// filler, stands for positions that were lost: its body is zeroes, one for each record. The reasons and the order of the
// exchange are in docs/adr/0012-salvage.md.
package wal
