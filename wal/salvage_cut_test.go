package wal_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"edgegateway/wal"
)

// TestPowerCutWhileSalvaging cuts the power after each step of a salvage. Either the damaged log is still there, byte for
// byte, and can be salvaged as before, or the salvaged one is, and opening it finishes what was begun.
func TestPowerCutWhileSalvaging(t *testing.T) {
	source := t.TempDir()
	want := damageable(t, source)
	files := segments(t, source)
	rnd := rand.New(rand.NewPCG(8, 9))
	// A segment in the middle is torn, another one is missing, and the newest one has lost its front.
	for i, f := range []string{files[1], files[len(files)-1]} {
		b, err := os.ReadFile(f)
		must(t, err)
		clear(b[8192*(1-i) : 8192*(1-i)+5*4096])
		must(t, os.WriteFile(f, b, 0o600))
	}
	must(t, os.Remove(files[3]))
	must(t, os.Remove(filepath.Join(source, "LOCK")))
	damaged := contentsOf(t, source)

	dir := t.TempDir()
	must(t, os.CopyFS(dir, os.DirFS(source)))
	rec := wal.NewRecorder(dir)
	must(t, rec.Resume())
	from := rec.Len()
	o := wal.Options{SegmentBytes: small, NewEpoch: 9}
	report, err := wal.Salvage(dir, wal.SalvageOptions{Options: rec.Under(o)}, nil)
	must(t, err)
	for _, f := range rec.Faults() {
		t.Error(f)
	}
	good, err := salvageAndRead(t, dir, want)
	must(t, err)
	if report.Recovered == 0 || len(good) == 0 {
		t.Fatalf("the scene is too dull: %+v", report)
	}

	replica := wal.NewReplica(t.TempDir())
	points, old, finished := 0, 0, 0
	for i := from; i < rec.Len(); i++ {
		m := rec.DiskAt(i+1, wal.Control{})
		for _, v := range m.Variants() {
			must(t, replica.Build(m, v, rnd))
			points++
			state, err := afterCut(t, replica.Dir, damaged, want, len(good), points%48 == 0)
			if err != nil {
				t.Fatalf("cut after %s, %s: %v", rec.Describe(i), v, err)
			}
			if state == "old" {
				old++
			} else {
				finished++
			}
			replica = wal.NewReplica(replica.Dir)
		}
	}
	reportLine(t, "POWERCUT_RESULT", fmt.Sprintf("power-cut while salvaging: points %d old %d salvaged %d violations 0", points, old, finished))
	if old == 0 || finished == 0 {
		t.Error("one of the two was never seen")
	}
}

// afterCut tells whether a directory is the damaged log or the salvaged one, and goes on with it.
func afterCut(t *testing.T, dir string, damaged map[string]string, want contents, records int, again bool) (string, error) {
	t.Helper()
	now := contentsOf(t, dir)
	_, pending := now["SALVAGE"]
	whole := true
	for name, b := range damaged {
		whole = whole && now[name] == b
	}
	if err := nothingIsGone(damaged, now); err != nil {
		return "", err
	}
	state := "salvaged"
	if whole && !pending {
		state = "old"
		l, err := wal.Open(dir, salvageOptions())
		if err == nil {
			_ = l.Close()
			return state, fmt.Errorf("the damaged log opens")
		}
	} else {
		l, err := wal.Open(dir, salvageOptions())
		if err != nil {
			return state, fmt.Errorf("does not open: %w", err)
		}
		if err := l.Close(); err != nil {
			return state, err
		}
	}
	if !again && state == "old" {
		return state, nil
	}
	got, err := salvageAndRead(t, dir, want)
	if err == nil && len(got) != records {
		err = fmt.Errorf("%d records came back, want %d", len(got), records)
	}
	return state, err
}
