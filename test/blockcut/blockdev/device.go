package blockdev

import (
	"errors"
	"fmt"
	"io"
	"net/rpc"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Device is a block device in memory. Its methods may be called from any goroutine, but for those that change its contents:
// Reset and Cut need it unmounted and closed by everybody.
type Device struct {
	h    *host
	n    int
	o    Options
	size int64
	file *os.File

	mu    sync.Mutex // guards the fields below
	loop  *os.File   // keeps it attached
	mount string     // where it is mounted; empty: nowhere
}

// patience is how long a device waits for those who still use it.
const patience = 5 * time.Second

// host is the serving process, and the directory of its FUSE mount.
type host struct {
	cmd *exec.Cmd
	rpc *rpc.Client
	dir *os.File

	mu    sync.Mutex // guards the field below
	users int
}

// New makes a device of a size, a multiple of 4096, and attaches it.
func New(size int64, o Options) (*Device, error) {
	if size <= 0 || size%pageSize != 0 {
		return nil, fmt.Errorf("size of a device is %d (want a multiple of %d)", size, pageSize)
	}
	if o.SectorSize == 0 {
		o.SectorSize = sectorSize
	}
	h, err := newHost()
	if err != nil {
		return nil, fmt.Errorf("make a block device: %w", err)
	}
	d, err := h.add(size, o)
	if err != nil {
		return nil, fmt.Errorf("make a block device: %w", errors.Join(err, h.stop()))
	}
	return d, nil
}

func newHost() (*host, error) {
	cmd, conn, err := startServer()
	if err != nil {
		return nil, err
	}
	h := &host{cmd: cmd, rpc: rpc.NewClient(conn)}
	if err := h.open(); err != nil {
		return nil, errors.Join(err, h.stop())
	}
	return h, nil
}

// open has the FUSE mount made, where only the serving process sees it, and opens its directory.
func (h *host) open() error {
	at, err := os.MkdirTemp("", "blockdev-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(at) }() // and with it the mount, as far as paths go
	if at, err = filepath.Abs(at); err != nil {
		return err
	}
	if err := h.rpc.Call("Device.Mount", at, &None{}); err != nil {
		return err
	}
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/root%s", h.cmd.Process.Pid, at), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	h.dir = os.NewFile(uintptr(fd), at)
	return nil
}

func (h *host) add(size int64, o Options) (*Device, error) {
	d := &Device{h: h, o: o, size: size}
	if err := h.rpc.Call("Device.New", Make{Size: size, Image: o.Image, Timing: o.Timing}, &d.n); err != nil {
		return nil, err
	}
	fd, err := unix.Openat(int(h.dir.Fd()), fmt.Sprintf("%d.%d", os.Getpid(), d.n), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	d.file = os.NewFile(uintptr(fd), "device")
	if d.loop, err = attach(d.file, d.o.SectorSize); err != nil {
		return nil, errors.Join(err, d.file.Close())
	}
	h.mu.Lock()
	h.users++
	h.mu.Unlock()
	return d, nil
}

// release ends the serving process with its last device.
func (h *host) release() error {
	h.mu.Lock()
	h.users--
	last := h.users == 0
	h.mu.Unlock()
	if !last {
		return nil
	}
	return h.stop()
}

func (h *host) stop() error {
	if h.dir != nil {
		_ = h.dir.Close()
	}
	_ = h.rpc.Close()
	slow := time.AfterFunc(2*goodbye, func() { _ = h.cmd.Process.Kill() })
	defer slow.Stop()
	return h.cmd.Wait()
}

// Replica makes another device of the same size, for Cut.
func (d *Device) Replica() (*Device, error) {
	return d.h.add(d.size, Options{SectorSize: d.o.SectorSize})
}

// Path returns the device's path. It is another one after Reset and Cut.
func (d *Device) Path() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.loop.Name()
}

// Mount mounts the file system of the device, without access times. It is unmounted by Unmount or Close.
func (d *Device) Mount(fstype, dir, options string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mount != "" {
		return fmt.Errorf("device is mounted on %s", d.mount)
	}
	if err := unix.Mount(d.loop.Name(), dir, fstype, unix.MS_NOATIME, options); err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	d.mount = dir
	return nil
}

// Unmount unmounts it. Where somebody still uses it, it is taken out of the tree all the same and an error says so.
func (d *Device) Unmount() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mount == "" {
		return nil
	}
	err := unix.Unmount(d.mount, 0)
	// A child that is just being started has copies of the open files until it runs its own program.
	for end := time.Now().Add(patience); errors.Is(err, unix.EBUSY) && time.Now().Before(end); err = unix.Unmount(d.mount, 0) {
		time.Sleep(time.Millisecond)
	}
	if err != nil {
		err = errors.Join(fmt.Errorf("unmount: %w", err), unix.Unmount(d.mount, unix.MNT_DETACH))
	}
	d.mount = ""
	return err
}

// Close unmounts and detaches the device. The last one of New and its replicas ends the serving process.
func (d *Device) Close() error {
	return errors.Join(d.Unmount(), d.loop.Close(), d.file.Close(), d.h.release())
}

// Counts returns what has reached the device since it was made, reset or cut. To attach it is a flush already.
func (d *Device) Counts() (Counts, error) {
	var c Counts
	err := d.h.rpc.Call("Device.Counts", On{Device: d.n}, &c)
	return c, err
}

// SetTiming changes how long the device takes.
func (d *Device) SetTiming(t Timing) error {
	return d.h.rpc.Call("Device.Time", On{Device: d.n, Timing: t}, &None{})
}

// Fail makes operations fail from now on.
func (d *Device) Fail(f Fault) error {
	return d.h.rpc.Call("Device.Fail", On{Device: d.n, Fault: f}, &None{})
}

// Record begins a record with what the device holds now, which counts as flushed.
func (d *Device) Record() error { return d.h.rpc.Call("Device.Record", On{Device: d.n}, &None{}) }

// Mark puts a mark into the record and returns its place there.
func (d *Device) Mark() (int, error) {
	var at int
	err := d.h.rpc.Call("Device.Mark", On{Device: d.n}, &at)
	return at, err
}

// Events returns the record.
func (d *Device) Events() ([]Event, error) {
	var out []Event
	err := d.h.rpc.Call("Device.Events", On{Device: d.n}, &out)
	return out, err
}

// Reset gives the device its first contents, and ends record and fault.
func (d *Device) Reset() error {
	return d.change(func() error { return d.h.rpc.Call("Device.Reset", On{Device: d.n}, &None{}) })
}

// Cut gives the device what a power cut in the record of another one may have left, a replica's or its original's. It
// returns how many writes were not flushed at that moment. Ascending cuts are cheap: only what has changed is copied.
func (d *Device) Cut(of *Device, c Cut) (waiting int, err error) {
	if d.h != of.h {
		return 0, errors.New("cut: not a replica of that device")
	}
	err = d.change(func() error { return d.h.rpc.Call("Device.Cut", On{Device: d.n, Of: of.n, Cut: c}, &waiting) })
	return waiting, err
}

// change changes the contents below the kernel, which must have forgotten them: so the loop device is a new one.
func (d *Device) change(do func() error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mount != "" {
		return fmt.Errorf("device is mounted on %s", d.mount)
	}
	old := d.loop.Name()
	if err := d.loop.Close(); err != nil {
		return err
	}
	// A serving process that is just being started has a copy of the mount, for a moment.
	backing := fmt.Sprintf("/%d.%d", os.Getpid(), d.n)
	for end := time.Now().Add(patience); backingFile(old) == backing; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return fmt.Errorf("%s is still in use", old)
		}
	}
	if err := do(); err != nil {
		return err
	}
	loop, err := attach(d.file, d.o.SectorSize)
	if err != nil {
		return err
	}
	d.loop = loop
	return nil
}

// Warm has the kernel read a range of the device in few large requests, so that a mount that needs it in small pieces, as
// the replay of a journal does, finds it in memory.
func (d *Device) Warm(off, n int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, err := io.Copy(io.Discard, io.NewSectionReader(d.loop, off, n))
	return err
}
