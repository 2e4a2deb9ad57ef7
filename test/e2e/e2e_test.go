package e2e_test

import (
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"

	"edgegateway/test/e2e"
)

const (
	mqttUser     = "line"
	mqttPassword = "not-a-secret"
)

// programs are the gateways that the tests have built.
var programs struct {
	sync.Mutex
	dir string
	by  map[string]string
}

// TestMain removes the programs.
func TestMain(m *testing.M) {
	code := m.Run()
	if programs.dir != "" {
		_ = os.RemoveAll(programs.dir) // the system's temporary directory is cleaned anyway
	}
	os.Exit(code)
}

// program returns the gateway with the build tags, which is built once.
func program(t *testing.T, tags string) string {
	t.Helper()
	programs.Lock()
	defer programs.Unlock()
	if path, ok := programs.by[tags]; ok {
		return path
	}
	if programs.dir == "" {
		dir, err := os.MkdirTemp("", "e2e") //nolint:usetesting // it outlives the test that builds first
		if err == nil {
			err = os.Chmod(dir, 0o755) // another user runs the program in some tests
		}
		if err != nil {
			t.Fatalf("folder for the programs: %v", err)
		}
		programs.dir, programs.by = dir, map[string]string{}
	}
	programs.by[tags] = e2e.Build(t, programs.dir, "gateway-"+tags, append([]string{"-tags", tags}, buildFlags...)...)
	return programs.by[tags]
}

func tail(text string) string { return e2e.Tail(text, 40) }

// passwordHash is cheap to check: the clients sign in a hundred times.
func passwordHash(t *testing.T) string {
	t.Helper()
	hash, err := bcrypt.GenerateFromPassword([]byte(mqttPassword), bcrypt.MinCost)
	if err != nil {
		t.Fatalf("hash: %v", err)
	}
	return string(hash)
}

// setting returns a number from the environment, for the long form (make soak).
func setting(t *testing.T, name string, standard int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return standard
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		t.Fatalf("%s=%q is not a number", name, text)
	}
	return n
}

// perform does a whole run and returns what the oracle says of it.
func perform(t *testing.T, p plan) *verdict {
	t.Helper()
	r := start(t, p)
	began := time.Now()
	r.disturb()
	t.Logf("%d kills of the gateway and %d outages of each broker within %v", p.kills, p.outages, time.Since(began).Round(time.Second))
	r.settle()
	v := judge(r.evidence)
	t.Logf("%d records, readings %v, messages sent again by clients and stored twice with QoS 1: %d",
		r.evidence.records, v.readings, v.resent)
	if v.readings["good"] == 0 {
		v.fault("there is no good reading")
	}
	for _, l := range r.evidence.ledgers {
		if len(l.acked) == 0 {
			v.fault("nothing of %s was acknowledged", l.client)
		}
	}
	if strings.Contains(r.gateway.Log(), "DATA RACE") {
		v.fault("the race detector has found something in the gateway")
	}
	return v
}

// report writes the figure where make finds it.
func report(t *testing.T, line string) {
	t.Helper()
	t.Log(line)
	if file := os.Getenv("E2E_RESULT"); file != "" {
		if err := os.WriteFile(file, []byte(line+"\n"), 0o600); err != nil {
			t.Fatalf("E2E_RESULT: %v", err)
		}
	}
}

func TestEndToEnd(t *testing.T) {
	p := plan{
		kills: setting(t, "E2E_KILLS", 30), outages: setting(t, "E2E_OUTAGES", 3), rate: setting(t, "E2E_RATE", 60),
	}
	v := perform(t, p)
	for i, f := range v.faults {
		if i == 20 {
			t.Errorf("and %d more", len(v.faults)-i)
			break
		}
		t.Error(f)
	}
	if v.lost != 0 || v.doubled["nats"] != 0 || v.doubled["redis"] != 0 || v.acknowledged == 0 {
		t.Error("something was lost or doubled, or nothing acknowledged")
	}
	report(t, v.line(p.kills))
}

// TestEndToEndControl wants the oracle to find losses where the gateway acknowledges before the commit.
func TestEndToEndControl(t *testing.T) {
	const tries = 4
	for try := 1; ; try++ {
		p := plan{tags: "ack_before_commit", kills: setting(t, "E2E_KILLS", 6), rate: 2000, hasty: true}
		v := perform(t, p)
		if v.lost > 0 {
			report(t, v.line(p.kills))
			return
		}
		if try == tries {
			t.Fatalf("a gateway that acknowledges before the commit loses nothing in %d runs: this test cannot find losses", tries)
		}
	}
}
