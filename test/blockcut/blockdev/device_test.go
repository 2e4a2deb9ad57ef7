package blockdev_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"edgegateway/test/blockcut/blockdev"
)

func TestMain(m *testing.M) {
	blockdev.Main()
	if os.Getenv("BLOCKDEV_TEST_CHILD") != "" {
		writeForEver()
	}
	if err := blockdev.Usable(); err != nil {
		fmt.Fprintln(os.Stderr, "blockdev: not possible here:", err)
		if _, fuseErr := os.Stat("/dev/fuse"); os.Getenv("CI") == "true" && fuseErr == nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

const block = 4096

func newDevice(t *testing.T, o blockdev.Options) *blockdev.Device {
	t.Helper()
	d, err := blockdev.New(64*block, o)
	must(t, err)
	t.Cleanup(func() { must(t, d.Close()) })
	return d
}

// openDevice opens it past the page cache.
func openDevice(t *testing.T, d *blockdev.Device) *os.File {
	t.Helper()
	f, err := os.OpenFile(d.Path(), os.O_RDWR|unix.O_DIRECT, 0)
	must(t, err)
	return f
}

// aligned returns n blocks of a byte, where direct I/O can have them.
func aligned(t *testing.T, n int, b byte) []byte {
	t.Helper()
	mem, err := unix.Mmap(-1, 0, n*block, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	must(t, err)
	for i := range mem {
		mem[i] = b
	}
	return mem
}

// put writes a block and, if told, flushes.
func put(t *testing.T, f *os.File, at int, b byte, flush bool) {
	t.Helper()
	_, err := f.WriteAt(aligned(t, 1, b), int64(at)*block)
	must(t, err)
	if flush {
		must(t, f.Sync())
	}
}

// contents returns the first blocks of a device.
func contents(t *testing.T, d *blockdev.Device, n int) []byte {
	t.Helper()
	f := openDevice(t, d)
	defer f.Close()
	mem := aligned(t, n, 0xff)
	_, err := f.ReadAt(mem, 0)
	must(t, err)
	return mem
}

// blocks writes a block as its byte where it is the same all over, as "~" where it is not.
func blocks(b []byte) string {
	var out strings.Builder
	for ; len(b) > 0; b = b[block:] {
		if bytes.Count(b[:block], b[:1]) == block {
			fmt.Fprintf(&out, "%d", b[0])
		} else {
			out.WriteByte('~')
		}
	}
	return out.String()
}

func TestCutLeavesWhatWasFlushedAndWhatItsVariantSays(t *testing.T) {
	d := newDevice(t, blockdev.Options{})
	f := openDevice(t, d)
	put(t, f, 1, 9, true) // before the record: flushed, whatever comes
	must(t, d.Record())
	put(t, f, 2, 1, true)
	put(t, f, 3, 2, false)
	put(t, f, 4, 3, false)
	put(t, f, 2, 4, false) // over what was flushed
	must(t, f.Close())
	events, err := d.Events()
	must(t, err)
	ops := ""
	for _, e := range events {
		ops += fmt.Sprint(e.Op, " ")
	}
	if want := "1 2 1 1 1 "; ops != want {
		t.Fatalf("operations are %q, want %q", ops, want)
	}
	r, err := d.Replica()
	must(t, err)
	t.Cleanup(func() { must(t, r.Close()) })
	for _, test := range []struct {
		cut     blockdev.Cut
		waiting int
		want    string // each of it has to come, and nothing else
	}{
		{blockdev.Cut{At: 5, Variant: blockdev.Nothing}, 3, "09100"},
		{blockdev.Cut{At: 5, Variant: blockdev.Everything}, 3, "09423"},
		{blockdev.Cut{At: 5, Variant: blockdev.Subset}, 3, "09100 09120 09103 09123 09400 09420 09403 09423"},
		{blockdev.Cut{At: 5, Variant: blockdev.Torn}, 3, "09100 091~0 09120 0912~ 09123 09~23 09423"},
		{blockdev.Cut{At: 4, Variant: blockdev.Sectors}, 2, "091~~"},
		{blockdev.Cut{At: 2, Variant: blockdev.Nothing}, 0, "09100"},
		{blockdev.Cut{At: 1, Variant: blockdev.Nothing}, 1, "09000"},
		{blockdev.Cut{At: 0, Variant: blockdev.Everything}, 0, "09000"},
		{blockdev.Cut{At: 5, Variant: blockdev.Nothing, Lies: 1}, 4, "09000"},
	} {
		want := map[string]bool{}
		for s := range strings.FieldsSeq(test.want) {
			want[s] = false
		}
		for seed := range uint64(150) {
			if test.cut.Seed = seed; seed > 0 && len(want) == 1 {
				break
			}
			waiting, err := r.Cut(d, test.cut)
			must(t, err)
			got := blocks(contents(t, r, 5))
			if _, ok := want[got]; !ok || waiting != test.waiting {
				t.Fatalf("%+v leaves %s with %d writes waiting, want %s with %d", test.cut, got, waiting, test.want, test.waiting)
			}
			want[got] = true
		}
		for s, came := range want {
			if !came {
				t.Errorf("%+v never leaves %s", test.cut, s)
			}
		}
	}
	if got := blocks(contents(t, d, 5)); got != "09423" {
		t.Errorf("the device itself has %s after its replica was cut", got)
	}
}

func TestTheFirstBlockIsNeverTorn(t *testing.T) {
	d := newDevice(t, blockdev.Options{})
	must(t, d.Record())
	f := openDevice(t, d)
	_, err := f.WriteAt(aligned(t, 2, 7), 0)
	must(t, err)
	must(t, f.Close())
	r, err := d.Replica()
	must(t, err)
	t.Cleanup(func() { must(t, r.Close()) })
	for seed := range uint64(60) {
		for _, v := range []blockdev.Variant{blockdev.Torn, blockdev.Sectors} {
			_, err := r.Cut(d, blockdev.Cut{At: 1, Variant: v, Seed: seed})
			must(t, err)
			if got := blocks(contents(t, r, 1)); got != "0" && got != "7" {
				t.Fatalf("%s leaves %s", v, got)
			}
		}
	}
}

func TestFaultsAreCounted(t *testing.T) {
	d := newDevice(t, blockdev.Options{})
	f := openDevice(t, d)
	defer f.Close()
	before, err := d.Counts()
	must(t, err)
	write := func(at int) error {
		_, err := f.WriteAt(aligned(t, 1, 1), int64(at)*block)
		return err
	}
	check := func(err error, want bool, what string) {
		t.Helper()
		if (err != nil) != want || err != nil && !errors.Is(err, unix.EIO) {
			t.Errorf("%s: %v, want a failure: %t", what, err, want)
		}
	}
	must(t, d.Fail(blockdev.Fault{Ops: blockdev.OpWrite, After: 1, Times: 1}))
	check(write(0), false, "first write")
	check(f.Sync(), false, "flush")
	check(write(0), true, "second write")
	check(write(0), false, "third write")
	must(t, d.Fail(blockdev.Fault{Ops: blockdev.OpWrite, Off: 8 * block, Len: 1}))
	check(write(7), false, "write before the range")
	check(write(8), true, "write in the range")
	check(write(9), false, "write after the range")
	must(t, d.Fail(blockdev.Fault{Ops: blockdev.OpFlush}))
	check(write(0), false, "write")
	check(f.Sync(), true, "flush")
	must(t, d.Fail(blockdev.Fault{}))
	check(f.Sync(), false, "flush without a fault")
	c, err := d.Counts()
	must(t, err)
	if c.Failed != 3 || c.Flushes-before.Flushes != 3 || c.Writes != 7 || c.Bytes != 7*block {
		t.Errorf("counts are %+v", c)
	}
}

func TestTimingIsKept(t *testing.T) {
	d := newDevice(t, blockdev.Options{Timing: blockdev.EMMC()})
	f := openDevice(t, d)
	defer f.Close()
	began := time.Now()
	for range 20 {
		put(t, f, 1, 1, true)
	}
	took := time.Since(began)
	// 20 × (80 µs + 4096 B at 40 MB/s + 2 ms), and nothing says how much more.
	if least := 20 * (80*time.Microsecond + 102*time.Microsecond + 2*time.Millisecond); took < least-time.Millisecond {
		t.Errorf("20 writes and flushes took %v, want at least %v", took, least)
	}
	t.Logf("20 writes of 4 KiB, each flushed: %v", took)
}

// writeForEver is the child of the test below: it says which loop device it uses, and writes until it is killed.
func writeForEver() {
	err := func() error {
		d, err := blockdev.New(16<<20, blockdev.Options{})
		if err != nil {
			return err
		}
		if out, err := exec.Command("mkfs.ext4", "-q", d.Path()).CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		dir := os.Getenv("BLOCKDEV_TEST_CHILD")
		if err := d.Mount("ext4", dir, ""); err != nil {
			return err
		}
		f, err := os.Create(filepath.Join(dir, "file"))
		if err != nil {
			return err
		}
		fmt.Println(d.Path())
		for {
			if _, err := f.WriteAt(make([]byte, 100_000), 0); err != nil {
				return err
			}
			if err := f.Sync(); err != nil {
				return err
			}
		}
	}()
	fmt.Fprintln(os.Stderr, err)
	os.Exit(3)
}

func TestNothingStaysWhenAProcessIsKilled(t *testing.T) {
	for _, victim := range []string{"the program", "its serving process", "both"} {
		t.Run(victim, func(t *testing.T) {
			dir := t.TempDir()
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = append(os.Environ(), "BLOCKDEV_TEST_CHILD="+dir)
			out, err := cmd.StdoutPipe()
			must(t, err)
			must(t, cmd.Start())
			line, err := bufio.NewReader(out).ReadString('\n')
			must(t, err)
			loop := filepath.Base(strings.TrimSpace(line))
			server := childOf(t, cmd.Process.Pid)
			backing := fmt.Sprintf("/%d.0", cmd.Process.Pid)
			attached := func() bool {
				file, err := os.ReadFile("/sys/block/" + loop + "/loop/backing_file")
				return err == nil && strings.TrimSpace(string(file)) == backing
			}
			if !attached() {
				t.Fatalf("%s has no file %s", loop, backing)
			}
			if victim != "the program" {
				must(t, syscall.Kill(server, syscall.SIGKILL))
			}
			if victim != "its serving process" {
				must(t, cmd.Process.Kill())
			}
			slow := time.AfterFunc(30*time.Second, func() { _ = cmd.Process.Kill() })
			err = cmd.Wait()
			if slow.Stop(); victim == "its serving process" && cmd.ProcessState.ExitCode() != 3 {
				t.Errorf("the program has ended with %v, want an error of a write", err)
			}
			until(t, loop+" is detached", func() bool { return !attached() })
			until(t, "the serving process has ended", func() bool {
				err := syscall.Kill(server, 0)
				return errors.Is(err, unix.ESRCH) || isZombie(server)
			})
			mounts, err := os.ReadFile("/proc/self/mounts")
			must(t, err)
			if strings.Contains(string(mounts), dir) {
				t.Errorf("%s is still mounted", dir)
			}
		})
	}
}

func childOf(t *testing.T, pid int) int {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	must(t, err)
	for _, task := range tasks {
		b, err := os.ReadFile(task)
		must(t, err)
		if n, err := strconv.Atoi(strings.TrimSpace(string(b))); err == nil {
			return n
		}
	}
	t.Fatal("the program has no serving process")
	return 0
}

// isZombie tells whether a process has ended and nobody has asked for it yet.
func isZombie(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(b), ") Z ")
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited 20 s until %s", what)
		}
	}
}
