package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"edgegateway/uplink"
)

// mark is the file beside an operator's choice that says that one is asked for (uplink.Mark): EPOCH/SEQUENCE.
type mark struct{ path string }

// Load implements uplink.Mark. A file that cannot be read counts as a mark at the log's begin: then a person is asked once too often.
func (m mark) Load() (at uplink.FarCursor, ok bool) {
	text, err := os.ReadFile(m.path)
	if err != nil {
		return at, !errors.Is(err, fs.ErrNotExist)
	}
	if _, err := fmt.Sscanf(string(text), "%d/%d", &at.Epoch, &at.Seq); err != nil {
		return uplink.FarCursor{}, true
	}
	return at, true
}

// Store implements uplink.Mark. It returns when the mark is on stable storage.
func (m mark) Store(at uplink.FarCursor) error {
	f, err := os.OpenFile(m.path+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, at)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(m.path+".new", m.path)
	}
	if err != nil {
		return err
	}
	return syncDir(filepath.Dir(m.path))
}

// Clear implements uplink.Mark.
func (m mark) Clear() error {
	if err := os.Remove(m.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return syncDir(filepath.Dir(m.path))
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
