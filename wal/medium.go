package wal

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Doubt is a reason not to trust the medium under a log, or not to have enough of it.
type Doubt struct {
	Kind string // "fast_commit", "nobarrier", "writeback", "overlay", "tmpfs", "vfat", "space"
	Text string // what is so, and what may come of it
	Hint string // what a person can do
}

// mountPoint is what /proc/self/mountinfo says of the file system that holds a path.
type mountPoint struct {
	path    string
	fs      string
	device  string // as /dev/NAME, where there is one
	options []string
}

// Doubts looks at what the directory of a log, which may not be there yet, lies on. It needs no rights beyond those to the
// directory. maxBytes is what the log may have on disk, 0 for no bound.
func Doubts(dir string, maxBytes int64) ([]Doubt, error) {
	at, err := existing(dir)
	if err != nil {
		return nil, err
	}
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("look at the medium: %w", err)
	}
	m, err := findMount(f, at)
	_ = f.Close() // it was only read
	if err != nil {
		return nil, err
	}
	out := m.doubts()
	if m.fs == "ext4" && fastCommit("/", m.device) {
		out = append(out, Doubt{
			"fast_commit",
			"The file system " + m.path + " has the feature fast_commit, with which some kernels have reported data as safe that was not.",
			"Unmount it and switch it off: tune2fs -O ^fast_commit " + m.device,
		})
	}
	if maxBytes > 0 {
		free, err := Free(at)
		if err != nil {
			return out, err
		}
		if used := dirBytes(dir); free+used < maxBytes {
			out = append(out, Doubt{
				"space",
				fmt.Sprintf("The disk has %d MB for this log, and max_bytes lets it have %d MB: the disk will be full first.", (free+used)/1e6, maxBytes/1e6),
				"Make room, or set max_bytes to less than that.",
			})
		}
	}
	return out, nil
}

// Free returns how many bytes the file system under a path has left for this process.
func Free(path string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return 0, fmt.Errorf("free space of %s: %w", path, err)
	}
	return int64(st.Bavail * uint64(st.Bsize)), nil
}

// existing returns the nearest directory above that is there, without symbolic links.
func existing(dir string) (string, error) {
	at, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	for {
		real, err := filepath.EvalSymlinks(at)
		if err == nil {
			return real, nil
		}
		if !os.IsNotExist(err) || at == "/" {
			return "", fmt.Errorf("look at the medium: %w", err)
		}
		at = filepath.Dir(at)
	}
}

func dirBytes(dir string) int64 {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0 // it is not there yet
	}
	var n int64
	for _, e := range entries {
		var st unix.Stat_t
		if unix.Lstat(filepath.Join(dir, e.Name()), &st) == nil {
			n += st.Blocks * 512
		}
	}
	return n
}

// findMount returns the mount that a path lies on: the deepest one, and of several on the same place the last.
func findMount(mountinfo io.Reader, path string) (mountPoint, error) {
	var found mountPoint
	lines := bufio.NewScanner(mountinfo)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		// 36 35 98:0 /root /mount/point rw,noatime shared:1 - ext4 /dev/mmcblk0p3 rw,data=ordered
		head, tail, ok := strings.Cut(lines.Text(), " - ")
		before, after := strings.Fields(head), strings.Fields(tail)
		if !ok || len(before) < 6 || len(after) < 2 {
			continue
		}
		at := unescape(before[4])
		if !within(path, at) || len(at) < len(found.path) {
			continue
		}
		found = mountPoint{path: at, fs: after[0], device: unescape(after[1]), options: strings.Split(before[5], ",")}
		if len(after) > 2 {
			found.options = append(found.options, strings.Split(after[2], ",")...)
		}
	}
	if err := lines.Err(); err != nil {
		return found, fmt.Errorf("read mountinfo: %w", err)
	}
	if found.path == "" {
		return found, fmt.Errorf("no mount holds %s", path)
	}
	return found, nil
}

func within(path, mount string) bool {
	return mount == "/" || path == mount || strings.HasPrefix(path, mount+"/")
}

// unescape turns \040 and the like back into characters.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// doubts are those that follow from the kind of the file system and its options.
func (m mountPoint) doubts() []Doubt {
	has := func(options ...string) bool {
		return slices.ContainsFunc(options, func(o string) bool { return slices.Contains(m.options, o) })
	}
	var out []Doubt
	switch m.fs {
	case "tmpfs", "ramfs":
		out = append(out, Doubt{
			"tmpfs", "The log lies on " + m.path + ", which is memory (" + m.fs + "): all of it is lost when the power goes.",
			"Set gateway.state_dir to a folder on the disk.",
		})
	case "overlay", "overlayfs", "aufs":
		out = append(out, Doubt{
			"overlay", "The log lies on " + m.path + ", an overlay: whether it survives a power cut depends on what is below, which is often memory.",
			"Set gateway.state_dir to a folder on a real disk, in a container to a mounted volume.",
		})
	case "vfat", "msdos", "exfat":
		out = append(out, Doubt{
			"vfat", "The log lies on " + m.path + ", which is " + m.fs + ": it has no journal, and a power cut may lose files or the whole file system.",
			"Put gateway.state_dir on ext4 or f2fs.",
		})
	}
	if has("nobarrier", "barrier=0") {
		out = append(out, Doubt{
			"nobarrier", "The file system " + m.path + " is mounted with nobarrier: it reports data as safe that is still in the disk's cache, and a power cut loses what was acknowledged.",
			"Take nobarrier (or barrier=0) out of /etc/fstab and restart.",
		})
	}
	if has("data=writeback") {
		out = append(out, Doubt{
			"writeback", "The file system " + m.path + " is mounted with data=writeback: after a power cut a file may hold old contents of other files.",
			"Use data=ordered, the default, in /etc/fstab and restart.",
		})
	}
	return out
}

// fastCommit tells whether an ext4 file system writes its journal by fast commits. The kernel lists that among its options
// under /proc, in newer versions as the switch that forces them on; where it does not, the superblock says it, as far as it
// may be read.
func fastCommit(root, device string) bool {
	device = filepath.Join(root, device)
	if real, err := filepath.EvalSymlinks(device); err == nil {
		device = real
	}
	options, _ := os.ReadFile(filepath.Join(root, "proc/fs/ext4", filepath.Base(device), "options")) // not there: not said
	for line := range strings.Lines(string(options)) {
		if o := strings.TrimSpace(line); o == "fast_commit" || o == "fc_debug_force" {
			return true
		}
	}
	f, err := os.Open(device)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }() // it was only read
	var sb [1024]byte
	if _, err := f.ReadAt(sb[:], 1024); err != nil {
		return false
	}
	const magic, compatFastCommit = 0xEF53, 0x400
	return binary.LittleEndian.Uint16(sb[0x38:]) == magic && binary.LittleEndian.Uint32(sb[0x5C:])&compatFastCommit != 0
}
