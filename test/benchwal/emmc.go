package main

import (
	"errors"
	"os"
	"path/filepath"

	"edgegateway/test/blockcut/blockdev"
)

// mountEMMC makes a device in memory that takes as long as a cheap flash chip, so that ratios do not depend on what else
// goes on at the disk.
func (d *disk) mountEMMC(base string, size int64) error {
	if err := blockdev.Usable(); err != nil {
		return err
	}
	dev, err := blockdev.New(size, blockdev.Options{})
	if err != nil {
		return err
	}
	fail := func(err error) error { return errors.Join(err, dev.Close()) }
	if err := makeFileSystem(dev.Path()); err != nil {
		return fail(err)
	}
	mnt := filepath.Join(base, "mnt")
	if err := os.Mkdir(mnt, 0o750); err != nil {
		return fail(err)
	}
	if err := dev.Mount("ext4", mnt, ""); err != nil {
		return fail(err)
	}
	if err := dev.SetTiming(blockdev.EMMC()); err != nil {
		return fail(err)
	}
	d.onClose(dev.Close)
	d.dir, d.what = mnt, "ext4 with journal on a block device in memory with the timing of a cheap flash chip: 80 µs and 40 MB/s "+
		"for a write, 2 ms for a flush, 100 µs for a read"
	return nil
}
