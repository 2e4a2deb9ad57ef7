package e2e_test

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"edgegateway/test/e2e"
	"edgegateway/test/rig"
)

// scene is a gateway in bad circumstances, with one MQTT client that publishes numbers and keeps the answers.
type scene struct {
	t         *testing.T
	gateway   *e2e.Gateway
	dir, page string
	port      int
	number    int
	acked     []int
}

// parts of a config that a scene varies.
type parts struct {
	devices string // beside the broker, indented by two
	uplinks string // indented by two
	lanes   string
}

// newScene makes a gateway that has not started. Its folder can be read by other users.
func newScene(t *testing.T) *scene {
	t.Helper()
	s := &scene{t: t, dir: openDir(t), port: rig.FreePort(t)}
	s.page = net.JoinHostPort("127.0.0.1", strconv.Itoa(rig.FreePort(t)))
	s.gateway = e2e.NewGateway(t, program(t, ""), s.dir, "")
	s.gateway.Page, s.gateway.StopWithin = s.page, stopWithin
	return s
}

// configure writes a config whose stream goes from all devices to all uplinks.
func (s *scene) configure(p parts) {
	s.t.Helper()
	names := func(section string) string {
		var list []string
		for line := range strings.Lines(section) {
			if name, _, ok := strings.Cut(line, ":"); ok && strings.HasPrefix(line, "  ") && !strings.HasPrefix(line, "   ") {
				list = append(list, strings.TrimSpace(name))
			}
		}
		return strings.Join(list, ", ")
	}
	devices := fmt.Sprintf("  broker: {driver: mqtt, listen: \"127.0.0.1:%d\", users: {line: {password_hash: \"%s\", publish: [\"line/#\"]}}}\n%s",
		s.port, passwordHash(s.t), p.devices)
	s.gateway.SetConfig(fmt.Sprintf("gateway: {id: e2e, state_dir: %q}\npage: {listen: %q}\n%sdevices:\n%sstreams:\n  main: {from: [%s], uplinks: [%s]}\nuplinks:\n%s",
		s.state(), s.page, p.lanes, devices, names(devices), names(p.uplinks), p.uplinks))
}

func (s *scene) state() string { return filepath.Join(s.dir, "state") }

// count returns how many lines of the gateway's log hold all of the words.
func (s *scene) count(words ...string) int {
	n := 0
	for line := range strings.Lines(s.gateway.Log()) {
		if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
			n++
		}
	}
	return n
}

// await waits until cond holds.
func (s *scene) await(limit time.Duration, what string, cond func() bool) {
	s.t.Helper()
	for end := time.Now().Add(limit); ; time.Sleep(50 * time.Millisecond) {
		if cond() {
			return
		}
		s.gateway.MustRun()
		if time.Now().After(end) {
			s.t.Fatalf("after %v still not so: %s", limit, what)
		}
	}
}

// said waits for the n-th line with the words, which must stay the n-th.
func (s *scene) said(n int, words ...string) {
	s.t.Helper()
	s.await(20*time.Second, fmt.Sprintf("%d lines with %q in the log", n, words), func() bool { return s.count(words...) >= n })
	if got := s.count(words...); got != n {
		s.t.Errorf("the log has %d lines with %q, want %d", got, words, n)
	}
}

// publish sends the next number with a payload of so many bytes and reports whether the gateway promised to keep it.
func (s *scene) publish(bytes int, wait time.Duration) bool {
	s.t.Helper()
	s.gateway.MustRun()
	s.number++
	client, err := e2e.Connect(net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)), "faults", mqttUser, mqttPassword)
	if err != nil {
		return false
	}
	defer client.Close()
	payload := fmt.Sprintf(`{"c":"faults","n":%d,"pad":"%s"}`, s.number, padding(bytes))
	answer, err := client.PublishOnce("line/faults", []byte(payload), 1, wait)
	if err != nil || !answer.Stored() {
		return false
	}
	s.acked = append(s.acked, s.number)
	return true
}

// padding is text that no codec makes smaller, so that a message takes on the disk what it says.
func padding(bytes int) string {
	noise := make([]byte, bytes/2)
	_, _ = rand.Read(noise) // never fails (crypto/rand)
	return hex.EncodeToString(noise)
}

// mustTake waits until a publish is taken.
func (s *scene) mustTake(limit time.Duration) {
	s.t.Helper()
	s.await(limit, "a publish is acknowledged", func() bool { return s.publish(10, 2*time.Second) })
}

// mustRefuse wants publishes to go without a promise.
func (s *scene) mustRefuse() {
	s.t.Helper()
	for range 2 {
		if s.publish(10, 500*time.Millisecond) {
			s.t.Errorf("publish %d was acknowledged, and could not be stored", s.number)
		}
	}
}

// mustHold waits until a broker has everything that was acknowledged.
func (s *scene) mustHold(limit time.Duration, what string, read func() []entry) {
	s.t.Helper()
	for end := time.Now().Add(limit); ; time.Sleep(300 * time.Millisecond) {
		have := map[int]bool{}
		for _, x := range read() {
			var payload struct {
				Number int `json:"n"`
			}
			if x.Source == "broker" && json.Unmarshal(x.Value, &payload) == nil {
				have[payload.Number] = true
			}
		}
		missing := slices.DeleteFunc(slices.Clone(s.acked), func(n int) bool { return have[n] })
		if len(missing) == 0 {
			return
		}
		s.gateway.MustRun()
		if time.Now().After(end) {
			s.t.Fatalf("%s lacks %d of %d acknowledged messages after %v, the first is %d", what, len(missing), len(s.acked), limit, missing[0])
		}
	}
}

// pageAnswers reports whether the page is there.
func (s *scene) pageAnswers() bool {
	_, err := s.gateway.Metrics()
	return err == nil
}

// listen takes a port, as another program would. handle gets each connection and closes it.
func listen(t *testing.T, port int, handle func(net.Conn)) (release func()) {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		t.Fatalf("take the port: %v", err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := l.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				handle(conn)
			}
		}
	}()
	release = func() {
		_ = l.Close() // a second time is fine
		<-ended
	}
	t.Cleanup(release)
	return release
}

func hangUp(c net.Conn) { _ = c.Close() }
