package wal_test

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"edgegateway/wal"
)

var update = flag.Bool("update", false, "write the golden files anew")

// goldenDirs are logs that were written by a program of each version of the format.
var goldenDirs = []string{"golden-v1", "golden-v2", "golden-v3"}

// goldenCodecs has the parts of a golden log compressed in all ways.
func goldenCodecs(part int, o wal.Options) wal.Options {
	o.Codec = []wal.Codec{wal.CodecS2, wal.CodecZstd, wal.CodecNone}[part]
	return o
}

// TestGolden opens what each version of the program has left, finds exactly what was written, and goes on with it.
func TestGolden(t *testing.T) {
	current := filepath.Join("testdata", goldenDirs[len(goldenDirs)-1])
	if *update {
		must(t, os.RemoveAll(current))
		writeGolden(t, current, goldenCodecs)
		spares, err := filepath.Glob(filepath.Join(current, "*.spare"))
		must(t, err)
		for _, f := range append(spares, filepath.Join(current, "LOCK")) {
			must(t, os.Remove(f))
		}
	}
	g := writeGolden(t, t.TempDir(), goldenCodecs)
	for _, name := range goldenDirs {
		t.Run(name, func(t *testing.T) {
			original := filepath.Join("testdata", name)
			r, err := wal.Inspect(original)
			must(t, err)
			g.check(t, &r)
			dir := t.TempDir()
			must(t, os.CopyFS(dir, os.DirFS(original)))
			var size int64
			for _, f := range segments(t, dir) {
				fi, err := os.Stat(f)
				must(t, err)
				size += fi.Size()
			}
			if n := len(segments(t, dir)); n < 3 || size > 400<<10 {
				t.Errorf("%d segments of %d bytes, want at least 3 of at most 400 KiB", n, size)
			}
			goOn := wal.Options{SegmentBytes: small, NewEpoch: 9}
			g.checkOpen(t, dir, goOn, 0)
			g.checkOpen(t, dir, goOn, 1)
			g.checkOpen(t, dir, goOn, 2)
		})
	}
}

// check compares what Inspect says.
func (g *golden) check(t *testing.T, r *wal.Report) {
	t.Helper()
	if r.Epoch != 7 {
		t.Errorf("epoch %d, want 7", r.Epoch)
	}
	ends := map[string]uint64{}
	for _, c := range r.Cursors {
		ends[c.Uplink+" on "+c.Stream] = c.Seq
	}
	if !maps.Equal(ends, g.ends) {
		t.Errorf("cursors %v, want %v", ends, g.ends)
	}
	g.checkLetters(t, r.Letters)
	g.checkRanges(t, r.Ranges)
	if r.StateKeys != len(g.state) {
		t.Errorf("%d keys of the state, want %d", r.StateKeys, len(g.state))
	}
	g.checkStreams(t, r.Streams, 0)
}

func (g *golden) checkStreams(t *testing.T, streams []wal.StreamStats, more int) {
	t.Helper()
	if len(streams) != len(g.records) {
		t.Errorf("%d streams, want %d", len(streams), len(g.records))
	}
	for _, s := range streams {
		want := wal.StreamStats{Name: s.Name, Records: uint64(len(g.records[s.Name]))}
		for _, d := range g.records[s.Name] {
			want.Bytes += uint64(len(d))
		}
		if s.Name == "level" {
			want.Records += uint64(more)
			want.Bytes += uint64(more * len("and on"))
		}
		if r, ok := g.dropped[s.Name]; ok {
			want.Dropped = r[1] - r[0] + 1
		}
		if s.Records != want.Records || s.Bytes != want.Bytes || s.Dropped != want.Dropped {
			t.Errorf("stream %+v, want %+v", s, want)
		}
	}
}

func (g *golden) checkLetters(t *testing.T, letters []wal.DeadLetter) {
	t.Helper()
	if len(letters) != len(g.letters) {
		t.Errorf("%d dead letters, want %d", len(letters), len(g.letters))
	}
	for i := range min(len(letters), len(g.letters)) {
		got, want := letters[i], g.letters[i]
		if got.Uplink != want.Uplink || got.Stream != want.Stream || got.Seq != want.Seq || got.Reason != want.Reason ||
			!bytes.Equal(got.Data, want.Data) {
			t.Errorf("dead letter %+v, want %+v", got, want)
		}
	}
}

func (g *golden) checkRanges(t *testing.T, ranges []wal.DropRange) {
	t.Helper()
	next := map[string]uint64{}
	for _, r := range ranges {
		want, ok := g.dropped[r.Stream]
		if !ok || r.Why != wal.DroppedAge || r.First != max(want[0], next[r.Stream]) {
			t.Errorf("dropped range %+v, want part of %v", r, want)
		}
		next[r.Stream] = r.Last + 1
	}
	for stream, want := range g.dropped {
		if next[stream] != want[1]+1 {
			t.Errorf("dropped ranges of %s end at %d, want %d", stream, next[stream]-1, want[1])
		}
	}
}

// checkOpen opens a log that was gone on with so many times, reads all that is open, and appends one record.
func (g *golden) checkOpen(t *testing.T, dir string, o wal.Options, times int) {
	t.Helper()
	l := open(t, dir, o)
	defer closeLog(t, l)
	if l.Epoch() != 7 {
		t.Errorf("epoch %d, want 7", l.Epoch())
	}
	state := map[string]string{}
	l.State("", func(k string, v []byte) bool { state[k] = string(v); return true })
	if !maps.Equal(state, g.state) {
		t.Errorf("state %v, want %v", state, g.state)
	}
	var letters []wal.DeadLetter
	l.DeadLetters(func(d wal.DeadLetter) bool { letters = append(letters, d); return true })
	g.checkLetters(t, letters)
	stats := l.Stats()
	g.checkRanges(t, stats.Ranges)
	g.checkStreams(t, stats.Streams, times)

	must(t, put(t, l, wal.Batch{Entries: []wal.Entry{{Stream: "level", Time: time.Unix(1.8e9, 0), Data: []byte("and on")}}}))
	for _, info := range l.Cursors() {
		name := info.Uplink + " on " + info.Stream
		c := cursor(t, l, info.Uplink, info.Stream)
		want := slices.Clone(g.open[name])
		if info.Stream == "level" {
			for n := range times + 1 {
				want = append(want, uint64(len(g.records["level"])+1+n))
			}
		}
		var got []uint64
		if len(want) > 0 {
			for _, r := range readUpTo(t, c, len(want)) {
				got = append(got, r.Seq)
				data := []byte("and on")
				if n := len(g.records[info.Stream]); r.Seq <= uint64(n) {
					data = g.records[info.Stream][r.Seq-1]
				}
				if !bytes.Equal(r.Data, data) {
					t.Errorf("record %d of %s has other contents", r.Seq, info.Stream)
				}
			}
		}
		nothing(t, c)
		if !slices.Equal(got, want) {
			t.Errorf("cursor of %s has %v before it, want %v", name, got, want)
		}
	}
}

// TestGoldenOfTheNextVersionIsRefused: what a later program has written is never misread.
func TestGoldenOfTheNextVersionIsRefused(t *testing.T) {
	for _, at := range []string{"first", "last"} {
		t.Run(at, func(t *testing.T) {
			dir := t.TempDir()
			must(t, os.CopyFS(dir, os.DirFS(filepath.Join("testdata", "golden-v3"))))
			files := segments(t, dir)
			target := files[0]
			if at == "last" {
				target = files[len(files)-1]
			}
			must(t, wal.SetVersion(target, 4))
			before := contentsOf(t, dir)
			for name, call := range map[string]func() error{
				"Open":    func() error { _, err := wal.Open(dir, wal.Options{}); return err },
				"Inspect": func() error { _, err := wal.Inspect(dir); return err },
				"Verify":  func() error { _, err := wal.Verify(dir, nil); return err },
				"Salvage": func() error { _, err := wal.Salvage(dir, wal.SalvageOptions{}, nil); return err },
				"Export": func() error {
					return wal.Export(dir, wal.Selection{Stream: "level"}, func(wal.Exported) error { return nil })
				},
			} {
				if err := call(); !errors.Is(err, wal.ErrVersion) {
					t.Errorf("%s returned %v, want ErrVersion", name, err)
				}
			}
			if after := contentsOf(t, dir); !maps.Equal(before, after) {
				t.Error("the directory was changed")
			}
		})
	}
}

// contentsOf returns the files of a directory, but for LOCK.
func contentsOf(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	entries, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range entries {
		if e.Name() == "LOCK" {
			continue
		}
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		must(t, err)
		out[e.Name()] = fmt.Sprintf("%x", b)
	}
	return out
}

// A program of version 2 takes a dead letter that names its driver for damage. So none is written where it would read on: the segment
// that it has begun is gone on with, without what it does not know, and from the next one on it refuses the log.
func TestWhatAnOlderProgramReadsItUnderstands(t *testing.T) {
	dir := t.TempDir()
	must(t, os.CopyFS(dir, os.DirFS(filepath.Join("testdata", "golden-v2"))))
	version := func() uint64 {
		t.Helper()
		files := segments(t, dir)
		v, err := wal.VersionOf(files[len(files)-1])
		must(t, err)
		return v
	}
	refuse := func() wal.DeadLetter {
		t.Helper()
		l := open(t, dir, wal.Options{SegmentBytes: small})
		c := cursor(t, l, "quick", "level")
		must(t, put(t, l, wal.Batch{Entries: []wal.Entry{{Stream: "level", Data: []byte("and on")}}}))
		recs := read(t, c, 1)
		c.Refuse(recs[0], wal.Refusal{Reason: "too large", Driver: "nats", Attempts: 3})
		must(t, c.Sync(t.Context()))
		closeLog(t, l)
		r, err := wal.Inspect(dir)
		must(t, err)
		return r.Letters[len(r.Letters)-1]
	}
	if d := refuse(); version() != 2 || d.Reason != "too large" || d.Driver != "" || d.Attempts != 0 {
		t.Errorf("in a segment of version %d: letter %q of driver %q after %d attempts; want version 2 and no driver", version(), d.Reason, d.Driver, d.Attempts)
	}
	l := open(t, dir, wal.Options{SegmentBytes: small})
	for n := 0; version() == 2 && n < 100; n++ {
		must(t, put(t, l, batch("alarm/ä", n, n, 10_000)))
	}
	closeLog(t, l)
	if d := refuse(); version() != 3 || d.Driver != "nats" || d.Attempts != 3 {
		t.Errorf("in a segment of version %d: letter of driver %q after %d attempts; want version 3 and all of it", version(), d.Driver, d.Attempts)
	}
}
