package rig

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// NATSOptions are the settings of NATS that tests vary.
type NATSOptions struct {
	SyncAlways     bool   // confirm a message only when it is on disk
	User, Password string // of the only account; empty for none
	MaxPayload     int    // bytes of a message; 0 for the default of 1 MiB
	MaxBatch       int    // messages of an atomic batch; 0 for the default of 1000
	MaxFile        int    // bytes that all streams may keep; 0 for three quarters of the disk
	Settings       string // further lines of its settings
}

// NATS starts a nats-server with JetStream.
func NATS(tb TB, o NATSOptions) *Server {
	tb.Helper()
	return natsNode(tb, o, FreePort(tb), "").begin()
}

// NATSCluster starts nodes that keep streams together, named n1, n2 and so on. Each knows all the others; a stream can be made as
// soon as they have found each other.
func NATSCluster(tb TB, nodes int, o NATSOptions) []*Server {
	tb.Helper()
	ports := freePorts(tb, 2*nodes)
	clients, routes := ports[:nodes], ports[nodes:]
	var urls []string
	for _, port := range routes {
		urls = append(urls, fmt.Sprintf("\"nats://127.0.0.1:%d\"", port))
	}
	servers := make([]*Server, nodes)
	for i := range servers {
		servers[i] = natsNode(tb, o, clients[i], fmt.Sprintf("server_name: n%d\ncluster { name: rig, listen: \"127.0.0.1:%d\", routes: [ %s ] }\n",
			i+1, routes[i], strings.Join(urls, ", ")))
		servers[i].name = fmt.Sprintf("nats-server n%d", i+1)
		tb.Cleanup(servers[i].end)
		servers[i].Launch()
	}
	for _, s := range servers {
		s.WaitReady()
	}
	return servers
}

// natsNode makes the settings of a nats-server.
func natsNode(tb TB, o NATSOptions, port int, more string) *Server {
	tb.Helper()
	bin := filepath.Join(Setup(tb, "nats"), "nats-server")
	dir := tb.TempDir()
	text := fmt.Sprintf("listen: \"127.0.0.1:%d\"\n%sjetstream { store_dir: %q", port, more, filepath.Join(dir, "data"))
	if o.SyncAlways {
		text += ", sync_interval: always"
	}
	if o.MaxBatch > 0 {
		text += fmt.Sprintf(", limits { batch { max_msgs: %d } }", o.MaxBatch)
	}
	if o.MaxFile > 0 {
		text += fmt.Sprintf(", max_file_store: %d", o.MaxFile)
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
	return s
}
