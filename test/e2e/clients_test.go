package e2e_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"edgegateway/test/rig"
)

// process is a program that runs beside the test and ends with it.
type process struct {
	t      *testing.T
	name   string
	cmd    *exec.Cmd
	out    bytes.Buffer // written until exited is closed
	exited chan struct{}
	err    error // of Wait
}

func startProcess(t *testing.T, name, program string, args ...string) *process {
	t.Helper()
	p := &process{t: t, name: name, cmd: exec.Command(program, args...), exited: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		defer close(p.exited)
		runtime.LockOSThread() // and never unlocked: Pdeathsig follows the thread that started the child
		err := p.cmd.Start()
		started <- err
		if err == nil {
			p.err = p.cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	t.Cleanup(func() {
		p.kill()
		if t.Failed() && p.out.Len() > 0 {
			t.Logf("%s said last:\n%s", name, tail(p.out.String()))
		}
	})
	return p
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended by itself
	<-p.exited
}

// wait wants the process to end by itself without an error.
func (p *process) wait(limit time.Duration) {
	p.t.Helper()
	select {
	case <-p.exited:
	case <-time.After(limit):
		p.t.Fatalf("%s still runs after %v", p.name, limit)
	}
	if p.err != nil {
		p.t.Fatalf("%s: %v", p.name, p.err)
	}
}

// clients are the MQTT clients of a run, and their ledgers.
type clients struct {
	t       *testing.T
	dir     string
	paho    []*process
	qos     []int
	stop    string // the file that tells paho to stop
	done    context.CancelFunc
	shell   sync.WaitGroup
	ledgers []*ledger // of mosquitto_pub; the others are read from files
}

func startClients(t *testing.T, port int, rate int) *clients {
	t.Helper()
	c := &clients{t: t, dir: t.TempDir()}
	c.stop = filepath.Join(c.dir, "stop")
	python := filepath.Join(rig.Setup(t, "python"), "python", "bin", "python")
	script := filepath.Join(rig.Root(t), "test", "e2e", "client.py")
	for i, kind := range []struct{ qos, version, window string }{{"1", "3", "50"}, {"1", "5", "200"}, {"2", "3", "20"}, {"2", "5", "50"}} {
		name := fmt.Sprintf("p%d", i+1)
		c.paho = append(c.paho, startProcess(t, name, python, script, strconv.Itoa(port), mqttUser, mqttPassword, name,
			kind.qos, kind.version, kind.window, strconv.Itoa(rate), c.file(i), c.stop))
		c.qos = append(c.qos, int(kind.qos[0]-'0'))
	}
	ctx, cancel := context.WithCancel(t.Context())
	c.done = cancel
	t.Cleanup(func() {
		cancel()
		c.shell.Wait()
	})
	if _, err := exec.LookPath("mosquitto_pub"); err != nil {
		rig.Setup(t, "apt")
	}
	l := newLedger("m1", 1)
	c.ledgers = append(c.ledgers, l)
	c.shell.Go(func() { publishLines(ctx, t, port, l) })
	return c
}

func (c *clients) file(i int) string { return filepath.Join(c.dir, fmt.Sprintf("p%d.ledger", i+1)) }

// progress returns a number that grows with each acknowledgement, and with each attempt.
func (c *clients) progress() int64 {
	var size int64
	for i := range c.paho {
		if info, err := os.Stat(c.file(i)); err == nil {
			size += info.Size()
		}
	}
	return size
}

// alive fails the test when a client has given up.
func (c *clients) alive() {
	c.t.Helper()
	for _, p := range c.paho {
		select {
		case <-p.exited:
			c.t.Fatalf("%s ended early: %v\n%s", p.name, p.err, tail(p.out.String()))
		default:
		}
	}
}

// finish lets the clients get their last acknowledgements and returns the ledgers.
func (c *clients) finish() []*ledger {
	c.t.Helper()
	if err := os.WriteFile(c.stop, nil, 0o600); err != nil {
		c.t.Fatalf("stop the clients: %v", err)
	}
	c.done()
	for i, p := range c.paho {
		p.wait(time.Minute)
		text, err := os.ReadFile(c.file(i))
		if err != nil {
			c.t.Fatalf("ledger: %v", err)
		}
		l := newLedger(p.name, c.qos[i])
		if err := l.parse(string(text)); err != nil {
			c.t.Fatal(err)
		}
		c.ledgers = append(c.ledgers, l)
	}
	c.shell.Wait()
	return c.ledgers
}

var (
	mosquittoSends = regexp.MustCompile(`sending PUBLISH \(d\d, q1, r\d, m(\d+),`)
	mosquittoAcked = regexp.MustCompile(`received PUBACK \(Mid: (\d+), RC:0\)`)
)

// publishLines has mosquitto_pub publish lines of standard input, a few at a time, and again from the first line that was
// not acknowledged. What it sent and what was acknowledged is read from what it prints.
func publishLines(ctx context.Context, t *testing.T, port int, l *ledger) {
	const lines = 40
	next := 1
	for ctx.Err() == nil || len(l.acked) < next-1 {
		var input strings.Builder
		for n := next; n < next+lines; n++ {
			fmt.Fprintf(&input, `{"c":"%s","n":%d}`+"\n", l.client, n)
		}
		run, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		cmd := exec.CommandContext(run, "mosquitto_pub", "-h", "127.0.0.1", "-p", strconv.Itoa(port), "-u", mqttUser, "-P", mqttPassword,
			"-i", l.client, "-t", "line/"+l.client, "-q", "1", "-l", "-d")
		cmd.Stdin = strings.NewReader(input.String())
		out, err := cmd.Output()
		cancel()
		for _, m := range mosquittoSends.FindAllSubmatch(out, -1) {
			id, _ := strconv.Atoi(string(m[1])) // digits
			l.sent[next+id-1]++
		}
		acked := 0
		for _, m := range mosquittoAcked.FindAllSubmatch(out, -1) {
			id, _ := strconv.Atoi(string(m[1])) // digits
			l.acked[next+id-1] = true
			acked++
		}
		if err == nil && acked == 0 {
			t.Errorf("mosquitto_pub ended well without an acknowledgement:\n%s", tail(string(out)))
			return
		}
		for l.acked[next] {
			next++
		}
		if err != nil { // the gateway is down just now
			time.Sleep(50 * time.Millisecond)
		}
	}
}
