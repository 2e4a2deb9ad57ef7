package wal_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"edgegateway/wal"
)

// salvageOptions open and salvage the logs of these tests.
func salvageOptions() wal.Options {
	return wal.Unflushed(wal.Options{SegmentBytes: small, NewEpoch: 9})
}

// damageSome damages the files of a log in one to four ways.
func damageSome(t *testing.T, files []string, rnd *rand.Rand) string {
	t.Helper()
	var all []string
	for range 1 + rnd.IntN(4) {
		at := rnd.IntN(len(files))
		f := files[at]
		b, err := os.ReadFile(f)
		if err != nil {
			continue // it was removed
		}
		what := ""
		switch n := rnd.IntN(16); {
		case n == 0:
			other := files[rnd.IntN(len(files))]
			c, err := os.ReadFile(other)
			if err != nil {
				continue
			}
			must(t, os.WriteFile(f, c, 0o600))
			must(t, os.WriteFile(other, b, 0o600))
			what = "swapped with " + filepath.Base(other)
		case n == 1 && at < len(files)-1: // without the newest one nothing says that there is damage
			must(t, os.Remove(f))
			what = "removed"
		case n == 2:
			clear(b[:min(len(b), 4096*(1+rnd.IntN(4)))])
			must(t, os.WriteFile(f, b, 0o600))
			what = "zeroes at the front"
		default:
			if len(b) == 0 {
				continue
			}
			what, b = harmFile(b, rnd)
			must(t, os.WriteFile(f, b, 0o600))
		}
		all = append(all, filepath.Base(f)+": "+what)
	}
	return strings.Join(all, ", ")
}

// intact returns the records whose block lies whole in one of the files.
func intact(t *testing.T, dir string, blocks []wal.RawBlock, names []string) map[string]bool {
	t.Helper()
	var files [][]byte
	for _, f := range segments(t, dir) {
		b, err := os.ReadFile(f)
		must(t, err)
		files = append(files, b)
	}
	out := map[string]bool{}
	for _, b := range blocks {
		if slices.ContainsFunc(files, func(f []byte) bool { return bytes.Contains(f, b.Raw) }) {
			for _, r := range b.Records {
				out[fmt.Sprint(names[r.Stream], " ", r.Seq)] = true
			}
		}
	}
	return out
}

// TestSalvage damages a log in many ways and counts which records come back of those whose bytes are whole.
func TestSalvage(t *testing.T) {
	cases := 60
	if v := os.Getenv("SALVAGE_CASES"); v != "" {
		var err error
		cases, err = strconv.Atoi(v)
		must(t, err)
	}
	dir := t.TempDir()
	want := damageable(t, dir)
	files := segments(t, dir)
	whole := map[string][]byte{}
	var blocks []wal.RawBlock
	for _, f := range files {
		b, err := os.ReadFile(f)
		must(t, err)
		whole[f] = b
		raw, err := wal.RawBlocks(f)
		must(t, err)
		blocks = append(blocks, raw...)
	}
	rnd := rand.New(rand.NewPCG(5, 6))
	var sumIntact, sumRecovered, refused int
	for n := range cases {
		what := damageSome(t, files, rnd)
		good := intact(t, dir, blocks, []string{"a", "b"})
		got, err := salvageAndRead(t, dir, want)
		if err != nil {
			t.Errorf("case %d (%s): %v", n, what, err)
		}
		if got == nil {
			refused++
		}
		back := 0
		for r := range good {
			if got[r] {
				back++
			}
		}
		if back < len(good) {
			t.Logf("case %d (%s): %d of %d intact records came back", n, what, back, len(good))
		}
		sumIntact, sumRecovered = sumIntact+len(good), sumRecovered+back
		entries, err := os.ReadDir(dir)
		must(t, err)
		for _, e := range entries {
			must(t, os.Remove(filepath.Join(dir, e.Name())))
		}
		for _, f := range files {
			must(t, os.WriteFile(f, whole[f], 0o600))
		}
		if t.Failed() && n > 20 {
			break
		}
	}
	t.Logf("not salvaged: %d", refused)
	line := fmt.Sprintf("salvage: cases %d intact %d recovered %d", cases, sumIntact, sumRecovered)
	t.Log(line)
	if file := os.Getenv("SALVAGE_RESULT"); file != "" {
		must(t, os.WriteFile(file, []byte(line+"\n"), 0o600))
	}
	if float64(sumRecovered) < 0.99*float64(sumIntact) {
		t.Errorf("%d of %d records came back, want 99 %%", sumRecovered, sumIntact)
	}
}

// salvageAndRead salvages a log, opens it, and returns the records that it holds. What is not there must be counted.
func salvageAndRead(t *testing.T, dir string, want contents) (map[string]bool, error) {
	t.Helper()
	before := contentsOf(t, dir)
	check, err := wal.Verify(dir, nil)
	if err != nil {
		return nil, fmt.Errorf("verify before: %w", err)
	}
	r, err := wal.Salvage(dir, wal.SalvageOptions{Options: salvageOptions()}, nil)
	if errors.Is(err, wal.ErrDamaged) || errors.Is(err, wal.ErrVersion) {
		if after := contentsOf(t, dir); !maps.Equal(before, after) {
			return nil, errors.New("a salvage that failed has changed the directory")
		}
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("salvage: %w", err)
	}
	if check.Count() == 0 && !maps.Equal(before, contentsOf(t, dir)) {
		return nil, errors.New("the salvage of a sound log has changed it")
	}
	if err := nothingIsGone(before, contentsOf(t, dir)); err != nil {
		return nil, err
	}
	if check, err = wal.Verify(dir, nil); err != nil || check.Err() != nil {
		return nil, fmt.Errorf("verify after: %w, %w", err, check.Err())
	}
	o := salvageOptions()
	o.Verify = wal.VerifyFull
	l, err := wal.Open(dir, o)
	if err != nil {
		return nil, fmt.Errorf("open after: %w", err)
	}
	defer func() { _ = l.Close() }()
	if l.Epoch() != 7 {
		return nil, fmt.Errorf("epoch %d, want 7", l.Epoch())
	}
	counted := map[string]bool{}
	for _, g := range l.Stats().Ranges {
		for seq := g.First; seq <= min(g.Last, 1000); seq++ {
			counted[fmt.Sprint(g.Stream, " ", seq)] = true
		}
	}
	got := map[string]bool{}
	for _, s := range []string{"a", "b"} {
		if !slices.ContainsFunc(l.Cursors(), func(c wal.CursorInfo) bool { return c.Uplink == "u" && c.Stream == s }) {
			if r.StateIncomplete || r.NoCursors {
				continue
			}
			return nil, fmt.Errorf("the cursor on %s is gone", s)
		}
		c, err := l.Cursor("u", s, wal.Oldest)
		if err != nil {
			return nil, err
		}
		var last uint64
		for {
			recs, err := wal.TakeNow(c)
			if err != nil {
				return nil, fmt.Errorf("read after %d: %w", last, err)
			}
			if len(recs) == 0 {
				break
			}
			for _, rec := range recs {
				if rec.Seq <= last || rec.Seq > uint64(len(want.records[s])) || !bytes.Equal(rec.Data, want.records[s][rec.Seq-1]) {
					return nil, fmt.Errorf("record %d of %s (after %d) has other contents", rec.Seq, s, last)
				}
				last = rec.Seq
				got[fmt.Sprint(s, " ", rec.Seq)] = true
			}
			c.Done(recs...)
		}
		lag := c.Lag()
		if lag.Records != 0 {
			return nil, fmt.Errorf("cursor on %s has read all and lags %d records", s, lag.Records)
		}
		var end uint64
		for _, st := range l.Stats().Streams {
			if st.Name == s {
				end = st.Records
			}
		}
		for seq := uint64(1); seq <= min(end, uint64(len(want.records[s]))); seq++ {
			key := fmt.Sprint(s, " ", seq)
			if !got[key] && !counted[key] {
				return nil, fmt.Errorf("record %s is neither there nor counted", key)
			}
			if got[key] && counted[key] {
				return nil, fmt.Errorf("record %s is there and counted as lost", key)
			}
		}
		if len(r.Problems) == 0 {
			continue
		}
		// What comes now must not get a number that the far side may know.
		if err := put(t, l, wal.Batch{Entries: []wal.Entry{{Stream: s, Time: time.Unix(1.7e9, 0), Data: []byte("new")}}}); err != nil {
			return nil, err
		}
		recs, err := wal.TakeNow(c)
		if err != nil || len(recs) != 1 || string(recs[0].Data) != "new" || recs[0].Seq <= uint64(len(want.records[s])) && end < uint64(len(want.records[s])) && r.Skipped > 0 {
			return nil, fmt.Errorf("new record: %v %w", recs, err)
		}
	}
	return got, nil
}

// nothingIsGone compares a directory before and after: each file is still there, or kept as *.bad.
func nothingIsGone(before, after map[string]string) error {
	have := map[string]bool{}
	for _, b := range after {
		have[b] = true
	}
	for name, b := range before {
		if !have[b] {
			return fmt.Errorf("%s is gone", name)
		}
	}
	return nil
}
