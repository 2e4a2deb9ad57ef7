package main

import (
	"os"
	"path/filepath"
	"testing"

	"edgegateway/uplink"
)

func TestAMarkOutlivesAndIsCleared(t *testing.T) {
	m := mark{filepath.Join(t.TempDir(), "main.far.ahead")}
	if at, ok := m.Load(); ok {
		t.Errorf("Load = %v before it was stored, want none", at)
	}
	want := uplink.FarCursor{Epoch: 7, Seq: 1<<63 + 5}
	if err := m.Store(want); err != nil {
		t.Fatal(err)
	}
	if at, ok := (mark{m.path}).Load(); !ok || at != want {
		t.Errorf("Load = %v, %v, want %v", at, ok, want)
	}
	for range 2 {
		if err := m.Clear(); err != nil {
			t.Error(err)
		}
	}
	if _, ok := m.Load(); ok {
		t.Error("it is there after Clear")
	}
	if err := os.WriteFile(m.path, []byte("?"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, ok := m.Load(); !ok {
		t.Error("a file that cannot be read counts as none")
	}
}
