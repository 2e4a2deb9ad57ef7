package deb_test

import (
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// build makes a package and returns its path.
func build(t *testing.T, arch string) string {
	t.Helper()
	cmd := command(t, "./build.sh", arch, "0.1.0", t.TempDir())
	cmd.Env = append(cmd.Env, "SOURCE_DATE_EPOCH=1796000000") // there may be no repository, or a commit between two builds
	lines := strings.Fields(must(t, cmd))
	return lines[len(lines)-1]
}

// repack returns a copy of a package with another version, as an upgrade has it, and with changes that a script makes.
func repack(t *testing.T, deb, version, script string) string {
	t.Helper()
	dir := t.TempDir()
	tree, out := filepath.Join(dir, "tree"), filepath.Join(dir, "new.deb")
	must(t, command(t, "dpkg-deb", "-R", deb, tree))
	cmd := command(t, "sh", "-ec", "sed -i 's/^Version: .*/Version: "+version+"/' DEBIAN/control; "+script)
	cmd.Dir = tree
	must(t, cmd)
	must(t, command(t, "dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "-b", tree, out))
	return out
}

func sum(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", sha256.Sum256(content))
}

func TestTheBuildIsReproducibleAndCleanToLintian(t *testing.T) {
	deb := build(t, "amd64")
	if first, second := sum(t, deb), sum(t, build(t, "amd64")); first != second {
		t.Errorf("two builds differ: %s and %s", first, second)
	}
	must(t, command(t, "lintian", "--no-cfg", "--allow-root", "--fail-on", "error,warning", deb))
	checkContent(t, deb, "amd64", elf.EM_X86_64)

	t.Run("and the package lives through its life", func(t *testing.T) { lifecycle(t, deb) })
}

func TestTheOtherArchitecturesHoldTheRightBinary(t *testing.T) {
	for arch, machine := range map[string]elf.Machine{"arm64": elf.EM_AARCH64, "armhf": elf.EM_ARM} {
		t.Run(arch, func(t *testing.T) { checkContent(t, build(t, arch), arch, machine) })
	}
}

// checkContent looks at what lies in a package.
func checkContent(t *testing.T, deb, arch string, machine elf.Machine) {
	t.Helper()
	if got := must(t, command(t, "dpkg-deb", "-f", deb, "Package", "Version", "Architecture")); got !=
		"Package: edge-gateway\nVersion: 0.1.0-1\nArchitecture: "+arch+"\n" {
		t.Errorf("control file says\n%s", got)
	}
	list := must(t, command(t, "dpkg-deb", "-c", deb))
	for _, want := range []string{
		`-rwxr-xr-x root/root .* \./usr/bin/edge-gateway\n`,
		`-rw-r----- root/root .* \./etc/edge-gateway/gateway\.yaml\n`,
		`-rw-r--r-- root/root .* \./usr/lib/systemd/system/edge-gateway\.service\n`,
		`-rw-r--r-- root/root .* \./usr/share/man/man1/edge-gateway\.1\.gz\n`,
	} {
		if !regexp.MustCompile(want).MatchString(list) {
			t.Errorf("%s is missing in\n%s", want, list)
		}
	}
	dir := t.TempDir()
	must(t, command(t, "dpkg-deb", "-x", deb, dir))
	f, err := elf.Open(filepath.Join(dir, "usr/bin/edge-gateway"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	libraries, err := f.ImportedLibraries()
	if f.Machine != machine || len(libraries) > 0 || err != nil {
		t.Errorf("binary for %v with the libraries %v, %v; want %v and none", f.Machine, libraries, err, machine)
	}
}

func TestTheUnitIsConfined(t *testing.T) {
	must(t, command(t, "systemd-analyze", "security", "--offline=true", "--threshold=20", "edge-gateway.service"))
	unit, err := os.ReadFile("edge-gateway.service")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"Type=notify", "WatchdogSec=30", "User=edge-gateway", "StateDirectory=edge-gateway", "StateDirectoryMode=0750",
		"Restart=always", "StartLimitIntervalSec=0", "RestartPreventExitStatus=6",
		"ExecStart=/usr/bin/edge-gateway run -c /etc/edge-gateway/gateway.yaml",
	} {
		if !bytes.Contains(unit, []byte("\n"+line+"\n")) {
			t.Errorf("the unit has no line %s", line)
		}
	}
	// The program and its manual need not be on the machine that builds.
	here := regexp.MustCompile(`(?m)^(ExecStart=).*$`).ReplaceAll(unit, []byte("${1}/bin/true"))
	here = regexp.MustCompile(`(?m)^Documentation=.*\n`).ReplaceAll(here, nil)
	file := filepath.Join(t.TempDir(), "edge-gateway.service")
	if err := os.WriteFile(file, here, 0o600); err != nil {
		t.Fatal(err)
	}
	must(t, command(t, "systemd-analyze", "verify", file))
}

// lifecycle installs, runs, upgrades, removes and purges in a root where no systemd runs.
func lifecycle(t *testing.T, deb string) {
	const config, state = "/etc/edge-gateway/gateway.yaml", "/var/lib/edge-gateway"
	const enabled = "/etc/systemd/system/multi-user.target.wants/edge-gateway.service"
	r := newRoot(t)
	r.install(deb)
	r.sh("test -L " + enabled)
	if got := r.sh("id -Gn edge-gateway"); got != "edge-gateway dialout\n" {
		t.Errorf("the user is in the groups %q", got)
	}
	owners := func() {
		t.Helper()
		if got := r.sh("stat -c '%a %U %G' /etc/edge-gateway " + config); got != "750 root edge-gateway\n640 root edge-gateway\n" {
			t.Errorf("the config belongs to %q", got)
		}
	}
	owners()
	r.sh("edge-gateway check " + config)

	port := freePort(t)
	r.sh(fmt.Sprintf("sed -i 's/0\\.0\\.0\\.0:8080/127.0.0.1:%d/; s/id: gateway-1/id: plant-7/' %s", port, config))
	mine := r.sh("cat " + config)
	run := func() {
		t.Helper()
		g := r.start()
		healthy(t, port)
		g.await("WATCHDOG=1")
		if log := g.stop(); !strings.Contains(log, "gateway=plant-7") || !strings.Contains(log, "setup_code=") {
			t.Errorf("the log has no gateway=plant-7 or no set-up code:\n%s", log)
		}
	}
	run()
	epoch := r.sh("cat " + state + "/epoch")
	kept := func(what string) {
		t.Helper()
		if got := r.sh("cat " + config); got != mine {
			t.Errorf("after %s the config is\n%s\nwant\n%s", what, got, mine)
		}
		if got := r.sh("cat " + state + "/epoch"); got != epoch {
			t.Errorf("after %s the log's epoch is %q, want %q", what, got, epoch)
		}
	}

	r.install(repack(t, deb, "0.2.0-1", ""))
	kept("an upgrade")
	r.sh("rm " + enabled) // what systemctl disable does
	third := repack(t, deb, "0.3.0-1", "echo '# new' >>etc/edge-gateway/gateway.yaml")
	r.install(third, "--force-confdef", "--force-confold")
	kept("an upgrade to a package with another config")
	owners()
	r.sh("test ! -e " + enabled)
	run()
	kept("a run of the new version")

	r.sh("dpkg -r edge-gateway; test ! -e /usr/bin/edge-gateway")
	kept("removing")
	r.install(third)
	kept("installing it again")
	owners()
	r.sh("dpkg -P edge-gateway; test ! -e /etc/edge-gateway; test ! -e " + state + "; getent passwd edge-gateway")
	r.sh("test -z \"$(find /etc/systemd /var/lib/systemd -name '*edge-gateway*')\"")
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port
}

// healthy waits until the page says that the gateway lives; the page opens beside the log and may come a moment later.
func healthy(t *testing.T, port int) {
	t.Helper()
	url, said := fmt.Sprintf("http://127.0.0.1:%d/healthz", port), ""
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		resp, err := http.Get(url)
		if err != nil {
			said = err.Error()
			continue
		}
		_ = resp.Body.Close()
		if said = resp.Status; resp.StatusCode == http.StatusOK {
			return
		}
	}
	t.Fatalf("%s: %s", url, said)
}
