package wal_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"edgegateway/wal"
)

// mount mounts something for the time of a test. Without root the test is skipped, but for CI, which has it.
func mount(t *testing.T, args ...string) string {
	t.Helper()
	if os.Getuid() != 0 && os.Getenv("CI") != "true" {
		t.Skip("needs root to mount")
	}
	dir := t.TempDir()
	command(t, "mount", append(args, dir)...)
	t.Cleanup(func() {
		for range 100 {
			if err := exec.Command("umount", dir).Run(); err == nil {
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
		t.Errorf("%s cannot be unmounted", dir)
	})
	return dir
}

// command runs a program to its end, and returns what it says.
func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// ext4 makes an ext4 file system in a file and mounts it.
func ext4(t *testing.T, size int64, features, options string) string {
	t.Helper()
	image := filepath.Join(t.TempDir(), "image")
	f, err := os.Create(image)
	must(t, err)
	must(t, f.Truncate(size))
	must(t, f.Close())
	args := []string{"-q", "-F"}
	if features != "" {
		args = append(args, "-O", features)
	}
	if os.Getuid() == 0 {
		command(t, "mkfs.ext4", append(args, image)...)
	}
	return mount(t, "-o", "rw"+options, loop(t, image))
}

// loop makes a block device of a file. `mount -o loop` would ask every loop device there is for its file first, also one
// whose file never answers.
func loop(t *testing.T, image string) string {
	t.Helper()
	if os.Getuid() != 0 && os.Getenv("CI") != "true" {
		t.Skip("needs root for a loop device")
	}
	device := command(t, "losetup", "--find", "--show", image)
	t.Cleanup(func() {
		if err := exec.Command("losetup", "--detach", device).Run(); err != nil {
			t.Errorf("%s stays behind: %v", device, err)
		}
	})
	return device
}

func kinds(t *testing.T, dir string, maxBytes int64) string {
	t.Helper()
	list, err := wal.Doubts(dir, maxBytes)
	must(t, err)
	var out []string
	for _, d := range list {
		if d.Text == "" || d.Hint == "" {
			t.Errorf("doubt %s has no words", d.Kind)
		}
		out = append(out, d.Kind)
	}
	return strings.Join(out, " ")
}

func TestDoubtsOfRealMounts(t *testing.T) {
	tests := []struct {
		name string
		dir  func(*testing.T) string
		max  int64
		want string
	}{
		{"tmpfs", func(t *testing.T) string { return mount(t, "-t", "tmpfs", "tmpfs") }, 0, "tmpfs"},
		{"tmpfs of 1 MiB for a log of 64 MiB", func(t *testing.T) string { return mount(t, "-t", "tmpfs", "-o", "size=1m", "tmpfs") }, 64 << 20, "tmpfs space"},
		{"ext4 as it should be", func(t *testing.T) string { return ext4(t, 32<<20, "", "") }, 1 << 20, ""},
		{"ext4 without barriers", func(t *testing.T) string { return ext4(t, 32<<20, "", ",nobarrier") }, 0, "nobarrier"},
		{"ext4 with data=writeback", func(t *testing.T) string { return ext4(t, 32<<20, "", ",data=writeback") }, 0, "writeback"},
		{"ext4 with fast_commit", func(t *testing.T) string { return ext4(t, 32<<20, "fast_commit", "") }, 0, "fast_commit"},
		{"ext4 with everything", func(t *testing.T) string { return ext4(t, 32<<20, "fast_commit", ",barrier=0,data=writeback") }, 64 << 20, "nobarrier writeback fast_commit space"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := tt.dir(t)
			if got := kinds(t, dir, tt.max); got != tt.want {
				t.Errorf("doubts %q, want %q", got, tt.want)
			}
			// The log's directory is made later, and may be reached by a link.
			link := filepath.Join(t.TempDir(), "link")
			must(t, os.Symlink(dir, link))
			if got := kinds(t, filepath.Join(link, "lanes", "default"), tt.max); got != tt.want {
				t.Errorf("doubts of a directory below a link %q, want %q", got, tt.want)
			}
		})
	}
}

func TestWhatTheLogHasCountsAsRoomForIt(t *testing.T) {
	dir := mount(t, "-t", "tmpfs", "-o", "size=4m", "tmpfs")
	if got := kinds(t, filepath.Join(dir, "log"), 3<<20); got != "tmpfs" {
		t.Errorf("doubts %q of an empty directory", got)
	}
	l := open(t, filepath.Join(dir, "log"), wal.Options{MaxBytes: 3 << 20})
	cursor(t, l, "u", "s")
	for n := 1; n <= 10; n++ {
		must(t, put(t, l, batch("s", n, n, 200_000)))
	}
	if got := kinds(t, filepath.Join(dir, "log"), 3<<20); got != "tmpfs" {
		t.Errorf("doubts %q while the log has its own bytes", got)
	}
	closeLog(t, l)
}

// TestNoInodesForANewSegment has a file system that takes bytes and no more files.
func TestNoInodesForANewSegment(t *testing.T) {
	dir := mount(t, "-t", "tmpfs", "-o", "size=64m,nr_inodes=16", "tmpfs")
	var lines lockedBuffer
	o := wal.Options{SegmentBytes: small, Log: textLog(&lines)}
	l := open(t, dir, o)
	c := cursor(t, l, "u", "s")
	must(t, put(t, l, batch("s", 1, 1, 10_000)))
	var fillers []string
	for {
		f, err := os.CreateTemp(dir, "filler")
		if err != nil {
			if !errors.Is(err, syscall.ENOSPC) {
				t.Fatal(err)
			}
			break
		}
		fillers = append(fillers, f.Name())
		must(t, f.Close())
	}
	for n := 2; n <= 60; n++ { // nine segments' worth
		must(t, put(t, l, batch("s", n, n, 10_000)))
	}
	if n := len(segments(t, dir)); n > 2 {
		t.Errorf("%d segments were made without a file for them", n)
	}
	if s := l.Stats(); s.State != wal.StateOK || s.Err != nil {
		t.Errorf("state %s, %v, while records are taken", s.State, s.Err)
	}
	if n := lines.count("no room for a new segment, going on in the present one"); n != 1 {
		t.Errorf("%d lines say so, want 1:\n%s", n, lines.String())
	}
	expect(t, c, "s", 1, 60, 10_000)
	for _, f := range fillers {
		must(t, os.Remove(f))
	}
	n := 60
	eventually(t, "a new segment", func() bool {
		n++
		must(t, put(t, l, batch("s", n, n, 10_000)))
		return lines.count("there is room for new segments again") == 1
	})
	c.Done(expect(t, c, "s", 61, n, 10_000)...)
	closeLog(t, l)
	l = open(t, dir, o)
	expect(t, cursor(t, l, "u", "s"), "s", 1, 60, 10_000)
	closeLog(t, l)
}

// TestReserveOnAFullDisk has a real disk without a free block: cursors are written, released and survive, and room comes back
// by draining alone.
func TestReserveOnAFullDisk(t *testing.T) {
	dir := ext4(t, 16<<20, "", "")
	o := wal.Options{SegmentBytes: 1 << 20}
	l := open(t, filepath.Join(dir, "log"), o)
	c, gone := cursor(t, l, "u", "s"), cursor(t, l, "gone", "s")
	for n := 1; n <= 50; n++ {
		must(t, put(t, l, batch("s", n, n, 100_000)))
	}
	fill(t, filepath.Join(dir, "filler"))
	result := make(chan error, 1)
	b := batch("s", 51, 51, 250_000)
	b.Urgent = true
	full := 50
	for l.Stats().State == wal.StateOK { // what the active segment still has is used first
		full++
		b = batch("s", full, full, 250_000)
		b.Urgent = true
		must(t, l.Append(t.Context(), b, func(err error) { result <- err }))
		eventually(t, "an answer", func() bool { return len(result) > 0 || l.Stats().State == wal.StateFull })
		if len(result) > 0 {
			must(t, <-result)
		}
	}
	before, first := len(segments(t, filepath.Join(dir, "log"))), 20
	c.Done(expect(t, c, "s", 1, first, 100_000)...)
	eventually(t, "cursor written on the full disk", func() bool { return at(l, "u") == 20 })
	gone.Close()
	must(t, l.Release("gone", "s"))
	eventually(t, "segments freed on the full disk", func() bool { return len(segments(t, filepath.Join(dir, "log"))) < before })
	must(t, within(t, result))
	closeLog(t, l)
	l = open(t, filepath.Join(dir, "log"), o)
	if list := l.Cursors(); len(list) != 1 || list[0].Uplink != "u" || list[0].Seq != 20 {
		t.Errorf("cursors after a restart on the full disk: %+v", list)
	}
	c = cursor(t, l, "u", "s")
	expect(t, c, "s", 21, 50, 100_000)
	expect(t, c, "s", 51, full, 250_000)
	closeLog(t, l)
}

func at(l *wal.Log, uplink string) uint64 {
	for _, c := range l.Cursors() {
		if c.Uplink == uplink {
			return c.Seq
		}
	}
	return 0
}

// fill takes what the disk has left.
func fill(t *testing.T, name string) {
	t.Helper()
	f, err := os.Create(name)
	must(t, err)
	defer func() { _ = f.Close() }()
	for _, size := range []int{1 << 20, 4096} {
		for block := make([]byte, size); err == nil; {
			_, err = f.Write(block)
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
		err = nil
	}
	must(t, f.Sync())
}
