package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"edgegateway/test/rig"
)

// StopLimit is how long a gateway may take to stop when it is told to.
const StopLimit = 3 * time.Second

// Build compiles the gateway into dir and returns the program's path. flags go to go build: "-race", "-tags", "x".
func Build(tb rig.TB, dir, name string, flags ...string) string {
	tb.Helper()
	program := filepath.Join(dir, name)
	args := append([]string{"build", "-o", program}, flags...)
	cmd := exec.Command("go", append(args, "./cmd/gateway")...)
	cmd.Dir = rig.Root(tb)
	if out, err := cmd.CombinedOutput(); err != nil {
		tb.Fatalf("build the gateway: %v\n%s", err, out)
	}
	return program
}

// Gateway is a gateway in a process of its own. Its methods are called by one goroutine.
type Gateway struct {
	Dir  string // holds gateway.yaml, state and stderr.log
	Page string // address of the page, for Metrics

	// StopWithin replaces StopLimit where it is not zero, for programs that are slowed down by the race detector.
	StopWithin time.Duration
	// Command makes the process; the config stands in its last argument. Empty: the program itself.
	Command func(program string, args ...string) *exec.Cmd

	tb      rig.TB
	program string
	cmd     *exec.Cmd
	exited  chan struct{}
	err     error // of Wait; read after exited is closed
}

// NewGateway writes config to dir and makes a gateway that ends with the test. Start starts it.
func NewGateway(tb rig.TB, program, dir, config string) *Gateway {
	tb.Helper()
	g := &Gateway{Dir: dir, tb: tb, program: program}
	g.SetConfig(config)
	tb.Cleanup(func() {
		if g.cmd != nil {
			g.Kill9()
		}
		if tb.Failed() {
			tb.Logf("the gateway said last (all of it: %s):\n%s", g.keepLog(), Tail(g.Log(), 60))
		}
	})
	return g
}

// SetConfig replaces the config file.
func (g *Gateway) SetConfig(config string) {
	g.tb.Helper()
	if err := os.WriteFile(g.configFile(), []byte(config), 0o644); err != nil { // read by another user in some tests
		g.tb.Fatalf("config of the gateway: %v", err)
	}
}

func (g *Gateway) configFile() string { return filepath.Join(g.Dir, "gateway.yaml") }

// Start starts the process and does not wait until it is ready.
func (g *Gateway) Start() {
	g.tb.Helper()
	if g.cmd != nil {
		g.tb.Fatalf("the gateway runs already")
	}
	stderr, err := os.OpenFile(filepath.Join(g.Dir, "stderr.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		g.tb.Fatalf("log of the gateway: %v", err)
	}
	defer func() { _ = stderr.Close() }() // the process has its own copy
	command := g.Command
	if command == nil {
		command = exec.Command
	}
	cmd := command(g.program, "run", "-c", g.configFile())
	cmd.Dir, cmd.Stdout, cmd.Stderr = g.Dir, stderr, stderr
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0")
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL // a test binary that dies takes it along
	started, exited := make(chan error), make(chan struct{})
	go func() {
		defer close(exited)
		runtime.LockOSThread() // and never unlocked: Pdeathsig follows the thread that started the child
		err := cmd.Start()
		started <- err
		if err == nil {
			g.err = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		g.tb.Fatalf("start the gateway: %v", err)
	}
	g.cmd, g.exited = cmd, exited
}

// PID returns the process id.
func (g *Gateway) PID() int { return g.cmd.Process.Pid }

// MustRun fails the test when the process has ended by itself.
func (g *Gateway) MustRun() {
	g.tb.Helper()
	select {
	case <-g.exited:
		g.tb.Fatalf("the gateway ended by itself: %v", g.err)
	default:
	}
}

// Kill9 ends the process at once.
func (g *Gateway) Kill9() {
	g.MustRun()
	_ = g.cmd.Process.Kill() // it runs, or has ended within the last microsecond
	<-g.exited
	g.cmd = nil
}

// Stop ends the process as systemd does, and wants it gone within the limit and with exit code 0.
func (g *Gateway) Stop() time.Duration {
	g.tb.Helper()
	g.MustRun()
	began := time.Now()
	_ = g.cmd.Process.Signal(syscall.SIGTERM) // see Kill9
	limit := StopLimit
	if g.StopWithin > 0 {
		limit = g.StopWithin
	}
	code := g.Wait(limit + 10*time.Second)
	took := time.Since(began)
	if code != 0 {
		g.tb.Fatalf("the gateway stopped with exit code %d (want 0)", code)
	}
	if took > limit {
		g.tb.Fatalf("the gateway took %v to stop (want at most %v)", took, limit)
	}
	return took
}

// Wait returns the exit code of a process that ends by itself.
func (g *Gateway) Wait(limit time.Duration) int {
	g.tb.Helper()
	select {
	case <-g.exited:
	case <-time.After(limit):
		g.tb.Fatalf("the gateway still runs after %v", limit)
	}
	g.cmd = nil
	if g.err == nil {
		return 0
	}
	if e, ok := errors.AsType[*exec.ExitError](g.err); ok {
		return e.ExitCode()
	}
	return -1
}

// Log returns what the process has said since the first Start.
func (g *Gateway) Log() string {
	text, err := os.ReadFile(filepath.Join(g.Dir, "stderr.log"))
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// keepLog copies the log to where it outlives the test, and returns its name there.
func (g *Gateway) keepLog() string {
	dir := filepath.Join(rig.Root(g.tb), "build", "e2e-failed")
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err.Error()
	}
	file, err := os.CreateTemp(dir, "gateway-*.log")
	if err != nil {
		return err.Error()
	}
	_, err = file.WriteString(g.Log())
	if err = errors.Join(err, file.Close()); err != nil {
		return err.Error()
	}
	return file.Name()
}

// Metrics scrapes the page's /metrics: "edge_gateway_backlog_records{stream=\"s\",uplink=\"u\"}" → value.
func (g *Gateway) Metrics() (map[string]float64, error) {
	client := http.Client{Timeout: 2 * time.Second}
	resp, err := client.Get("http://" + g.Page + "/metrics")
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }() // only read
	body, err := io.ReadAll(io.LimitReader(resp.Body, 4<<20))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("/metrics answers %s: %.200s", resp.Status, body)
	}
	metrics := map[string]float64{}
	for line := range bytes.Lines(body) {
		text := strings.TrimSpace(string(line))
		i := strings.LastIndexByte(text, ' ')
		if i < 0 || strings.HasPrefix(text, "#") {
			continue
		}
		if v, err := strconv.ParseFloat(text[i+1:], 64); err == nil {
			metrics[text[:i]] = v
		}
	}
	return metrics, nil
}

// Tail returns the last lines of a text.
func Tail(text string, lines int) string {
	all := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
