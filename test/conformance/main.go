// Command conformance runs the suites of all uplinks and prints a line for each driver and delivery:
//
//	conformance DRIVER MODE: cases N failed F
//
// N is what the suite has (uplinktest.Run says so), F what did not pass: failed, skipped, or never come to. A mode that a driver
// promises and that has no suite counts as one case that failed.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
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

// drivers are configs that keep the most that a driver can.
var drivers = map[string]uplink.Driver{
	"kafka":  &kafka.Config{Brokers: []string{"b:9092"}, Topic: "edge"},
	"nats":   &nats.Config{Servers: []string{"n:4222"}, Subject: "edge.{gateway}.{stream}"},
	"pulsar": &pulsar.Config{Servers: []string{"p:6650"}, Topic: "edge"},
	"redis":  &redis.Config{Address: "r:6379", As: "stream", Key: "edge:{gateway}:{stream}"},
}

func main() {
	tags := os.Getenv("CONFORMANCE_TAGS")
	args := []string{"test", "-json", "-count=1", "-timeout", "3h", "-p", "1", "-tags", tags, "-run", "Suite|TestExactlyOnce$"}
	for name := range drivers {
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
	failed := r.print(os.Stdout)
	if failed > 0 || tests != nil {
		os.Exit(1)
	}
}

// event is a line of go test -json.
type event struct{ Action, Package, Test, Output string }

// results are the cases of all suites.
type results struct {
	cases  map[string]int    // by suite, DRIVER MODE
	suites map[string]string // by test, PACKAGE TEST
	passed map[string]int    // by suite
}

func newResults() *results {
	return &results{cases: map[string]int{}, suites: map[string]string{}, passed: map[string]int{}}
}

var announced = regexp.MustCompile(`conformance (\S+ \S+) has (\d+) cases`)

// read reads the output of go test -json and shows what a person has to see.
func (r *results) read(in io.Reader, show io.Writer) {
	for lines := bufio.NewScanner(in); lines.Scan(); {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			fmt.Fprintln(show, lines.Text()) // the compiler's, say
			continue
		}
		key := e.Package + " " + e.Test
		if m := announced.FindStringSubmatch(e.Output); m != nil {
			r.suites[key] = m[1]
			r.cases[m[1]], _ = strconv.Atoi(m[2]) // it is a number
		}
		parent, name := cut(e.Test)
		switch suite := r.suites[e.Package+" "+parent]; {
		case suite == "" || e.Action != "pass" && e.Action != "fail" && e.Action != "skip":
		case e.Action == "pass":
			r.passed[suite]++
		default:
			fmt.Fprintf(show, "%s: %s: %s\n", suite, e.Action, name)
		}
		if e.Action == "output" && strings.Contains(e.Output, "_test.go:") || strings.Contains(e.Output, "panic:") {
			fmt.Fprint(show, e.Output)
		}
	}
}

func cut(test string) (parent, name string) {
	i := strings.LastIndexByte(test, '/')
	return test[:max(i, 0)], test[i+1:]
}

// print prints the lines and returns how many cases did not pass.
func (r *results) print(w io.Writer) (failed int) {
	for name, driver := range drivers {
		for _, p := range uplink.Promises() {
			suite := name + " " + string(p.Delivery)
			if _, ok := r.cases[suite]; !ok && p.Order == uplink.OrderStrict && uplink.CheckPromise(driver, p) == nil {
				r.cases[suite] = 1 // promised and not tried
			}
		}
	}
	var names []string
	for suite := range r.cases {
		names = append(names, suite)
	}
	slices.Sort(names)
	for _, suite := range names {
		missing := r.cases[suite] - r.passed[suite]
		failed += missing
		fmt.Fprintf(w, "conformance %s: cases %d failed %d\n", suite, r.cases[suite], missing)
	}
	return failed
}
