package blockdev

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// Environment of the processes that Main starts.
const (
	envServe = "BLOCKDEV_SERVE"
	envOwn   = "BLOCKDEV_OWN_MOUNTS"
)

// Main has to be the first call of main or TestMain. In the program itself it makes a mount namespace, starts the program
// again in it, in the same process, and returns there; where it may not, it returns at once and Usable says why. In the
// serving process it does not return.
func Main() {
	if os.Getenv(envServe) != "" {
		if err := serveChild(); err != nil {
			fmt.Fprintln(os.Stderr, "blockdev:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if os.Getenv(envOwn) != "" || Usable() != nil {
		return
	}
	// A namespace belongs to a thread; with exec the whole process gets that of this one.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return
	}
	if err := unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		fmt.Fprintln(os.Stderr, "blockdev: make mounts private:", err)
		os.Exit(1)
	}
	err := syscall.Exec("/proc/self/exe", os.Args, append(os.Environ(), envOwn+"=1"))
	fmt.Fprintln(os.Stderr, "blockdev: start again:", err)
	os.Exit(1)
}

// Usable returns why no device can be made here, or nil.
func Usable() error {
	if os.Geteuid() != 0 {
		return errors.New("only root can make block devices")
	}
	for _, path := range []string{"/dev/fuse", "/dev/loop-control"} {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		_ = f.Close()
	}
	if os.Getenv(envOwn) == "" {
		var err error
		done := make(chan struct{})
		go func() {
			defer close(done)
			runtime.LockOSThread() // never unlocked: the thread ends here, and its namespace with it
			err = unix.Unshare(unix.CLONE_NEWNS)
		}()
		if <-done; err != nil {
			return fmt.Errorf("make a mount namespace: %w", err)
		}
	}
	return nil
}

func serveChild() error {
	f := os.NewFile(3, "socket")
	conn, err := net.FileConn(f)
	if err != nil {
		return err
	}
	_ = f.Close()
	return serve(conn)
}

// startServer starts the program again as the serving process.
func startServer() (*exec.Cmd, net.Conn, error) {
	if os.Getenv(envOwn) == "" {
		return nil, nil, errors.New("blockdev: Main was not called first")
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "socket"), os.NewFile(uintptr(fds[1]), "socket")
	defer func() { _ = theirs.Close() }()
	defer func() { _ = ours.Close() }()
	conn, err := net.FileConn(ours)
	if err != nil {
		return nil, nil, err
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), envServe+"=1")
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.Stderr = os.Stderr
	// A signal that a terminal sends to all reaches the program only: its mounts need an answer until they are gone.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, nil, errors.Join(err, conn.Close())
	}
	return cmd, conn, nil
}
