package blockdev

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Environment of the processes that Main starts.
const (
	envServe = "BLOCKDEV_SERVE"
	envOwn   = "BLOCKDEV_OWN_MOUNTS" // number of the process that has them
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
	if hasOwnMounts() || Usable() != nil {
		return
	}
	if err := startAgain(); err != nil {
		fmt.Fprintln(os.Stderr, "blockdev:", err)
		os.Exit(1)
	}
}

// startAgain starts the program again, with mounts of its own. It returns only where that fails.
func startAgain() error {
	// A namespace belongs to a thread; with exec the whole process gets that of this one.
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("make a mount namespace: %w", err)
	}
	if err := unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := os.Setenv(envOwn, strconv.Itoa(os.Getpid())); err != nil {
		return err
	}
	return fmt.Errorf("start again: %w", syscall.Exec("/proc/self/exe", os.Args, os.Environ()))
}

// hasOwnMounts tells whether Main has made a mount namespace for this process, and not for one that has started it.
func hasOwnMounts() bool { return os.Getenv(envOwn) == strconv.Itoa(os.Getpid()) }

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
	if !hasOwnMounts() {
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

// forgetMounts takes out of the namespace what came with it of the mounts of loop devices.
func forgetMounts() error {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(b)) {
		before, after, _ := strings.Cut(line, " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if len(left) < 5 || len(right) < 2 || left[4] == "/" || !strings.HasPrefix(right[1], "/dev/loop") {
			continue
		}
		at := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(left[4])
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) { // EINVAL: it went with one above it
			return fmt.Errorf("forget %s: %w", at, err)
		}
	}
	return nil
}

func serveChild() error {
	if err := forgetMounts(); err != nil {
		return err
	}
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
	if !hasOwnMounts() {
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
	// A signal that a terminal sends to all reaches the program only: its mounts need an answer until they are gone. And none
	// of them may be in the namespace of who answers, or its last act would be to unmount them, and wait for itself.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Unshareflags: unix.CLONE_NEWNS}
	if err := cmd.Start(); err != nil {
		return nil, nil, errors.Join(err, conn.Close())
	}
	return cmd, conn, nil
}
