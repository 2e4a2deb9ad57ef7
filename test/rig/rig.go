package rig

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// TB is the part of testing.TB that the rig needs. *testing.T and *testing.B have it; a TestMain uses Main.
type TB interface {
	Helper()
	Cleanup(func())
	Failed() bool
	Fatalf(format string, args ...any)
	Logf(format string, args ...any)
	TempDir() string
}

// startTimeout bounds how long a server may take until it answers. Java beside other tests on two cores is slow.
const startTimeout = 3 * time.Minute

// Server is a broker in a process of its own.
type Server struct {
	// Addr is its host and port; they stay the same over Stop and Start.
	Addr string
	// A proxy in front of the server listens at ProxyAt, which may leave the port open, and leads to ProxyTo.
	ProxyAt, ProxyTo string
	// Fronts are more such pairs, where the ports are not open.
	Fronts []Front
	// At says where further listeners are, by name, where there are any.
	At map[string]string

	tb      TB
	name    string
	rewrite func(settings string) // its settings file, where Reload can do that
	dir     string                // data, settings and log
	command func() *exec.Cmd
	ready   func() error
	cmd     *exec.Cmd
	exited  chan struct{}
}

// Front is where a proxy in front of a server listens, and where it leads.
type Front struct{ At, To string }

// begin starts the server and arranges that it ends with the test.
func (s *Server) begin() *Server {
	s.tb.Helper()
	if s.ProxyTo == "" {
		s.ProxyAt, s.ProxyTo = "127.0.0.1:0", s.Addr
	}
	s.tb.Cleanup(s.end)
	s.Start()
	return s
}

func (s *Server) end() {
	s.Kill9()
	if s.tb.Failed() {
		s.tb.Logf("%s said last:\n%s", s.name, s.logTail())
	}
}

// Start starts a server that does not run, and returns when it answers.
func (s *Server) Start() {
	s.tb.Helper()
	s.Launch()
	s.WaitReady()
}

// Launch starts a server that does not run and does not wait for it.
func (s *Server) Launch() {
	s.tb.Helper()
	if s.cmd != nil {
		s.tb.Fatalf("%s runs already", s.name)
	}
	log, err := os.OpenFile(filepath.Join(s.dir, "server.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		s.tb.Fatalf("log of %s: %v", s.name, err)
	}
	defer func() { _ = log.Close() }() // the server has its own copy
	cmd := s.command()
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.dir, log, log
	// A test binary that dies takes its servers with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	exited, err := startPinned(cmd)
	if err != nil {
		s.tb.Fatalf("start %s: %v", s.name, err)
	}
	s.cmd, s.exited = cmd, exited
}

// WaitReady returns when the server answers.
func (s *Server) WaitReady() {
	s.tb.Helper()
	deadline := time.Now().Add(startTimeout)
	for {
		err := s.ready()
		if err == nil {
			return
		}
		select {
		case <-s.exited:
			s.tb.Fatalf("%s ended at its start:\n%s", s.name, s.logTail())
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			s.tb.Fatalf("%s does not answer after %v: %v", s.name, startTimeout, err)
		}
	}
}

// Stop ends the server as an administrator would. A server that does not run stays as it is.
func (s *Server) Stop() {
	s.tb.Helper()
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Signal(syscall.SIGTERM) // it may have ended by itself
	select {
	case <-s.exited:
		s.cmd = nil
	case <-time.After(startTimeout):
		s.Kill9()
		s.tb.Fatalf("%s does not stop", s.name)
	}
}

// Kill9 ends the server at once.
func (s *Server) Kill9() {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Kill() // it may have ended by itself
	<-s.exited
	s.cmd = nil
}

// Pause makes the server stand still without closing its connections; Resume lets it go on. It stands when Pause returns: on a busy
// machine it would still answer for a while after the signal.
func (s *Server) Pause() {
	s.tb.Helper()
	s.signal(syscall.SIGSTOP)
	for deadline := time.Now().Add(startTimeout); !s.stands(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			s.tb.Fatalf("%s does not stand still", s.name)
		}
	}
}

// stands reports whether each thread is stopped.
func (s *Server) stands() bool {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", s.cmd.Process.Pid)) // the pattern is good
	for _, thread := range threads {
		text, err := os.ReadFile(thread)
		if at := bytes.LastIndexByte(text, ')'); err == nil && (at < 0 || !bytes.HasPrefix(text[at:], []byte(") T"))) {
			return false
		}
	}
	return len(threads) > 0
}

// Resume ends a Pause.
func (s *Server) Resume() { s.signal(syscall.SIGCONT) }

// SetSettings gives a server others at its next start, in the place of those a test has given it.
func (s *Server) SetSettings(settings string) { s.rewrite(settings) }

// Reload gives a server that can change its settings while it runs others in the place of those a test has given it, and waits until it
// has taken them.
func (s *Server) Reload(settings string) {
	s.tb.Helper()
	reloads := func() int {
		text, _ := os.ReadFile(filepath.Join(s.dir, "server.log")) // it is there, or nothing was reloaded
		return bytes.Count(text, []byte("Reloaded server configuration"))
	}
	before := reloads()
	s.rewrite(settings)
	s.signal(syscall.SIGHUP)
	for deadline := time.Now().Add(20 * time.Second); reloads() == before; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.tb.Fatalf("%s does not take new settings:\n%s", s.name, s.logTail())
		}
	}
}

func (s *Server) signal(sig syscall.Signal) {
	s.tb.Helper()
	if s.cmd == nil {
		s.tb.Fatalf("%s does not run", s.name)
	}
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.tb.Fatalf("%s: %v", s.name, err)
	}
}

func (s *Server) logTail() string {
	text, err := os.ReadFile(filepath.Join(s.dir, "server.log"))
	if err != nil {
		return err.Error()
	}
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	return string(bytes.Join(lines[max(0, len(lines)-40):], []byte("\n")))
}

// startPinned starts cmd and waits for it on a thread of its own: the kernel sends the signal of Pdeathsig when the
// thread that started the child ends, not the process. The channel is closed when the child has ended.
func startPinned(cmd *exec.Cmd) (exited chan struct{}, err error) {
	started := make(chan error)
	exited = make(chan struct{})
	go func() {
		defer close(exited)
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // how it ended stands in its log
		}
	}()
	return exited, <-started
}

// Setup has test/setup.sh install a part, which is quick when it is there, and returns the directory it installs to.
func Setup(tb TB, part string) string {
	tb.Helper()
	cache := os.Getenv("EDGE_TEST_CACHE")
	if cache == "" {
		base, err := os.UserCacheDir()
		if err != nil {
			tb.Fatalf("cache of the tests: %v", err)
		}
		cache = filepath.Join(base, "edge-gateway-test")
	}
	out, err := exec.Command(filepath.Join(Root(tb), "test", "setup.sh"), part).CombinedOutput()
	if err != nil {
		tb.Fatalf("test/setup.sh %s: %v\n%s", part, err, out)
	}
	return cache
}

// Root returns the top directory of the repository.
func Root(tb TB) string {
	tb.Helper()
	dir, err := os.Getwd()
	if err != nil {
		tb.Fatalf("working directory: %v", err)
	}
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if mod, err := os.ReadFile(filepath.Join(dir, "go.mod")); err == nil && strings.HasPrefix(string(mod), "module edgegateway\n") {
			return dir
		}
	}
	tb.Fatalf("not in the repository: no go.mod of edgegateway above")
	return ""
}

// tcpAnswers returns a probe that connects to addr, says hello, and wants an answer that begins with want.
func tcpAnswers(addr, hello, want string) func() error {
	return func() error {
		c, err := net.DialTimeout("tcp", addr, time.Second)
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }() // a probe
		if err := c.SetDeadline(time.Now().Add(time.Second)); err != nil {
			return err
		}
		if _, err := c.Write([]byte(hello)); err != nil {
			return err
		}
		got := make([]byte, len(want))
		if _, err := c.Read(got); err != nil {
			return err
		}
		if string(got) != want {
			return fmt.Errorf("answers %q (want %q)", got, want)
		}
		return nil
	}
}
