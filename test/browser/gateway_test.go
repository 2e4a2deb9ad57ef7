package browser_test

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestTheDemonstration goes through what `make run` gives a newcomer: the address and the code that it prints, the set-up, and
// a boiler that moves. It is the page over a real gateway, a real broker and a Modbus slave.
func TestTheDemonstration(t *testing.T) {
	dir := t.TempDir()
	build(t, "../..", dir+"/edge-gateway", "./cmd/gateway")
	build(t, "../plant", dir+"/plant", ".")
	plant := exec.CommandContext(t.Context(), dir+"/plant", "run", dir+"/edge-gateway")
	plant.Dir = dir
	plant.Cancel = func() error { return plant.Process.Signal(syscall.SIGTERM) }
	plant.WaitDelay = 10 * time.Second
	out, err := plant.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	plant.Stderr = os.Stderr
	if err := plant.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if log, err := os.ReadFile(filepath.Join(dir, ".run", "gateway.log")); t.Failed() && err == nil {
			t.Logf("the gateway said:\n%s", log)
		}
	})

	lines := bufio.NewScanner(out)
	url := after(t, lines, `^ +page +(\S+)$`)
	code := after(t, lines, `^ +code +(\S+)$`)
	after(t, lines, `^(first record confirmed by the far broker)`)

	b := openTab(t, url)
	b.open("/")
	b.shows("Set up this gateway")
	b.enter(map[string]string{"code": code, "password": password, "again": password})
	b.shows("All is well")
	b.until("the boiler's values", `/kettle\/water/.test(document.body.innerText.replace(/\s+/g, ""))`)
	const water = `[...document.querySelectorAll("tbody tr")].find(r => /kettle\/\s*water/.test(r.innerText)).querySelector(".value b").textContent`
	b.until("a mark", "window.first = "+water)
	b.until("another water temperature", water+" !== window.first")
	b.lookAll("demonstration")
	b.wantNoTrouble()

	if err := plant.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	for lines.Scan() { // to its end, so that it can write
	}
	if err := plant.Wait(); err != nil {
		t.Errorf("the demonstration ended with %v", err)
	}
}

func build(t *testing.T, dir, output, pkg string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", output, pkg)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", pkg, err, out)
	}
}

// after reads lines up to the one that matches and returns what the group in the pattern holds.
func after(t *testing.T, lines *bufio.Scanner, pattern string) string {
	t.Helper()
	re := regexp.MustCompile(pattern)
	var seen []string
	for lines.Scan() {
		if m := re.FindStringSubmatch(lines.Text()); m != nil {
			return m[1]
		}
		seen = append(seen, lines.Text())
	}
	t.Fatalf("no line like %s in:\n%s", pattern, strings.Join(seen, "\n"))
	return ""
}
