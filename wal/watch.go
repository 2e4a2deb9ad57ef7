package wal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"
)

// watchPeriod is how often an idle log looks whether its directory is still there. A log that writes looks before it
// acknowledges: what goes into an unlinked file is lost with the process.
const watchPeriod = time.Second

// watch knows the file that the log writes to.
type watch struct {
	active *segment
	info   os.FileInfo
	at     time.Time
}

// present returns an error when the file that the log writes to is no longer what its name leads to. It looks when the last
// look is that long ago.
func (l *Log) present(period time.Duration) error {
	w, a, now := &l.watch, l.active(), time.Now()
	if w.active == a && period > 0 && now.Sub(w.at) < period {
		return nil
	}
	w.at = now
	info, err := os.Stat(a.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("the log's directory or its newest file was removed while it was in use: %w", err)
	case err != nil:
		return fmt.Errorf("look after the newest segment: %w", err)
	case w.active != a:
		w.active, w.info = a, info
	case !os.SameFile(w.info, info):
		return fmt.Errorf("%s was replaced by another file while it was in use", a.path)
	}
	return nil
}

// rotateIfRoom begins a new segment. No room for one is no reason not to use what is left of the present one; that is said
// once, and tried again once a second.
func (l *Log) rotateIfRoom() error {
	now := time.Now()
	if l.noFile && now.Before(l.fileAt) {
		return nil
	}
	err := l.rotate()
	if isNoSpace(err) {
		if l.fileAt = now.Add(retryFull); !l.noFile {
			l.log.Warn("no room for a new segment, going on in the present one", "dir", l.dir, "segment", l.active().number, "err", err)
		}
		l.noFile = true
		return nil
	}
	if err == nil && l.noFile {
		l.noFile = false
		l.log.Info("there is room for new segments again", "dir", l.dir)
	}
	return err
}
