package rig

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// NATSOptions are the settings of NATS that tests vary.
type NATSOptions struct {
	SyncAlways     bool   // confirm a message only when it is on disk
	User, Password string // of the only account; empty for none
	MaxPayload     int    // bytes of a message; 0 for the default of 1 MiB
	MaxBatch       int    // messages of an atomic batch; 0 for the default of 1000
	Settings       string // further lines of its settings
}

// NATS starts a nats-server with JetStream.
func NATS(tb TB, o NATSOptions) *Server {
	tb.Helper()
	bin := filepath.Join(Setup(tb, "nats"), "nats-server")
	s := &Server{tb: tb, name: "nats-server", dir: tb.TempDir(), Addr: fmt.Sprintf("127.0.0.1:%d", FreePort(tb))}
	s.SetNATS(o)
	s.command = func() *exec.Cmd { return exec.Command(bin, "-c", filepath.Join(s.dir, "nats.conf")) }
	s.ready = tcpAnswers(s.Addr, "", "INFO ") // it listens after JetStream has recovered
	return s.begin()
}

// SetNATS gives a nats-server other settings. They hold from its next start, or from Reload.
func (s *Server) SetNATS(o NATSOptions) {
	s.tb.Helper()
	text := fmt.Sprintf("listen: %q\njetstream { store_dir: %q", s.Addr, filepath.Join(s.dir, "data"))
	if o.SyncAlways {
		text += ", sync_interval: always"
	}
	if o.MaxBatch > 0 {
		text += fmt.Sprintf(", limits { batch { max_msgs: %d } }", o.MaxBatch)
	}
	text += " }\n"
	if o.User != "" {
		text += fmt.Sprintf("authorization { user: %q, password: %q }\n", o.User, o.Password)
	}
	if o.MaxPayload > 0 {
		text += fmt.Sprintf("max_payload: %d\n", o.MaxPayload)
	}
	text += o.Settings + "\n"
	if err := os.WriteFile(filepath.Join(s.dir, "nats.conf"), []byte(text), 0o600); err != nil {
		s.tb.Fatalf("settings of nats-server: %v", err)
	}
}

// Reload has the server read its settings again (SIGHUP).
func (s *Server) Reload() { s.signal(syscall.SIGHUP) }
