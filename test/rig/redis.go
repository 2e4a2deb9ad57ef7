package rig

import (
	"os/exec"
	"strconv"
)

// Redis starts a redis-server that confirms a write only when it is on disk. args are settings as on its command line:
// "--maxmemory", "3mb".
func Redis(tb TB, args ...string) *Server {
	tb.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		Setup(tb, "apt")
	}
	port := strconv.Itoa(FreePort(tb))
	dir := tb.TempDir()
	s := &Server{tb: tb, name: "redis-server", dir: dir, Addr: "127.0.0.1:" + port}
	s.command = func() *exec.Cmd {
		return exec.Command("redis-server", append([]string{
			"--port", port, "--bind", "127.0.0.1", "--dir", dir,
			"--appendonly", "yes", "--appendfsync", "always", "--save", "",
		}, args...)...)
	}
	s.ready = tcpAnswers(s.Addr, "PING\r\n", "+PONG\r\n")
	for i, arg := range args {
		if arg == "--requirepass" && i+1 < len(args) {
			s.ready = tcpAnswers(s.Addr, "AUTH "+args[i+1]+"\r\nPING\r\n", "+OK\r\n")
		}
	}
	return s.begin()
}
