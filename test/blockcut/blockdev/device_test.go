package blockdev_test

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"edgegateway/test/blockcut/blockdev"
)

func TestMain(m *testing.M) {
	blockdev.Main()
	os.Exit(m.Run())
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestSpeed(t *testing.T) {
	img := t.TempDir() + "/img"
	out, err := exec.Command("mkfs.ext4", "-q", "-b", "4096", "-J", "size=4", "-m", "0", "-N", "256", "-O", "^resize_inode", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard", img, "32M").CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v", out, err)
	}
	d, err := blockdev.New(32<<20, blockdev.Options{Image: img})
	must(t, err)
	defer d.Close()
	dir := t.TempDir()
	must(t, d.Record())
	for range 20 {
		t0 := time.Now()
		must(t, d.Mount("ext4", dir, ""))
		t1 := time.Now()
		f, err := os.Create(dir + "/x")
		must(t, err)
		f.Write(make([]byte, 5000))
		must(t, f.Sync())
		f.Close()
		t2 := time.Now()
		must(t, d.Unmount())
		t3 := time.Now()
		c, _ := d.Counts()
		must(t, d.Reset())
		t4 := time.Now()
		t.Log(d.Path(), t1.Sub(t0), t2.Sub(t1), t3.Sub(t2), t4.Sub(t3), c)
	}
}
