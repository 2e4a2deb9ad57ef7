package rig

import (
	"fmt"
	"os"
	"slices"
)

// Main is the TB of a TestMain or of a program. Close ends what was started with it.
type Main struct {
	cleanups []func()
	failed   bool
}

// Close runs the cleanups, last first.
func (m *Main) Close() {
	for _, f := range slices.Backward(m.cleanups) {
		f()
	}
	m.cleanups = nil
}

// Helper implements TB.
func (m *Main) Helper() {}

// Cleanup implements TB.
func (m *Main) Cleanup(f func()) { m.cleanups = append(m.cleanups, f) }

// Failed implements TB.
func (m *Main) Failed() bool { return m.failed }

// Fatalf implements TB: it ends the process.
func (m *Main) Fatalf(format string, args ...any) {
	m.failed = true
	m.Logf(format, args...)
	m.Close()
	os.Exit(1)
}

// Logf implements TB.
func (m *Main) Logf(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// TempDir implements TB.
func (m *Main) TempDir() string {
	dir, err := os.MkdirTemp("", "rig")
	if err != nil {
		m.Fatalf("temporary directory: %v", err)
	}
	m.Cleanup(func() { _ = os.RemoveAll(dir) }) // the system's temporary directory is cleaned anyway
	return dir
}
