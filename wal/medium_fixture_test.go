package wal

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// mounts is what a gateway's /proc/self/mountinfo looks like, with several kinds of file systems.
const mounts = `22 1 179:2 / / rw,noatime shared:1 - ext4 /dev/root rw,data=ordered
23 22 0:20 / /proc rw,nosuid shared:12 - proc proc rw
30 22 179:3 / /data rw,noatime shared:2 master:3 - ext4 /dev/mmcblk0p3 rw,data=writeback
31 22 179:4 / /fast rw - ext4 /dev/mmcblk0p4 rw,barrier=0
32 22 179:5 / /my\040card rw - vfat /dev/mmcblk1p1 rw,fmask=0022
33 22 179:6 / /ex rw - exfat /dev/mmcblk1p2 rw
34 22 0:40 / /run rw,nosuid - tmpfs tmpfs rw,size=65536k
35 22 0:41 / /container rw - overlay overlay rw,lowerdir=/a,upperdir=/b,workdir=/c
36 30 0:42 / /data/ram rw - ramfs ramfs rw
37 22 179:7 / /f2 rw,noatime - f2fs /dev/mmcblk0p7 rw,nobarrier
38 22 179:8 / /twice rw - ext4 /dev/sda1 rw
39 38 0:43 / /twice rw - tmpfs tmpfs rw
40 22 179:9 / /database rw - ext4 /dev/sda2 rw
not a line of mountinfo
`

func TestDoubtsFollowFromTheMount(t *testing.T) {
	tests := []struct{ path, mount, want string }{
		{"/var/lib/edge-gateway", "/", ""},
		{"/data/edge", "/data", "writeback"},
		{"/data", "/data", "writeback"},
		{"/database/edge", "/database", ""}, // not below /data
		{"/fast/edge", "/fast", "nobarrier"},
		{"/my card/edge", "/my card", "vfat"},
		{"/ex/edge", "/ex", "vfat"},
		{"/run/edge", "/run", "tmpfs"},
		{"/container/edge", "/container", "overlay"},
		{"/data/ram/edge", "/data/ram", "tmpfs"},
		{"/f2/edge", "/f2", "nobarrier"},
		{"/twice/edge", "/twice", "tmpfs"}, // the last mount hides the one below
	}
	for _, tt := range tests {
		m, err := findMount(strings.NewReader(mounts), tt.path)
		if err != nil {
			t.Errorf("findMount(%s): %v", tt.path, err)
			continue
		}
		var got []string
		for _, d := range m.doubts() {
			got = append(got, d.Kind)
			if !strings.Contains(d.Text, tt.mount) {
				t.Errorf("%s: %q does not name the mount", tt.path, d.Text)
			}
		}
		if m.path != tt.mount || strings.Join(got, " ") != tt.want {
			t.Errorf("%s lies on %s with doubts %v, want %s with %q", tt.path, m.path, got, tt.mount, tt.want)
		}
	}
	if _, err := findMount(strings.NewReader("nothing\n"), "/data"); err == nil {
		t.Error("a mountinfo without mounts gave one")
	}
}

func TestFastCommitIsFoundInEachPlaceWhereItIsSaid(t *testing.T) {
	superblock := func(features uint32) string {
		b := make([]byte, 4096)
		binary.LittleEndian.PutUint16(b[1024+0x38:], 0xEF53)
		binary.LittleEndian.PutUint32(b[1024+0x5C:], features)
		return string(b)
	}
	tests := []struct {
		name            string
		options, device string
		want            bool
	}{
		{"listed", "rw\nfast_commit\ncommit=5\n", "", true},
		{"listed as the switch that forces it", "rw\nfc_debug_force\n", "", true},
		{"in the superblock", "rw\n", superblock(0x43C), true},
		{"neither", "rw\ncommit=5\n", superblock(0x3C), false},
		{"no superblock", "rw\n", strings.Repeat("x", 4096), false},
		{"nothing to read", "", "", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir()
			write := func(path, text string) {
				if text == "" {
					return
				}
				path = filepath.Join(root, path)
				if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			write("proc/fs/ext4/mmcblk0p3/options", tt.options)
			write("dev/mmcblk0p3", tt.device)
			if got := fastCommit(root, "/dev/mmcblk0p3"); got != tt.want {
				t.Errorf("fastCommit = %v, want %v", got, tt.want)
			}
		})
	}
}
