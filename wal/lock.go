package wal

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const lockName = "LOCK"

// lockDir takes the directory for this process, or says at once who has it.
func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		pid := readPid(f)
		_ = f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock log %s: %w", dir, err)
		}
		if pid != 0 {
			return nil, fmt.Errorf("open log %s: %w (process %d)", dir, ErrLocked, pid)
		}
		return nil, fmt.Errorf("open log %s: %w", dir, ErrLocked)
	}
	// The number helps a person only; a full disk must not keep the log from opening.
	if f.Truncate(0) == nil {
		_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	return f, nil
}

func unlockDir(f *os.File) {
	_ = f.Truncate(0)
	_ = f.Close() // the lock goes with it
}

func readPid(r io.ReaderAt) int {
	var b [16]byte
	n, _ := r.ReadAt(b[:], 0)
	pid, err := strconv.Atoi(strings.TrimSpace(string(b[:n])))
	if err != nil || pid <= 0 {
		return 0
	}
	return pid
}

// syncPath makes the names in a directory, or the contents of a file, durable.
func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	err = f.Sync()
	return errors.Join(err, f.Close())
}
