package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"edgegateway/control"
	"edgegateway/pipeline"
	"edgegateway/test/rig"
	"edgegateway/uplink"
	"edgegateway/wal"
)

// site is a gateway that runs by a config file, for the commands of an operator.
type site struct {
	t    *testing.T
	dir  string
	file string
	g    *gateway
	stop func()
	logs syncBuffer

	prepare func(*gateway) // before it runs; may be nil
}

// newSite writes a config file; what stands behind its devices is given.
func newSite(t *testing.T, rest string) *site {
	t.Helper()
	dir, err := os.MkdirTemp("", "gw") //nolint:usetesting // a short path, as a socket wants it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s := &site{t: t, dir: dir, file: filepath.Join(dir, "gateway.yaml")}
	s.write(rest)
	return s
}

func (s *site) write(rest string) {
	s.t.Helper()
	text := "gateway: {id: gw1, state_dir: " + s.dir + "}\npage: {listen: 127.0.0.1:0}\n" +
		"devices:\n  broker: {driver: mqtt, listen: 127.0.0.1:0, anonymous: {publish: [\"#\"]}}\n" + rest
	if err := os.WriteFile(s.file, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// start runs the gateway until stop, or the end of the test.
func (s *site) start() {
	s.t.Helper()
	c, err := loadConfig(s.file)
	if err != nil {
		s.t.Fatal(err)
	}
	if s.g, err = newGateway(c, slog.New(slog.NewTextHandler(&s.logs, nil))); err != nil {
		s.t.Fatal(err)
	}
	s.g.secrets.period = 50 * time.Millisecond
	if s.prepare != nil {
		s.prepare(s.g)
	}
	ctx, cancel := context.WithCancel(s.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.g.run(ctx) }()
	s.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			s.t.Errorf("run: %v", err)
		}
	})
	s.t.Cleanup(func() {
		s.stop()
		if s.t.Failed() {
			s.t.Logf("the gateway said:\n%s", s.logs.String())
		}
	})
	eventually(s.t, "the gateway takes commands", func() bool {
		var list letterList
		return s.g.ready() == nil && askGateway(s.t.Context(), s.dir, "GET", "/v1/deadletters", nil, &list) == nil
	})
}

// put stores a message of the device and returns when it is durable.
func (s *site) put(topic, value string) {
	s.t.Helper()
	stored := make(chan error, 1)
	m := pipeline.Message{Time: time.Now(), Source: "broker", Topic: topic, Value: pipeline.String(value)}
	err := s.g.pipeline.Source("broker").Put(s.t.Context(), pipeline.Batch{Messages: []pipeline.Message{m}, Urgent: true}, func(err error) { stored <- err })
	if err == nil {
		err = <-stored
	}
	if err != nil {
		s.t.Fatalf("put: %v", err)
	}
}

// call runs a command and wants an exit code.
func (s *site) call(want int, args ...string) string {
	s.t.Helper()
	var out bytes.Buffer
	words := append(slices.Clone(args), "-c", s.file)
	if code := command(s.t.Context(), words, nil, &out, &out); code != want {
		s.t.Errorf("%s: exit code %d, want %d\n%s", strings.Join(args, " "), code, want, out.String())
	}
	return out.String()
}

// letters returns the names of the dead letters, as the command lists them.
func (s *site) letters(args ...string) []string {
	s.t.Helper()
	var list letterList
	text := s.call(exitOK, append([]string{"deadletters", "list", "-json"}, args...)...)
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		s.t.Fatalf("%v\n%s", err, text)
	}
	names := []string{}
	for _, d := range list.Letters {
		names = append(names, d.ID)
	}
	return names
}

// lettersBecome waits for the dead letters to be those.
func (s *site) lettersBecome(want ...string) {
	s.t.Helper()
	var got []string
	for range 600 {
		if got = s.letters(); slices.Equal(got, want) {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	s.t.Fatalf("dead letters %v, want %v\n%s", got, want, s.logs.String())
}

// arrived is what came at the far side, in order.
type arrived struct {
	ID      string            `json:"id"`
	Topic   string            `json:"topic"`
	Headers []pipeline.Header `json:"headers"`
}

// natsMessages returns what the stream holds.
func natsMessages(t *testing.T, addr string, signIn ...nats.Option) (list []arrived) {
	t.Helper()
	nc, err := nats.Connect("nats://"+addr, signIn...)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), "EDGE")
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	info, err := stream.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for n := info.State.FirstSeq; n <= info.State.LastSeq && info.State.Msgs > 0; n++ {
		m, err := stream.GetMsg(t.Context(), n)
		if err != nil {
			continue // the cursor's last place
		}
		var a arrived
		if err := json.Unmarshal(m.Data, &a); err != nil || a.ID == "" {
			continue // the cursor
		}
		list = append(list, a)
	}
	return list
}

func topics(list []arrived) (topics []string) {
	for _, a := range list {
		topics = append(topics, a.Topic)
	}
	return topics
}

func copyDir(t *testing.T, from string) string {
	t.Helper()
	to := t.TempDir()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	return to
}

// atRest returns how many dead letters a copy of the log has, and records of a stream.
func atRest(t *testing.T, dir, stream string) (letters int, records uint64) {
	t.Helper()
	l, err := wal.Open(dir, wal.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}()
	st := l.Stats()
	for _, s := range st.Streams {
		if s.Name == stream {
			records = s.Records
		}
	}
	return st.DeadLetters, records
}

func TestARefusedRecordIsSentAgainOnce(t *testing.T) {
	for _, delivery := range []string{"at_least_once", "effectively_once", "exactly_once"} {
		t.Run(delivery, func(t *testing.T) {
			server := rig.NATS(t, rig.NATSOptions{Settings: "max_payload: 16384"})
			s := newSite(t, fmt.Sprintf("streams:\n  main: {from: [broker], uplinks: [far], delivery: %s}\n"+
				"uplinks:\n  far: {driver: nats, servers: [%q], stream: EDGE, create: true}\n", delivery, server.Addr))
			s.start()
			big := strings.Repeat("x", 20<<10)
			s.put("a", "1")
			s.put("b", big)
			s.put("c", "3")
			s.lettersBecome("far/main/2")
			eventually(t, "the others arrive", func() bool { return len(natsMessages(t, server.Addr)) == 2 })

			if text := s.call(exitOK, "deadletters", "list", "far"); !regexp.MustCompile(`far/main/2 .* nats +1 +205\d\d .*max_payload`).MatchString(text) ||
				!strings.Contains(text, "1 dead letter\n") {
				t.Errorf("list says:\n%s", text)
			}
			if text := s.call(exitOK, "deadletters", "show", "far/main/2"); !strings.Contains(text, big) || !strings.Contains(text, `"topic":"b"`) ||
				!strings.Contains(text, `"id":"gw1/main/`) {
				t.Errorf("show says:\n%.600s", text)
			}
			s.call(exitOther, "deadletters", "show", "far/main/3")
			s.call(exitOther, "deadletters", "resend", "far/main/2", "far/main/7")
			s.call(exitOther, "deadletters", "resend")
			for _, args := range [][]string{{"list", "near"}, {"list", "far", "mian"}, {"purge", "-all", "near"}, {"resend", "-all", "far", "mian"}} {
				if text := s.call(exitOther, append([]string{"deadletters"}, args...)...); !strings.Contains(text, "(there is ") {
					t.Errorf("%v says %s, want what there is", args, text)
				}
			}

			// Refused again: a dead letter of the stream that sends again, and so the second time too.
			lane := s.g.lane(defaultLane)
			before := copyDir(t, lane.dir)
			s.call(exitOK, "deadletters", "resend", "far/main/2")
			s.lettersBecome("far/main!far/1")
			s.call(exitOK, "deadletters", "resend", "-all", "far", "main")
			s.lettersBecome("far/main!far/2")
			if letters, records := atRest(t, before, "main!far"); letters != 1 || records != 0 {
				t.Errorf("before the resend: %d dead letters, %d records to send again; want 1, 0", letters, records)
			}

			server.Stop()
			if delivery == "exactly_once" { // after a restart it is not known whether the far cursor has passed it
				s.stop()
				s.start()
				for _, verb := range []string{"resend", "purge"} {
					if text := s.call(exitOther, "deadletters", verb, "far/main!far/2"); !strings.Contains(text, "has not been connected") {
						t.Errorf("%s while the far cursor is not known: %s", verb, text)
					}
				}
				if text := s.call(exitOther, "deadletters", "purge", "-all"); !strings.Contains(text, "0 purged") || !strings.Contains(text, "far/main!far/2 stays") {
					t.Errorf("purge of all while the far cursor is not known: %s", text)
				}
			}
			server.SetSettings("")
			server.Start()
			eventually(t, "it is connected again", func() bool { return s.g.again[0].runs().Status().State == uplink.Sending })
			s.call(exitOK, "deadletters", "resend", "far/main!far/2")
			after := copyDir(t, lane.dir)
			s.lettersBecome()
			if letters, records := atRest(t, after, "main!far"); letters != 0 || records != 3 {
				t.Errorf("after the resend: %d dead letters, %d records to send again; want 0, 3", letters, records)
			}
			var got []arrived
			eventually(t, "it arrives", func() bool { got = natsMessages(t, server.Addr); return len(got) >= 3 })
			s.put("d", "4")
			eventually(t, "the next one arrives", func() bool { got = natsMessages(t, server.Addr); return len(got) >= 4 })
			if want := []string{"a", "c", "b", "d"}; !slices.Equal(topics(got), want) {
				t.Fatalf("arrived %v, want %v", topics(got), want)
			}
			epoch := strings.Split(got[0].ID, "/")[2]
			if b := got[2]; b.ID != "gw1/main!far/"+epoch+"/3" ||
				!slices.Equal(b.Headers, []pipeline.Header{{Name: "resent-of", Value: "gw1/main/" + epoch + "/2"}}) {
				t.Errorf("it came as %s with the headers %v", b.ID, b.Headers)
			}
			if text := fmt.Sprint(s.g.gather().Uplinks); !strings.Contains(text, "main!far") {
				t.Errorf("the status does not show what sends again: %s", text)
			}

			// A restart sends nothing again, and needs no second connection.
			s.stop()
			s.start()
			s.put("e", "5")
			eventually(t, "the last one arrives", func() bool { got = natsMessages(t, server.Addr); return len(got) >= 5 })
			if want := []string{"a", "c", "b", "d", "e"}; !slices.Equal(topics(got), want) {
				t.Errorf("after a restart %v, want %v", topics(got), want)
			}
			if s.g.again[0].runs() != nil {
				t.Error("what sends again runs, with nothing to do")
			}
		})
	}
}

func TestWhatIsSentAgainGoesOnAfterARestart(t *testing.T) {
	server := rig.NATS(t, rig.NATSOptions{Settings: "max_payload: 16384"})
	s := newSite(t, fmt.Sprintf("streams:\n  main: {from: [broker], uplinks: [far]}\n"+
		"uplinks:\n  far: {driver: nats, servers: [%q], stream: EDGE, create: true}\n", server.Addr))
	s.start()
	for _, topic := range []string{"a", "b", "c"} {
		s.put(topic, strings.Repeat("x", 20<<10))
	}
	s.lettersBecome("far/main/1", "far/main/2", "far/main/3")
	server.Stop()
	if text := s.call(exitOK, "deadletters", "resend", "-all"); !strings.Contains(text, "3 given") {
		t.Errorf("resend says %s", text)
	}
	s.stop()
	server.SetSettings("")
	server.Start()
	s.start()
	eventually(t, "they arrive", func() bool { return len(natsMessages(t, server.Addr)) >= 3 })
	if got := topics(natsMessages(t, server.Addr)); !slices.Equal(got, []string{"a", "b", "c"}) || len(s.letters()) != 0 {
		t.Errorf("arrived %v, dead letters %v", got, s.letters())
	}
}

// TestAResendThatTheDiskRefusesLosesNothing: the letter goes and the record comes in one commit, or neither.
func TestAResendThatTheDiskRefusesLosesNothing(t *testing.T) {
	server := rig.NATS(t, rig.NATSOptions{Settings: "max_payload: 16384"})
	s := newSite(t, fmt.Sprintf("streams:\n  main: {from: [broker], uplinks: [far]}\n"+
		"uplinks:\n  far: {driver: nats, servers: [%q], stream: EDGE, create: true}\n", server.Addr))
	var broken atomic.Bool
	s.prepare = func(g *gateway) {
		g.lane(defaultLane).fault = func(op string) error {
			if broken.Load() {
				return &os.PathError{Op: op, Path: "0001.seg", Err: syscall.EIO}
			}
			return nil
		}
	}
	s.start()
	s.put("a", strings.Repeat("x", 20<<10))
	s.lettersBecome("far/main/1")
	server.Stop()
	s.call(exitOther, "deadletters", "purge", "-all", "near")
	// The uplink of the letters is started, and its cursor made, while the disk is well.
	if err := s.g.start(s.g.lane(defaultLane).running, s.g.again[0]); err != nil {
		t.Fatal(err)
	}
	broken.Store(true)
	if text := s.call(exitOther, "deadletters", "resend", "-all"); !strings.Contains(text, "input/output error") || !strings.Contains(text, "0 given") {
		t.Errorf("resend on a broken disk says %s", text)
	}
	broken.Store(false)
	eventually(t, "the lane is open again", func() bool { return s.g.ready() == nil })
	s.lettersBecome("far/main/1")
	server.SetSettings("")
	server.Start()
	s.call(exitOK, "deadletters", "resend", "-all")
	s.lettersBecome()
	eventually(t, "it arrives", func() bool { return len(natsMessages(t, server.Addr)) >= 1 })
	if got := natsMessages(t, server.Addr); len(got) != 1 || !strings.HasSuffix(got[0].ID, "/1") || !strings.HasPrefix(got[0].ID, "gw1/main!far/") {
		t.Errorf("arrived %v", got)
	}
}

func TestDeadLettersArePurgedAndCanBeReadWithoutTheGateway(t *testing.T) {
	server := rig.NATS(t, rig.NATSOptions{Settings: "max_payload: 16384"})
	s := newSite(t, fmt.Sprintf("streams:\n  main: {from: [broker], uplinks: [far]}\n  two: {from: [broker], uplinks: [far]}\n"+
		"uplinks:\n  far: {driver: nats, servers: [%q], stream: EDGE, create: true}\n", server.Addr))
	s.start()
	for range 3 {
		s.put("a", strings.Repeat("x", 20<<10))
	}
	eventually(t, "all are refused", func() bool { return len(s.letters()) == 6 })
	if text := s.call(exitOK, "deadletters", "purge", "far/main/2"); text != "1 purged\n" {
		t.Errorf("purge says %q", text)
	}
	if text := s.call(exitOK, "deadletters", "purge", "-all", "-before", "1h"); text != "0 purged\n" {
		t.Errorf("purge of older ones says %q", text)
	}
	s.call(exitOther, "deadletters", "purge", "-before", "1h", "far/main/1")
	s.call(exitOther, "deadletters", "purge", "-all", "-before", "noon")
	s.call(exitOther, "deadletters", "purge", "far/main/2")
	if text := s.call(exitOK, "deadletters", "purge", "-all", "far", "two"); text != "3 purged\n" {
		t.Errorf("purge says %q", text)
	}
	s.lettersBecome("far/main/1", "far/main/3")
	s.stop()
	if got := s.letters("far"); !slices.Equal(got, []string{"far/main/1", "far/main/3"}) {
		t.Errorf("without the gateway: %v", got)
	}
	if text := s.call(exitOK, "deadletters", "show", "far/main/3"); !strings.Contains(text, `"id":"gw1/main/`) {
		t.Errorf("without the gateway: %.400s", text)
	}
	for _, args := range []string{"deadletters resend far/main/1", "deadletters purge -all", "pause far", "resume far", "release -yes near"} {
		if text := s.call(exitOther, strings.Fields(args)...); !strings.Contains(text, "the gateway does not run") || !strings.Contains(text, "start it") {
			t.Errorf("%s says %s", args, text)
		}
	}
}

func TestAPausedUplinkHoldsItsRecordsOverARestart(t *testing.T) {
	server := rig.NATS(t, rig.NATSOptions{Settings: "max_payload: 16384"})
	uplinks := fmt.Sprintf("uplinks:\n  far: {driver: nats, servers: [%q], stream: EDGE, create: true}\n  near: {driver: nats, servers: [%q], stream: EDGE, create: true, subject: \"near.{stream}\"}\n",
		server.Addr, rig.NATS(t, rig.NATSOptions{}).Addr)
	s := newSite(t, "streams:\n  main: {from: [broker], uplinks: [far, near]}\n"+uplinks)
	s.start()
	s.put("a", "1")
	s.put("big", strings.Repeat("x", 20<<10))
	s.lettersBecome("far/main/2")
	eventually(t, "the first one arrives", func() bool { return len(natsMessages(t, server.Addr)) == 1 })
	if text := s.call(exitOther, "pause", "nobody"); !strings.Contains(text, "there is far, near") {
		t.Errorf("pause of an unknown uplink: %s", text)
	}
	s.call(exitOK, "pause", "far")
	s.call(exitOK, "pause", "far")
	paused := func() bool {
		u := s.g.gather().Uplinks
		return u[0].Name == "far" && u[0].State == control.Paused && u[len(u)-1].Name == "near" && u[len(u)-1].State == control.Sending
	}
	eventually(t, "it is paused", paused)
	s.put("b", "2")
	s.call(exitOK, "deadletters", "resend", "-all")
	eventually(t, "the other one goes on", func() bool { u := s.g.gather().Uplinks; return u[len(u)-1].Backlog.Records == 0 })
	s.stop()
	server.Stop()
	server.SetSettings("")
	server.Start()
	s.start()
	eventually(t, "it is paused after a restart", paused)
	s.put("c", "3")
	eventually(t, "the other one goes on", func() bool { u := s.g.gather().Uplinks; return u[len(u)-1].Backlog.Records == 0 })
	eventually(t, "the page tells", func() bool {
		return strings.Contains(fmt.Sprint(s.g.monitor.Status().Problems), "Paused by an operator") &&
			strings.Contains(fmt.Sprint(s.g.monitor.Status().Problems), "edge-gateway resume far")
	})
	if got := topics(natsMessages(t, server.Addr)); !slices.Equal(got, []string{"a"}) {
		t.Errorf("arrived while paused: %v", got)
	}
	s.call(exitOK, "resume", "far")
	s.call(exitOK, "resume", "far")
	var got []string
	eventually(t, "all arrives", func() bool { got = topics(natsMessages(t, server.Addr)); return len(got) >= 4 })
	if slices.Sort(got); !slices.Equal(got, []string{"a", "b", "big", "c"}) {
		t.Errorf("arrived %v", got)
	}
	s.stop()
	s.start()
	if eventually(t, "it sends", func() bool { return s.g.gather().Uplinks[0].State == control.Sending }); len(s.g.pauses.names) != 0 {
		t.Errorf("still paused: %v", s.g.pauses.names)
	}
}

func TestARemovedUplinkIsSeenAndReleased(t *testing.T) {
	uplinks := "uplinks:\n  far: {driver: redis, address: 127.0.0.1:1}\n  near: {driver: redis, address: 127.0.0.1:1}\n"
	s := newSite(t, "streams:\n  main: {from: [broker], uplinks: [far, near]}\n"+uplinks)
	s.start()
	for range 7 {
		s.put("a", "1")
	}
	if text := s.call(exitOther, "release", "-yes", "near"); !strings.Contains(text, "still in the config") {
		t.Errorf("release of an uplink that is in use: %s", text)
	}
	s.stop()
	s.write("streams:\n  main: {from: [broker], uplinks: [far]}\n" + uplinks)
	s.start()
	if status := s.g.gather(); len(status.Removed) != 1 || status.Removed[0].Uplink != "near" || status.Removed[0].Backlog.Records != 7 {
		t.Errorf("removed: %+v", status.Removed)
	}
	eventually(t, "the page tells", func() bool {
		return strings.Contains(fmt.Sprint(s.g.monitor.Status().Problems), "7 records") &&
			strings.Contains(fmt.Sprint(s.g.monitor.Status().Problems), "edge-gateway release near main")
	})
	if text := s.call(exitOther, "release", "near"); !strings.Contains(text, "stream main: 7 records") || !strings.Contains(text, "say -yes") {
		t.Errorf("release without -yes: %s", text)
	}
	s.call(exitOther, "release", "-yes", "near", "other")
	if text := s.call(exitOK, "release", "-yes", "near"); !strings.Contains(text, "7 records") || !strings.Contains(text, "given up") {
		t.Errorf("release: %s", text)
	}
	s.call(exitOther, "release", "-yes", "near")
	if status := s.g.gather(); len(status.Removed) != 0 || status.Uplinks[0].Backlog.Records != 7 {
		t.Errorf("removed: %+v, uplinks %+v", status.Removed, status.Uplinks)
	}
}

func TestTheControlSocket(t *testing.T) {
	s := newSite(t, "streams:\n  main: {from: [broker], uplinks: [far]}\nuplinks:\n  far: {driver: redis, address: 127.0.0.1:1}\n")
	path := filepath.Join(s.dir, socketName)
	left, err := listenSocket(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := listenSocket(t.Context(), path); err == nil || !strings.Contains(err.Error(), "another gateway") {
		t.Errorf("a socket in use was taken: %v", err)
	}
	// As kill -9 leaves it: the file is there and nobody listens.
	file, err := left.(interface{ File() (*os.File, error) }).File()
	if err != nil {
		t.Fatal(err)
	}
	left.(interface{ SetUnlinkOnClose(bool) }).SetUnlinkOnClose(false)
	for _, c := range []interface{ Close() error }{left, file} {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if text := s.call(exitOther, "pause", "far"); !strings.Contains(text, "the gateway does not run") {
		t.Errorf("with a socket that was left: %s", text)
	}
	s.start()
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("the socket has mode %v, %v", info.Mode(), err)
	}
	for _, test := range []struct{ method, path, body, want string }{
		{"GET", "/v1/nothing", "null", "does not know this command"},
		{"POST", "/v1/deadletters/purge", `{"everything": true}`, "cannot be read"},
		{"POST", "/v1/deadletters/purge", `{"ids": ["` + strings.Repeat("x", socketRequest) + `"]}`, "cannot be read"},
		{"POST", "/v1/uplinks/none/pause", "null", "there is no uplink"},
		{"POST", "/v1/uplinks/far/choose", `{"stream":"main","choice":"maybe"}`, "unknown choice"},
	} {
		err := askGateway(t.Context(), s.dir, test.method, test.path, json.RawMessage(test.body), &done{})
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s %s: %v, want %q", test.method, test.path, err, test.want)
		}
	}
	// Mistakes that somebody makes in the file meanwhile do not keep commands away.
	s.write("streams: nonsense\n")
	s.call(exitOK, "deadletters", "list")
	s.stop()
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the socket is still there: %v", err)
	}
}

func TestAChoiceTakesEffectAtOnceWhereTheGatewayRuns(t *testing.T) {
	server := rig.NATS(t, rig.NATSOptions{})
	s := newSite(t, fmt.Sprintf("streams:\n  main: {from: [broker], uplinks: [far], delivery: exactly_once}\n"+
		"uplinks:\n  far: {driver: nats, servers: [%q], stream: EDGE, create: true}\n", server.Addr))
	s.start()
	s.put("a", "1")
	eventually(t, "it arrives", func() bool { return len(natsMessages(t, server.Addr)) == 1 })
	s.stop()
	old := copyDir(t, filepath.Join(s.dir, "lanes"))
	s.start()
	s.put("b", "2")
	eventually(t, "it arrives", func() bool { return len(natsMessages(t, server.Addr)) == 2 })
	s.stop()
	// An old copy of the disk is put back.
	if err := os.RemoveAll(filepath.Join(s.dir, "lanes")); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(filepath.Join(s.dir, "lanes"), os.DirFS(old)); err != nil {
		t.Fatal(err)
	}
	s.start()
	eventually(t, "the far cursor does not fit", func() bool {
		return strings.Contains(s.g.gather().Uplinks[0].Error, "an old copy of the gateway's disk")
	})
	eventually(t, "the picture has it", func() bool {
		return slices.ContainsFunc(s.g.monitor.Status().Problems, func(p control.Problem) bool { return p.Severity == control.Error })
	})
	if text := s.call(exitOther, "status"); !strings.Contains(text, "an old copy of the gateway's disk") || !strings.Contains(text, "error: uplink far: ") {
		t.Errorf("status says:\n%s", text)
	}
	var info statusInfo
	if text := s.call(exitOK, "status", "-json"); json.Unmarshal([]byte(text), &info) != nil || len(info.Uplinks) != 1 || info.Uplinks[0].Uplink != "far" ||
		info.Uplinks[0].State == "sending" || !slices.Equal(info.Uplinks[0].Choices, []string{"restart", "resume"}) || len(info.Problems) == 0 {
		t.Errorf("status -json says:\n%s", text)
	}
	next := s.g.gather().Uplinks[0].NextTry
	s.call(exitOther, "choose", "far", "other", "restart")
	s.call(exitOK, "choose", "far", "main", "restart")
	eventually(t, "the choice is followed", func() bool { return s.g.gather().Uplinks[0].State == control.Sending })
	if since := s.g.gather().Uplinks[0].Since; !since.Before(next) {
		t.Errorf("it was followed at %v, and no earlier than the next try at %v", since, next)
	}
	s.put("c", "3")
	eventually(t, "records flow", func() bool { return len(natsMessages(t, server.Addr)) == 3 })
	if text := s.call(exitOther, "choose", "far", "main", "restart"); !strings.Contains(text, "does not ask for a choice") {
		t.Errorf("a choice where there is nothing to choose: %s", text)
	}
}

func TestProbeTellsByItsExitCode(t *testing.T) {
	server := rig.NATS(t, rig.NATSOptions{})
	s := newSite(t, fmt.Sprintf("streams:\n  one: {from: [\"broker:a\"], uplinks: [far], delivery: exactly_once}\n  two: {from: [\"broker:a\"], uplinks: [far, near], delivery: exactly_once}\n"+
		"uplinks:\n  far: {driver: nats, servers: [%q], stream: EDGE, create: true}\n  near: {driver: redis, address: 127.0.0.1:1}\n  idle: {driver: redis, address: 127.0.0.1:1}\n", server.Addr))
	if text := s.call(exitOK, "probe", "far", "-stream", "one"); !strings.Contains(text, "ok   connect to "+server.Addr+": NATS server") ||
		!strings.Contains(text, "the uplink makes EDGE") || strings.Contains(text, "FAIL") {
		t.Errorf("probe without the gateway:\n%s", text)
	}
	s.start()
	s.put("a", "1")
	eventually(t, "both streams arrive", func() bool { return len(natsMessages(t, server.Addr)) == 2 })
	for range 3 {
		if text := s.call(exitOK, "probe", "far"); strings.Count(text, "ok   keep delivery") != 2 || !strings.Contains(text, "stream one\n") {
			t.Errorf("probe beside the gateway:\n%s", text)
		}
	}
	s.put("a", "2")
	eventually(t, "records flow on", func() bool { return len(natsMessages(t, server.Addr)) == 4 })
	if strings.Contains(s.logs.String(), "another gateway") || strings.Contains(s.logs.String(), "uplink failed, will retry\" uplink=far") {
		t.Errorf("the probe has disturbed the uplink:\n%s", s.logs.String())
	}
	if text := s.call(exitOther, "probe", "near"); !strings.Contains(text, "FAIL connect to 127.0.0.1:1: 127.0.0.1:1 refuses the connection") {
		t.Errorf("probe of a broker that is down:\n%s", text)
	}
	s.call(exitOther, "probe", "idle")
	s.call(exitOther, "probe", "nobody")
	s.call(exitOther, "probe", "near", "-stream", "one")
	s.call(exitUsage, "probe")
	s.put("unheard", "1")
	if n := s.g.gather().Unrouted; n != 1 {
		t.Errorf("%d messages without a stream, want 1", n)
	}
}
