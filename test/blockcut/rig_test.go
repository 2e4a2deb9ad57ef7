package blockcut_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"edgegateway/test/blockcut/blockdev"
)

// TestMain says in one line where nothing can be tested, and succeeds; not on a build machine that could.
func TestMain(m *testing.M) {
	blockdev.Main()
	err := blockdev.Usable()
	if _, lookErr := exec.LookPath("mkfs.ext4"); err == nil {
		err = lookErr
	}
	if err == nil {
		os.Exit(m.Run())
	}
	fmt.Fprintln(os.Stderr, "power-cut block: not possible here:", err)
	report("power-cut block: not possible here: " + err.Error())
	if _, fuseErr := os.Stat("/dev/fuse"); os.Getenv("CI") == "true" && fuseErr == nil {
		os.Exit(1)
	}
	os.Exit(0)
}

// report adds a figure to the file in which make looks for it.
func report(line string) {
	file := os.Getenv("POWERCUT_RESULT")
	if file == "" {
		return
	}
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = fmt.Fprintln(f, line)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "power-cut block:", err)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

const (
	imageMiB = 24
	journal  = 1060 * 4096 // where mkfs.ext4 puts the journal of such an image: it lies before this
)

// newDevice returns a device with an empty ext4 of so many MiB, with a journal. It is small, so that a mount reads little.
func newDevice(t testing.TB, mib int) *blockdev.Device {
	t.Helper()
	image := filepath.Join(t.TempDir(), "image")
	mkfs := exec.Command("mkfs.ext4", "-q", "-F", "-b", "4096", "-J", "size=4", "-m", "0", "-N", "256", "-O", "^resize_inode",
		"-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard", image, fmt.Sprint(mib, "M"))
	if out, err := mkfs.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	d, err := blockdev.New(int64(mib)<<20, blockdev.Options{Image: image, SectorSize: 4096})
	must(t, err)
	closeAfter(t, d)
	return d
}

func newReplica(t testing.TB, d *blockdev.Device) *blockdev.Device {
	t.Helper()
	r, err := d.Replica()
	must(t, err)
	closeAfter(t, r)
	return r
}

func closeAfter(t testing.TB, d *blockdev.Device) {
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
}

// mount mounts the ext4 of a device and returns the directory of the log on it.
func mount(d *blockdev.Device, at, options string) (string, error) {
	return filepath.Join(at, "log"), d.Mount("ext4", at, options)
}

// waiting returns, for each place in a record, how many writes were not flushed just before it.
func waiting(events []blockdev.Event) []int {
	out := make([]int, len(events)+1)
	for i, e := range events {
		switch out[i+1] = out[i]; e.Op {
		default:
		case blockdev.OpWrite:
			out[i+1]++
		case blockdev.OpFlush:
			out[i+1] = 0
		}
	}
	return out
}

// placeOf returns where a byte of a file lies on its device.
func placeOf(t testing.TB, path string, off int64) int64 {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	defer func() { must(t, f.Close()) }()
	const fibmap = 1
	block := int32(off / 4096)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), fibmap, uintptr(unsafe.Pointer(&block))); errno != 0 {
		t.Fatal(errno)
	}
	return int64(block)*4096 + off%4096
}
