package rig

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// mosquitto returns the command line of a mosquitto client, which it installs if need be.
func mosquitto(tb TB, program, addr string, args []string) []string {
	tb.Helper()
	if _, err := exec.LookPath(program); err != nil {
		Setup(tb, "apt")
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		tb.Fatalf("address of the broker: %v", err)
	}
	return append([]string{program, "-h", host, "-p", port}, args...)
}

// MosquittoPub runs mosquitto_pub against addr until it ends and returns what it printed and its error.
func MosquittoPub(tb TB, addr string, args ...string) (string, error) {
	tb.Helper()
	return MosquittoPubFrom(tb, addr, nil, args...)
}

// MosquittoPubFrom is MosquittoPub with standard input, for its option -l.
func MosquittoPubFrom(tb TB, addr string, stdin io.Reader, args ...string) (string, error) {
	tb.Helper()
	line := mosquitto(tb, "mosquitto_pub", addr, args)
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Stdin = stdin
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// LineClient is a client in a process of its own that prints a line for each thing that happens.
type LineClient struct {
	tb    TB
	cmd   *exec.Cmd
	stdin io.Closer
	wg    sync.WaitGroup
	ended chan struct{}

	mu    sync.Mutex // guards lines
	lines []string
}

// MosquittoSub runs mosquitto_sub against addr until the test ends; each message is a line. Use -d to see SUBACK.
func MosquittoSub(tb TB, addr string, args ...string) *LineClient {
	tb.Helper()
	line := mosquitto(tb, "mosquitto_sub", addr, args)
	return startLines(tb, exec.Command(line[0], line[1:]...), nil)
}

// PahoOptions are the settings of PahoPublisher.
type PahoOptions struct {
	Version        int // 4 is MQTT 3.1.1, 5 is MQTT 5
	ClientID       string
	User, Password string
	Topic          string
	Prefix         string // of the payloads, before their number
	QoS            int
	Count          int
	Window         int
	Keep           bool // the session, over a lost connection
	Pause          time.Duration
}

// PahoPublisher starts a process of paho-mqtt that publishes Prefix0, Prefix1, … and prints the number of each message
// when the broker has acknowledged it. It connects again and sends again by itself, and ends when all are acknowledged.
func PahoPublisher(tb TB, addr string, o PahoOptions) *LineClient {
	tb.Helper()
	python := filepath.Join(Setup(tb, "python"), "python", "bin", "python")
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		tb.Fatalf("address of the broker: %v", err)
	}
	number, _ := strconv.Atoi(port)
	settings, err := json.Marshal(map[string]any{
		"host": host, "port": number, "version": o.Version, "id": o.ClientID, "user": o.User, "password": o.Password,
		"topic": o.Topic, "prefix": o.Prefix, "qos": o.QoS, "count": o.Count, "window": o.Window, "keep": o.Keep,
		"pause": o.Pause.Seconds(),
	})
	if err != nil {
		tb.Fatalf("settings of the paho publisher: %v", err)
	}
	script := filepath.Join(Root(tb), "test", "rig", "paho_publisher.py")
	return startLines(tb, exec.Command(python, script), append(settings, '\n'))
}

func startLines(tb TB, cmd *exec.Cmd, first []byte) *LineClient {
	tb.Helper()
	c := &LineClient{tb: tb, cmd: cmd, ended: make(chan struct{})}
	out, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatalf("%s: %v", cmd.Path, err)
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		tb.Fatalf("%s: %v", cmd.Path, err)
	}
	var errs bytes.Buffer
	cmd.Stderr = &errs
	if err := cmd.Start(); err != nil {
		tb.Fatalf("%s: %v", cmd.Path, err)
	}
	c.stdin = in
	if _, err := in.Write(first); err != nil {
		tb.Fatalf("%s: %v", cmd.Path, err)
	}
	c.wg.Go(func() {
		defer close(c.ended)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			c.mu.Lock()
			c.lines = append(c.lines, lines.Text())
			c.mu.Unlock()
		}
		if err := cmd.Wait(); err != nil && errs.Len() > 0 {
			c.mu.Lock()
			c.lines = append(c.lines, "stderr: "+errs.String())
			c.mu.Unlock()
		}
	})
	tb.Cleanup(func() { c.Stop() })
	return c
}

// Lines returns what the client has printed so far.
func (c *LineClient) Lines() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.lines)
}

// Acked returns the numbers that a PahoPublisher has printed so far, in their order.
func (c *LineClient) Acked() []int {
	var acked []int
	for _, line := range c.Lines() {
		if n, err := strconv.Atoi(line); err == nil {
			acked = append(acked, n)
		}
	}
	return acked
}

// WaitLine waits until a line that holds part was printed.
func (c *LineClient) WaitLine(part string) {
	c.tb.Helper()
	for deadline := time.Now().Add(startTimeout); ; time.Sleep(5 * time.Millisecond) {
		lines := c.Lines()
		if slices.ContainsFunc(lines, func(l string) bool { return strings.Contains(l, part) }) {
			return
		}
		if time.Now().After(deadline) {
			c.tb.Fatalf("%s: no line with %q in %q", c.cmd.Path, part, lines)
		}
	}
}

// WaitEnd waits until the client has ended by itself.
func (c *LineClient) WaitEnd() {
	c.tb.Helper()
	select {
	case <-c.ended:
	case <-time.After(startTimeout):
		c.tb.Fatalf("%s: still runs: %q", c.cmd.Path, c.Lines())
	}
}

// Stop ends the client.
func (c *LineClient) Stop() {
	_ = c.stdin.Close()
	_ = c.cmd.Process.Kill()
	c.wg.Wait()
}
