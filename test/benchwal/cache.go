package main

import (
	"errors"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

func fdatasync(f *os.File) error { return unix.Fdatasync(int(f.Fd())) }

// dropCache takes files out of the page cache, so that the next read comes from the device.
func dropCache(paths []string) error {
	for _, path := range paths {
		f, err := os.Open(path)
		if errors.Is(err, os.ErrNotExist) {
			continue // drained meanwhile
		}
		if err != nil {
			return err
		}
		err = errors.Join(f.Sync(), unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED), f.Close())
		if err != nil {
			return err
		}
	}
	return nil
}

// readPlain reads files one after the other with a large buffer, and returns how many bytes there were.
func readPlain(paths []string, buf []byte) (int64, error) {
	var n int64
	for _, path := range paths {
		f, err := os.Open(path)
		if errors.Is(err, os.ErrNotExist) {
			continue // drained meanwhile
		}
		if err != nil {
			return n, err
		}
		for err == nil {
			var m int
			m, err = f.Read(buf)
			n += int64(m)
		}
		if err = errors.Join(ignoreEOF(err), f.Close()); err != nil {
			return n, err
		}
	}
	return n, nil
}

func ignoreEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// anonymous returns the resident memory of this process that no file stands behind, in bytes.
func anonymous() int64 {
	text, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			n, _ := strconv.ParseInt(strings.Fields(value)[0], 10, 64)
			return n * kib
		}
	}
	return 0
}
