package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// disk is where everything is measured: a directory, and the counters of the device below it.
type disk struct {
	dir     string
	device  string // MAJOR:MINOR, empty where there is none to ask
	what    string // for people
	shared  bool   // other programs write there too
	release []func() error
}

// The devices that openDisk makes.
const (
	deviceLoop = "loop" // over an image in build; where that cannot be, a plain directory there
	deviceEMMC = "emmc" // in memory, with the timing of a flash chip
)

// openDisk makes a device of a kind with a journaled ext4. With dir nothing is made.
func openDisk(kind, dir, build string, size int64, progress func(string, ...any)) (*disk, error) {
	if dir != "" {
		sub, err := os.MkdirTemp(dir, "benchwal-")
		if err != nil {
			return nil, err
		}
		d := &disk{dir: sub, what: "a given directory", shared: true}
		d.onClose(func() error { return os.RemoveAll(sub) })
		d.findDevice()
		return d, nil
	}
	d := &disk{}
	base := filepath.Join(build, "benchwal")
	if err := os.MkdirAll(base, 0o750); err != nil {
		return nil, err
	}
	if err := d.lock(base); err != nil {
		return nil, err
	}
	d.onClose(func() error { return os.RemoveAll(base) })
	if err := clean(base); err != nil {
		return nil, errors.Join(err, d.close())
	}
	if kind == deviceEMMC {
		if err := d.mountEMMC(base, size); err != nil {
			return nil, errors.Join(err, d.close())
		}
		d.findDevice()
		return d, nil
	}
	progress("device: writing an image of %d MiB", size/mib)
	if err := d.mountLoop(base, size); err != nil {
		progress("no loop device (%v): measuring in a plain directory, whose file system may be cheaper or dearer", err)
		d.dir, d.what, d.shared = filepath.Join(base, "plain"), "a plain directory", true
		if err := os.Mkdir(d.dir, 0o750); err != nil {
			return nil, errors.Join(err, d.close())
		}
	}
	d.findDevice()
	return d, nil
}

// lock keeps a second run away from the first one's device.
func (d *disk) lock(base string) error {
	f, err := os.OpenFile(filepath.Join(base, "LOCK"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return errors.Join(fmt.Errorf("another run measures in %s: %w", base, err), f.Close())
	}
	d.onClose(f.Close)
	return nil
}

// clean removes what a killed run has left in base.
func clean(base string) error {
	_ = unix.Unmount(filepath.Join(base, "mnt"), 0) // usually nothing is mounted
	image := filepath.Join(base, "image")
	if _, err := os.Stat(image); err == nil {
		out, _ := exec.Command("losetup", "--noheadings", "-O", "NAME", "-j", image).Output()
		for loop := range strings.FieldsSeq(string(out)) {
			if err := command("losetup", "-d", loop); err != nil {
				return err
			}
		}
	}
	for _, name := range []string{"mnt", "plain", "image"} {
		if err := os.RemoveAll(filepath.Join(base, name)); err != nil {
			return err
		}
	}
	return nil
}

// mountLoop makes the device. The image is written, not only allocated: otherwise the disk below would pay for the
// first write to each place. Direct I/O keeps the image out of the page cache, so that a flush reaches the disk and a
// cold read is cold.
func (d *disk) mountLoop(base string, size int64) error {
	if os.Geteuid() != 0 {
		return errors.New("not root")
	}
	image := filepath.Join(base, "image")
	if err := writeZeroes(image, size); err != nil {
		return err
	}
	out, err := exec.Command("losetup", "--direct-io=on", "-f", "--show", image).Output()
	if err != nil {
		return fmt.Errorf("losetup: %w", err)
	}
	loop := strings.TrimSpace(string(out))
	undo := func(err error) error { return errors.Join(err, command("losetup", "-d", loop)) }
	if err := makeFileSystem(loop); err != nil {
		return undo(err)
	}
	mnt := filepath.Join(base, "mnt")
	if err := os.Mkdir(mnt, 0o750); err != nil {
		return undo(err)
	}
	if err := unix.Mount(loop, mnt, "ext4", unix.MS_NOATIME, ""); err != nil {
		return undo(fmt.Errorf("mount: %w", err))
	}
	d.onClose(func() error { return command("losetup", "-d", loop) })
	d.onClose(func() error { return unmount(mnt) })
	d.dir, d.what = mnt, "ext4 with journal on a loop device"
	return nil
}

// makeFileSystem makes a journaled ext4. The image must stay written, so nothing is discarded; nothing is left to be
// initialized in the background.
func makeFileSystem(path string) error {
	return command("mkfs.ext4", "-q", "-b", "4096", "-m", "0", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0", path)
}

// unmount waits a little for files that a peer closes in the background. What it never closes is taken from it, so that
// nothing is left mounted; the loop device then goes with the process.
func unmount(mnt string) error {
	for range 50 {
		if err := unix.Unmount(mnt, 0); !errors.Is(err, unix.EBUSY) {
			return err
		}
		time.Sleep(100 * time.Millisecond)
	}
	return unix.Unmount(mnt, unix.MNT_DETACH)
}

func writeZeroes(path string, size int64) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	zero := make([]byte, 4*mib)
	for ; size > 0 && err == nil; size -= int64(len(zero)) {
		_, err = f.Write(zero[:min(int64(len(zero)), size)])
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

func command(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(string(out)))
	}
	return nil
}

func (d *disk) onClose(f func() error) { d.release = append(d.release, f) }

// close undoes everything that openDisk has made, the newest first.
func (d *disk) close() error {
	var errs []error
	for _, release := range slices.Backward(d.release) {
		errs = append(errs, release())
	}
	d.release = nil
	return errors.Join(errs...)
}

// findDevice looks up the block device that holds the directory. A file system in memory has none.
func (d *disk) findDevice() {
	var st unix.Stat_t
	if err := unix.Stat(d.dir, &st); err != nil {
		return
	}
	device := fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev))
	if _, err := os.Stat("/sys/dev/block/" + device + "/stat"); err == nil {
		d.device = device
	}
}

// counts are what a device has done since it exists.
type counts struct {
	readBytes, writes, bytes, flushes int64
}

func (c counts) minus(o counts) counts {
	return counts{c.readBytes - o.readBytes, c.writes - o.writes, c.bytes - o.bytes, c.flushes - o.flushes}
}

func (c *counts) add(o counts) {
	c.readBytes, c.writes, c.bytes, c.flushes = c.readBytes+o.readBytes, c.writes+o.writes, c.bytes+o.bytes, c.flushes+o.flushes
}

// counted tells whether the device tells what it does.
func (d *disk) counted() bool { return d.device != "" }

// counts reads the device's counters; all are 0 where there is no device. The order of the numbers is that of the
// kernel's Documentation/block/stat.rst.
func (d *disk) counts() counts {
	if d.device == "" {
		return counts{}
	}
	text, err := os.ReadFile("/sys/dev/block/" + d.device + "/stat")
	if err != nil {
		return counts{}
	}
	var n [17]int64
	for i, word := range strings.Fields(string(text)) {
		if i < len(n) {
			n[i], _ = strconv.ParseInt(word, 10, 64)
		}
	}
	return counts{readBytes: n[2] * 512, writes: n[4], bytes: n[6] * 512, flushes: n[15]}
}

// settle has everything written that the page cache and the journal still hold, so that the next counts are clean.
func (d *disk) settle() {
	f, err := os.Open(d.dir)
	if err != nil {
		return
	}
	_ = unix.Syncfs(int(f.Fd())) // a failing disk shows in what is measured
	_ = f.Close()                // it was only looked at
}
