// Command conformance runs the suites of all uplinks, or of those that its arguments name, and prints a line for each driver and
// delivery:
//
//	conformance DRIVER MODE: cases N failed F
//
// DRIVER has the way it stores records behind it where there are several: redis-list.
// N is what the suite has (uplinktest.Run says so), F what did not pass: failed, skipped, or never come to. A mode that a driver
// promises and that has no suite counts as one case that failed. What a case that failed has said comes before these lines. It ends
// with 1 where a case has failed.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"edgegateway/uplink"
	"edgegateway/uplink/kafka"
	"edgegateway/uplink/nats"
	"edgegateway/uplink/pulsar"
	"edgegateway/uplink/redis"
)

// drivers are configs that keep the most that a driver can, by package and DRIVER.
var drivers = map[string]map[string]uplink.Driver{
	"kafka":  {"kafka": &kafka.Config{Brokers: []string{"b:9092"}, Topic: "edge"}},
	"nats":   {"nats": &nats.Config{Servers: []string{"n:4222"}, Subject: "edge.{gateway}.{stream}"}},
	"pulsar": {"pulsar": &pulsar.Config{Servers: []string{"p:6650"}, Topic: "edge-{gateway}-{stream}"}},
	"redis": {
		"redis":        &redis.Config{Address: "r:6379", As: "stream", Key: "edge:{gateway}:{stream}"},
		"redis-list":   &redis.Config{Address: "r:6379", As: "list", Key: "edge:{gateway}:{stream}"},
		"redis-latest": &redis.Config{Address: "r:6379", As: "latest", Key: "edge:{gateway}:{topic}"},
	},
}

func main() {
	names := os.Args[1:]
	if len(names) == 0 {
		names = slices.Sorted(maps.Keys(drivers))
	}
	// Most of a suite is waiting, so all run at the same time, however few processors there are.
	args := []string{"test", "-json", "-count=1", "-timeout", "3h", "-p", strconv.Itoa(len(names)), "-parallel", "8", "-run", "TestSuite"}
	for _, name := range names {
		if drivers[name] == nil {
			fmt.Fprintf(os.Stderr, "conformance: no driver %s (want some of %s)\n", name, slices.Sorted(maps.Keys(drivers)))
			os.Exit(2)
		}
		args = append(args, "./uplink/"+name)
	}
	cmd := exec.Command("go", args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
	r := newResults()
	r.read(out, os.Stderr)
	tests := cmd.Wait() // with 1 where a test failed, and that is counted
	failed := r.print(os.Stdout, names)
	if failed > 0 || tests != nil {
		os.Exit(1)
	}
}

// event is a line of go test -json.
type event struct{ Action, Package, Test, Output string }

// mostSaid is how many bytes are shown of what a test has said, its last ones.
const mostSaid = 64 << 10

// results are the cases of all suites.
type results struct {
	cases  map[string]int    // by suite, DRIVER MODE
	suites map[string]string // by test, PACKAGE TEST
	passed map[string]int    // by suite
	said   map[string]string // by test that runs, PACKAGE TEST
}

func newResults() *results {
	return &results{cases: map[string]int{}, suites: map[string]string{}, passed: map[string]int{}, said: map[string]string{}}
}

var announced = regexp.MustCompile(`conformance (\S+ \S.*) has (\d+) cases`)

// read reads the output of go test -json and shows what a person has to see.
func (r *results) read(in io.Reader, show io.Writer) {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			fmt.Fprintln(show, lines.Text()) // the compiler's, say
			continue
		}
		key := e.Package + " " + e.Test
		switch e.Action {
		case "output", "build-output":
			if m := announced.FindStringSubmatch(e.Output); m != nil {
				r.suites[key] = m[1]
				r.cases[m[1]], _ = strconv.Atoi(m[2]) // it is a number
			}
			said := r.said[key] + e.Output
			r.said[key] = said[max(0, len(said)-mostSaid):]
			if e.Action == "build-output" || strings.Contains(e.Output, "panic:") {
				fmt.Fprint(show, e.Output)
			}
		case "pass", "fail", "skip":
			r.ended(e, key, show)
		default:
		}
	}
	if err := lines.Err(); err != nil {
		fmt.Fprintln(show, "conformance:", err)
	}
}

// ended counts a test that has ended, and shows what it has said where it did not pass.
func (r *results) ended(e event, key string, show io.Writer) {
	parent, name := cut(e.Test)
	suite := r.suites[e.Package+" "+parent]
	switch {
	case e.Action == "pass" && suite != "":
		r.passed[suite]++
	case e.Action != "pass":
		fmt.Fprintf(show, "%s: %s %s: %s\n%s", e.Action, e.Package, suite, name, r.said[key])
	}
	delete(r.said, key)
}

func cut(test string) (parent, name string) {
	i := strings.LastIndexByte(test, '/')
	return test[:max(i, 0)], test[i+1:]
}

// print prints the lines and returns how many cases did not pass.
func (r *results) print(w io.Writer, names []string) (failed int) {
	for _, name := range names {
		for driver, config := range drivers[name] {
			for _, p := range uplink.Promises() {
				suite := driver + " " + string(p.Delivery)
				if _, ok := r.cases[suite]; !ok && p.Order == uplink.OrderStrict && uplink.CheckPromise(config, p) == nil {
					r.cases[suite] = 1 // promised and not tried
				}
			}
		}
	}
	for _, suite := range slices.Sorted(maps.Keys(r.cases)) {
		missing := r.cases[suite] - r.passed[suite]
		failed += missing
		fmt.Fprintf(w, "conformance %s: cases %d failed %d\n", suite, r.cases[suite], missing)
	}
	return failed
}
