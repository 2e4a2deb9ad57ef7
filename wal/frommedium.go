package wal

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"
)

// examine makes sure of what Options asks for before anything of the log is believed.
func (l *Log) examine(numbers []uint64) error {
	if l.o.FromMedium {
		for _, n := range numbers {
			if err := dropPages(filepath.Join(l.dir, segmentName(n))); err != nil {
				return err
			}
		}
	}
	if l.o.Verify != VerifyFull {
		return nil
	}
	r, err := verifyDir(l.dir, nil)
	if err != nil {
		return err
	}
	return r.Err()
}

// dropPages has the kernel forget what it remembers of a file, so that the next read comes from the medium: after a failed
// flush it may hold pages as clean that were never written. A flush that succeeds now proves nothing, so what the kernel
// keeps nevertheless is compared with the medium.
func dropPages(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	if fi.Size() == 0 {
		return nil
	}
	for range 2 {
		if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
			return fmt.Errorf("drop the pages of %s: %w", path, err)
		}
		left, err := resident(f, fi.Size())
		if err != nil {
			return fmt.Errorf("drop the pages of %s: %w", path, err)
		}
		if left == 0 {
			return nil
		}
		// A page that is still to be written cannot be dropped.
		if err := f.Sync(); err != nil {
			return fmt.Errorf("flush %s: %w", path, err)
		}
	}
	return compareDirect(f, path, fi.Size())
}

// resident counts the pages of a file that are in memory.
func resident(f *os.File, size int64) (int, error) {
	const step = 64 << 20 // maps no more at a time than a small address space has
	n := 0
	for off := int64(0); off < size; off += step {
		length := min(step, size-off)
		m, err := unix.Mmap(int(f.Fd()), off, int(length), unix.PROT_READ, unix.MAP_SHARED)
		if err != nil {
			return 0, fmt.Errorf("map: %w", err)
		}
		page := int64(os.Getpagesize())
		in := make([]byte, (length+page-1)/page)
		_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&m[0])), uintptr(length), uintptr(unsafe.Pointer(&in[0])))
		err = unix.Munmap(m)
		if errno != 0 {
			return 0, fmt.Errorf("mincore: %w", errno)
		}
		if err != nil {
			return 0, fmt.Errorf("unmap: %w", err)
		}
		for _, b := range in {
			n += int(b & 1)
		}
	}
	return n, nil
}

// compareDirect reads a file past the cache and compares it with what the cache says.
func compareDirect(cached *os.File, path string, size int64) error {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(cached.Fd()), &fs); err != nil {
		return fmt.Errorf("statfs %s: %w", path, err)
	}
	if t := uint32(fs.Type); t == unix.TMPFS_MAGIC || t == unix.RAMFS_MAGIC {
		return nil // memory is all the medium it has
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("%s cannot be read past the cache: %w", path, err)
	}
	direct := os.NewFile(uintptr(fd), path)
	defer func() { _ = direct.Close() }()
	const step = 256 << 10
	// Direct reads want memory and lengths that are aligned; a map of no file is.
	buf, err := unix.Mmap(-1, 0, step, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return fmt.Errorf("map: %w", err)
	}
	defer func() { _ = unix.Munmap(buf) }()
	have := make([]byte, step)
	for off := int64(0); off < size; off += step {
		want := int(min(step, size-off))
		n, err := unix.Pread(fd, buf, off)
		if err != nil {
			return &os.PathError{Op: "read", Path: path, Err: err}
		}
		if m, err := cached.ReadAt(have[:want], off); m < want && err != nil {
			return err
		}
		if n < want || !bytes.Equal(buf[:want], have[:want]) {
			return fmt.Errorf("%w: %s: %w", ErrDamaged, path, errMemory)
		}
	}
	return nil
}

var errMemory = errors.New("the medium holds something else than the memory of the system")
