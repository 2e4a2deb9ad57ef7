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
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

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
	side := flag.Int("p", 8, "suites that run side by side: most of a suite is waiting")
	flag.Parse()
	names := flag.Args()
	if len(names) == 0 {
		names = slices.Sorted(maps.Keys(drivers))
	}
	for _, name := range names {
		if drivers[name] == nil {
			fmt.Fprintf(os.Stderr, "conformance: no driver %s (want some of %s)\n", name, slices.Sorted(maps.Keys(drivers)))
			os.Exit(2)
		}
	}
	r := newResults()
	err := r.run(names, *side)
	if err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
	}
	if failed := r.print(os.Stdout, names); failed > 0 || err != nil {
		os.Exit(1)
	}
}

// run builds the tests of the drivers and runs each suite in a process of its own.
func (r *results) run(names []string, side int) error {
	dir, err := os.MkdirTemp("", "conformance")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }() // it is in a place for such
	room := make(chan struct{}, max(1, side))
	var running sync.WaitGroup
	defer running.Wait()
	var mu sync.Mutex
	var failed error
	for _, name := range names {
		binary := filepath.Join(dir, name+".test")
		build := exec.Command("go", "test", "-c", "-o", binary, "./uplink/"+name)
		build.Stdout, build.Stderr = os.Stderr, os.Stderr
		if err := build.Run(); err != nil {
			return fmt.Errorf("build the tests of %s: %w", name, err)
		}
		list, err := exec.Command(binary, "-test.list", "^TestSuite").Output()
		if err != nil {
			return fmt.Errorf("list the suites of %s: %w", name, err)
		}
		for test := range strings.FieldsSeq(string(list)) {
			room <- struct{}{}
			running.Go(func() {
				err := r.suite(name, binary, test)
				<-room
				mu.Lock()
				defer mu.Unlock()
				failed = errors.Join(failed, err)
			})
		}
	}
	running.Wait()
	return failed
}

// suite runs one suite. The error says that it has failed, in one of its cases or as a whole.
func (r *results) suite(name, binary, test string) error {
	cmd := exec.Command("go", "tool", "test2json", "-p", name, binary, "-test.v=test2json", "-test.timeout=3h", "-test.run=^"+test+"$")
	cmd.Dir, cmd.Stderr = filepath.Join("uplink", name), os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return fmt.Errorf("%s of %s: %w", test, name, err)
	}
	r.read(out, os.Stderr)
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("%s of %s: %w", test, name, err)
	}
	return nil
}

// event is a line of go test -json.
type event struct{ Action, Package, Test, Output string }

// mostSaid is how many bytes are shown of what a test has said, its last ones.
const mostSaid = 64 << 10

// results are the cases of all suites.
type results struct {
	mu     sync.Mutex        // guards the fields below while suites run
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
			fmt.Fprintln(show, lines.Text()) // the library's of a broker, say
			continue
		}
		r.event(e, show)
	}
	if err := lines.Err(); err != nil {
		fmt.Fprintln(show, "conformance:", err)
	}
}

func (r *results) event(e event, show io.Writer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := e.Package + " " + e.Test
	switch e.Action {
	case "output":
		if m := announced.FindStringSubmatch(e.Output); m != nil {
			r.suites[key] = m[1]
			r.cases[m[1]], _ = strconv.Atoi(m[2]) // it is a number
		}
		said := r.said[key] + e.Output
		r.said[key] = said[max(0, len(said)-mostSaid):]
		if strings.Contains(e.Output, "panic:") {
			fmt.Fprint(show, e.Output)
		}
	case "pass", "fail", "skip":
		r.ended(e, key, show)
	default:
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
