package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/crypto/bcrypt"

	"edgegateway/test/e2e"
	"edgegateway/test/rig"
)

// bench is one run of all measurements.
type bench struct {
	tb      *rig.Main
	dir     string // on the disk of the repository: a memory file system would make every flush free
	program string
	made    int
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	b := &bench{tb: &rig.Main{}}
	build := filepath.Join(rig.Root(b.tb), "build")
	dir, err := makeDir(build)
	if err != nil {
		b.tb.Fatalf("folder for the measurements: %v", err)
	}
	b.dir = dir
	b.tb.Cleanup(func() { _ = os.RemoveAll(dir) }) // build/ is not kept
	b.program = e2e.Build(b.tb, dir, "edge-gateway", "-trimpath", "-ldflags", "-s -w")
	for _, part := range []struct {
		name    string
		measure func(context.Context) error
	}{{"publishes", b.publishes}, {"latency", b.latency}, {"memory", b.memory}, {"size", b.size}} {
		if len(os.Args) > 1 && !slices.Contains(os.Args[1:], part.name) {
			continue
		}
		if err := part.measure(ctx); err != nil {
			b.tb.Fatalf("bench: %s: %v", part.name, err)
		}
	}
	stop()
	b.tb.Close()
}

func makeDir(build string) (string, error) {
	if err := os.MkdirAll(build, 0o750); err != nil {
		return "", err
	}
	return os.MkdirTemp(build, "bench")
}

// figure prints one line.
func figure(name string, ours, reference float64, unit string) {
	ratio := ours / reference
	fmt.Fprintf(os.Stdout, "bench %s ratio %s (ours %s %s, reference %s %s)\n", name, short(ratio), short(ours), unit, short(reference), unit)
}

// short writes a number with three digits that count.
func short(x float64) string {
	if x >= 100 {
		return strconv.FormatFloat(x, 'f', 0, 64)
	}
	return strconv.FormatFloat(x, 'g', 3, 64)
}

// progress tells whoever waits what is going on.
func progress(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// gateway is a running gateway and the port of its broker.
type gateway struct {
	*e2e.Gateway
	mqtt string // HOST:PORT
}

const (
	user     = "bench"
	password = "not-a-secret"
)

// start starts a gateway with a broker, further devices and one uplink to NATS, and waits until it takes messages.
func (b *bench) start(devices, lanes, nats string) (*gateway, error) {
	hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
	if err != nil {
		return nil, err
	}
	b.made++
	dir := filepath.Join(b.dir, "gateway"+strconv.Itoa(b.made))
	if err := os.Mkdir(dir, 0o750); err != nil {
		return nil, err
	}
	g := &gateway{mqtt: "127.0.0.1:" + strconv.Itoa(rig.FreePort(b.tb))}
	page := "127.0.0.1:" + strconv.Itoa(rig.FreePort(b.tb))
	from := "broker"
	if devices != "" {
		from = "broker, plant"
	}
	g.Gateway = e2e.NewGateway(b.tb, b.program, dir, fmt.Sprintf(`
gateway: {id: bench, state_dir: state}
page: {listen: "%s"}
lanes: {default: {max_bytes: 4GiB%s}}
devices:
  broker: {driver: mqtt, listen: "%s", users: {%s: {password_hash: "%s", publish: ["bench/#"]}}}
%s
streams:
  main: {from: [%s], uplinks: [far]}
uplinks:
  far: {driver: nats, servers: ["nats://%s"], stream: BENCH, subject: bench.main, create: true}
`, page, lanes, g.mqtt, user, hash, devices, from, nats))
	g.Page = page
	g.Start()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		c, err := e2e.Connect(g.mqtt, "probe", user, password)
		if err == nil {
			c.Close()
			return g, nil
		}
		g.MustRun()
		if time.Now().After(end) {
			return nil, fmt.Errorf("the gateway does not come up: %w\n%s", err, e2e.Tail(g.Log(), 20))
		}
	}
}

// percentile returns the value below which the share p of all values lies. It sorts them.
func percentile(values []time.Duration, p float64) time.Duration {
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	return values[min(len(values)-1, int(p*float64(len(values))))]
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// metric reads one metric of a running gateway.
func (g *gateway) metric(name string) (float64, error) {
	metrics, err := g.Metrics()
	if err != nil {
		return 0, err
	}
	for key, v := range metrics {
		if strings.HasPrefix(key, name+"{") {
			return v, nil
		}
	}
	return 0, fmt.Errorf("there is no metric %s", name)
}
