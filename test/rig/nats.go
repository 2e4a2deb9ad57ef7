package rig

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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
	port := FreePort(tb)
	dir := tb.TempDir()
	text := fmt.Sprintf("listen: \"127.0.0.1:%d\"\njetstream { store_dir: %q", port, filepath.Join(dir, "data"))
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
	conf := filepath.Join(dir, "nats.conf")
	s := &Server{tb: tb, name: "nats-server", dir: dir, Addr: fmt.Sprintf("127.0.0.1:%d", port)}
	s.rewrite = func(settings string) {
		if err := os.WriteFile(conf, []byte(text+settings+"\n"), 0o600); err != nil {
			tb.Fatalf("settings of nats-server: %v", err)
		}
	}
	s.rewrite(o.Settings)
	s.command = func() *exec.Cmd { return exec.Command(bin, "-c", conf) }
	s.ready = tcpAnswers(s.Addr, "", "INFO ") // it listens after JetStream has recovered
	return s.begin()
}
