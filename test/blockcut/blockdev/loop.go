package blockdev

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// attach makes a loop device of a file. It detaches itself when its last user closes it.
func attach(file *os.File, sector int) (*os.File, error) {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = control.Close() }()
	for try := 0; ; try++ {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("find a free loop device: %w", err)
		}
		loop, err := openLoop(n)
		if err != nil {
			return nil, err
		}
		c := unix.LoopConfig{
			Fd: uint32(file.Fd()), Size: uint32(sector), Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_DIRECT_IO | unix.LO_FLAGS_AUTOCLEAR},
		}
		err = unix.IoctlLoopConfigure(int(loop.Fd()), &c)
		runtime.KeepAlive(file)
		if err == nil {
			return loop, nil
		}
		_ = loop.Close()
		if !errors.Is(err, unix.EBUSY) || try > 1000 {
			return nil, fmt.Errorf("attach %s: %w", loop.Name(), err)
		}
		time.Sleep(time.Millisecond) // somebody else was faster
	}
}

// openLoop opens a loop device, and makes its node where nobody does that.
func openLoop(n int) (*os.File, error) {
	path := fmt.Sprintf("/dev/loop%d", n)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		if err := unix.Mknod(path, unix.S_IFBLK|0o600, int(unix.Mkdev(7, uint32(n)))); err != nil && !errors.Is(err, unix.EEXIST) {
			return nil, fmt.Errorf("make %s: %w", path, err)
		}
		f, err = os.OpenFile(path, os.O_RDWR, 0)
	}
	return f, err
}

// backingFile returns the file of a loop device, or nothing where it has none.
func backingFile(loop string) string {
	b, _ := os.ReadFile("/sys/block/" + filepath.Base(loop) + "/loop/backing_file")
	return strings.TrimSpace(string(b))
}
