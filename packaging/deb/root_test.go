package deb_test

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// command returns a command that cannot read from a terminal, as an unattended upgrade runs it.
func command(t *testing.T, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive")
	return cmd
}

// asRoot is command for what only root may do.
func asRoot(t *testing.T, name string, args ...string) *exec.Cmd {
	if os.Geteuid() == 0 {
		return command(t, name, args...)
	}
	return command(t, "sudo", append([]string{"-n", name}, args...)...)
}

// must runs cmd and returns what it printed.
func must(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s%s", strings.Join(cmd.Args, " "), err, stdout.String(), stderr.String())
	}
	return stdout.String()
}

// root is a small Debian of its own in a folder.
type root struct {
	t   *testing.T
	dir string
}

func newRoot(t *testing.T) *root {
	t.Helper()
	tar := strings.TrimSpace(must(t, command(t, "../../test/setup.sh", "deb")))
	// A short path: the address of a unix socket in it has at most 107 bytes.
	tmp, err := os.MkdirTemp("", "deb") //nolint:usetesting // a test's own folder has a longer path
	if err != nil {
		t.Fatal(err)
	}
	r := &root{t, filepath.Join(tmp, "r")}
	t.Cleanup(func() {
		remove := exec.Command("rm", "-rf", tmp)
		if os.Geteuid() != 0 {
			remove = exec.Command("sudo", "-n", "rm", "-rf", tmp)
		}
		if out, err := remove.CombinedOutput(); err != nil {
			t.Errorf("remove %s: %v: %s", tmp, err, out)
		}
	})
	if err := os.Mkdir(r.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	must(t, asRoot(t, "tar", "-C", r.dir, "--exclude=./dev/*", "-xpf", tar))
	// A container may not make device nodes; an empty file does for the scripts.
	r.sh("mknod -m 666 /dev/null c 1 3 2>/dev/null || { touch /dev/null; chmod 666 /dev/null; }")
	return r
}

// sh runs a shell command in the root and returns what it printed.
func (r *root) sh(script string) string {
	r.t.Helper()
	return must(r.t, asRoot(r.t, "chroot", r.dir, "/bin/sh", "-ec", script))
}

// install brings a package into the root and installs it.
func (r *root) install(deb string, options ...string) string {
	r.t.Helper()
	must(r.t, asRoot(r.t, "cp", deb, filepath.Join(r.dir, "root", "new.deb")))
	return r.sh("dpkg " + strings.Join(options, " ") + " -i /root/new.deb 2>&1")
}

// gateway is the installed program, running as its unit would run it.
type gateway struct {
	t      *testing.T
	cmd    *exec.Cmd
	stderr bytes.Buffer
	notify *net.UnixConn
}

// start runs the installed program the way its unit does, and returns when systemd would hold it for started.
func (r *root) start() *gateway {
	r.t.Helper()
	r.sh("install -d -m 0777 /run/test && rm -f /run/test/notify && install -d -o edge-gateway -g edge-gateway -m 0750 /var/lib/edge-gateway")
	socket := filepath.Join(r.dir, "run/test/notify")
	g := &gateway{t: r.t}
	var err error
	if g.notify, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"}); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = g.notify.Close() })
	if err := os.Chmod(socket, 0o777); err != nil {
		r.t.Fatal(err)
	}
	g.cmd = asRoot(r.t, "chroot", "--userspec=edge-gateway:edge-gateway", r.dir, "/usr/bin/env", "-i",
		"NOTIFY_SOCKET=/run/test/notify", "WATCHDOG_USEC=3000000", "/usr/bin/edge-gateway", "run", "-c", "/etc/edge-gateway/gateway.yaml")
	g.cmd.Stderr = &g.stderr
	g.cmd.Cancel = func() error { return g.cmd.Process.Signal(syscall.SIGTERM) }
	g.cmd.WaitDelay = 20 * time.Second
	if err := g.cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	g.await("READY=1")
	return g
}

// await waits for a notification.
func (g *gateway) await(want string) {
	g.t.Helper()
	if err := g.notify.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		g.t.Fatal(err)
	}
	for buf := make([]byte, 4096); ; {
		n, err := g.notify.Read(buf)
		if err != nil {
			_ = g.cmd.Process.Signal(syscall.SIGTERM)
			_ = g.cmd.Wait()
			g.t.Fatalf("no %s came: %v\n%s", want, err, g.stderr.String())
		}
		if strings.Contains("\n"+string(buf[:n])+"\n", "\n"+want+"\n") {
			return
		}
	}
}

// stop ends it as systemd does and returns its log.
func (g *gateway) stop() string {
	g.t.Helper()
	if err := g.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		g.t.Fatal(err)
	}
	if err := g.cmd.Wait(); err != nil {
		g.t.Fatalf("the gateway ended with %v\n%s", err, g.stderr.String())
	}
	return g.stderr.String()
}
