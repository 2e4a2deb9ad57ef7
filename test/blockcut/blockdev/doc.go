// Package blockdev makes block devices in memory whose power can be cut.
//
//	file system ──▶ /dev/loopN ──▶ FUSE file ──▶ medium in memory
//	 of the test     direct I/O     a process        counts, timing, faults,
//	                                of its own       a record of writes and flushes
//
// New makes a device; any file system can be made on it and mounted (Device.Mount). It counts what reaches it, can take as
// long as a real one (Timing), and can fail (Device.Fail). While it records (Device.Record) each write and each flush goes
// into one line of events, among marks that the test makes. A replica (Device.Replica) is then given what a power cut before
// any of these events may have left (Device.Cut), and is mounted like the device.
//
// # Why a process of its own
//
// A process that serves a file must not wait for it: the garbage collector would stop the threads that answer while
// another one waits for them inside a page fault, and a killed process would stay for ever, its threads in a wait that nobody
// ends. So the medium lives in a child, the same program started again, and Main has to be the first call of a program or
// TestMain that makes devices.
//
// # What stays behind
//
// Nothing, however the test ends. Main moves the program into a mount namespace of its own, so its mounts go with it; the child
// has another one, with the FUSE mount and without those of the program; the loop devices detach themselves with their last
// user; and the child ends after the program, when its mounts are gone.
//
// # The model
//
// A device has a volatile cache. A flush makes durable what was written before it began; of everything written since, a cut
// leaves what the Variant says. Sectors of 512 bytes are written whole or not at all, as are, in each device, the first 4096
// bytes: there ext4 has its superblock, of two sectors, which nothing protects against being torn.
package blockdev
