package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

const nandPage = 16 << 10

// deviceTrace follows each write and flush of one block device through the kernel's event trace, in an instance of its
// own, so that nobody else's tracing is disturbed.
type deviceTrace struct {
	mount    string // where tracefs was mounted for this, empty where it was there already
	instance string
	device   string // MAJOR,MINOR
}

// traceDevice starts to follow the device MAJOR:MINOR. It needs root.
func traceDevice(device string) (t *deviceTrace, err error) {
	t = &deviceTrace{device: strings.Replace(device, ":", ",", 1)}
	base := "/sys/kernel/tracing"
	if _, err := os.Stat(base + "/instances"); err != nil {
		if t.mount, err = os.MkdirTemp("", "tracefs-"); err != nil {
			return nil, err
		}
		if err := unix.Mount("none", t.mount, "tracefs", 0, ""); err != nil {
			return nil, errors.Join(fmt.Errorf("mount tracefs: %w", err), os.Remove(t.mount))
		}
		base = t.mount
	}
	t.instance = filepath.Join(base, "instances", fmt.Sprint("benchwal-", os.Getpid()))
	if err := os.Mkdir(t.instance, 0o750); err != nil {
		t.instance = ""
		return nil, errors.Join(err, t.remove())
	}
	var major, minor int64
	if _, err := fmt.Sscanf(device, "%d:%d", &major, &minor); err != nil {
		return nil, errors.Join(err, t.remove())
	}
	event := t.instance + "/events/block/block_rq_complete"
	for _, w := range [][2]string{
		{t.instance + "/buffer_size_kb", "4096"},
		{event + "/filter", fmt.Sprintf("dev == %d", major<<20|minor)}, // as the kernel packs it
		{event + "/enable", "1"},
	} {
		if err := os.WriteFile(w[0], []byte(w[1]), 0); err != nil {
			return nil, errors.Join(err, t.remove())
		}
	}
	return t, nil
}

// close ends the trace and adds up what was written: in whole NAND pages between flushes, and plainly.
func (t *deviceTrace) close() (nand int64, seen counts, err error) {
	err = os.WriteFile(t.instance+"/events/block/block_rq_complete/enable", []byte("0"), 0)
	text, readErr := os.ReadFile(t.instance + "/trace")
	if err = errors.Join(err, readErr, t.remove()); err != nil {
		return 0, counts{}, err
	}
	nand, seen = nandBytes(string(text))
	return nand, seen, nil
}

func (t *deviceTrace) remove() error {
	var err error
	if t.instance != "" {
		err = unix.Rmdir(t.instance) // tracefs removes what is in it
	}
	if t.mount != "" {
		err = errors.Join(err, unix.Unmount(t.mount, 0), os.Remove(t.mount))
	}
	return err
}

// nandBytes reads lines of block_rq_complete:
//
//	… block_rq_complete: 7,0 WS () 32770 + 8 be,0,4 [0]      a write of 8 sectors of 512 bytes
//	… block_rq_complete: 7,0 FF () 18446744073709551615 + 0  a flush
//
// A write may also end with nothing written: the end of one that had to be flushed behind it.
func nandBytes(trace string) (nand int64, seen counts) {
	open := int64(0) // bytes since the last flush
	flush := func() {
		nand += (open + nandPage - 1) / nandPage * nandPage
		open = 0
	}
	for line := range strings.Lines(trace) {
		_, rest, ok := strings.Cut(line, "block_rq_complete: ")
		if !ok {
			continue
		}
		var device, what, command, plus string
		var sector uint64
		var sectors int64
		if n, _ := fmt.Sscan(rest, &device, &what, &command, &sector, &plus, &sectors); n != 6 {
			continue
		}
		switch {
		case strings.HasPrefix(what, "FF"):
			seen.flushes++
			flush()
		case strings.HasPrefix(what, "W") || strings.HasPrefix(what, "FW"):
			if sectors > 0 {
				seen.writes++
			}
			seen.bytes += sectors * 512
			open += sectors * 512
		}
	}
	flush()
	return nand, seen
}
