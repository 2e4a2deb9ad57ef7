package e2e_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"edgegateway/test/e2e"
	"edgegateway/test/rig"
)

// nobody is a user without rights.
const nobody = 65534

// openDir returns a folder that every user can reach.
func openDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "e2e") //nolint:usetesting // the folder above a test's own is closed to other users
	if err == nil {
		err = os.Chmod(dir, 0o755) // see above
	}
	if err != nil {
		t.Fatalf("folder: %v", err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) }) // the system's temporary directory is cleaned anyway
	return dir
}

// toRedis is a single uplink, and what reads it back.
func toRedis(t *testing.T, server *rig.Server) (uplinks string, read func() []entry) {
	return fmt.Sprintf("  far: {driver: redis, address: %q, key: %q}\n", server.Addr, redisKey),
		func() []entry { return readRedis(t, server.Addr, redisKey) }
}

func TestPortsTakenByAnotherProgram(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	far := rig.Redis(t)
	uplinks, read := toRedis(t, far)
	s.configure(parts{uplinks: uplinks})
	_, port, _ := net.SplitHostPort(s.page)
	pagePort, _ := strconv.Atoi(port) // made from a number
	freePage, freeBroker := listen(t, pagePort, hangUp), listen(t, s.port, hangUp)
	for n := 1; n <= 2; n++ {
		s.gateway.Start()
		s.said(n, "level=ERROR", `msg="page is not served, will try again"`, "address already in use")
		s.said(n, "level=ERROR", `msg="device does not run, will try again"`, "device=broker", "address already in use")
		s.mustRefuse()
		time.Sleep(2 * time.Second) // at least one more try, of which there must be no line
		s.said(n, "page is not served")
		s.said(n, "device does not run")
		if n == 1 {
			s.gateway.Stop()
		}
	}
	freeBroker()
	s.mustTake(20 * time.Second)
	freePage()
	s.await(20*time.Second, "the page is served", s.pageAnswers)
	s.mustHold(10*time.Second, "redis", read)
	s.gateway.Stop()
}

func TestLogDirectoryReadOnly(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	far := rig.Redis(t)
	uplinks, read := toRedis(t, far)
	s.configure(parts{uplinks: uplinks})
	lanes := filepath.Join(s.state(), "lanes")
	if err := os.MkdirAll(lanes, 0o755); err != nil { // see openDir
		t.Fatal(err)
	}
	if os.Getuid() == 0 { // to root nothing is read-only
		if err := os.Chown(s.state(), nobody, nobody); err != nil {
			t.Fatal(err)
		}
		s.gateway.Command = func(program string, args ...string) *exec.Cmd {
			cmd := exec.Command(program, args...)
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
			return cmd
		}
	}
	permit := func(mode os.FileMode) {
		if err := os.Chmod(lanes, mode); err != nil {
			t.Fatal(err)
		}
	}
	permit(0o555)
	for n := 1; n <= 2; n++ {
		s.gateway.Start()
		s.said(n, "level=ERROR", `msg="lane cannot be opened, nothing is stored in it"`, "permission denied")
		s.await(20*time.Second, "the page is served", s.pageAnswers)
		s.mustRefuse()
		s.said(n, "lane cannot be opened")
		if n == 1 {
			s.gateway.Stop()
		}
	}
	permit(0o777)
	s.mustTake(30 * time.Second)
	s.said(1, `msg="lane opened"`)
	s.mustHold(10*time.Second, "redis", read)
	s.gateway.Stop()
}

// smallDisk mounts a tmpfs at dir, in a mount namespace of its own that lives as long as the test, and returns what starts
// a program there and the way there from outside.
func smallDisk(t *testing.T, dir, size string) (command func(string, ...string) *exec.Cmd, outside string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil { // see openDir
		t.Fatal(err)
	}
	kinds := []string{"-m"}
	if os.Getuid() != 0 {
		kinds = []string{"-U", "-m"}
	}
	args := append([]string{}, kinds...)
	if len(kinds) > 1 {
		args = append(args, "--map-root-user")
	}
	args = append(args, "sh", "-c", `mount -t tmpfs -o "size=$2" tmpfs "$1" && touch "$1/mounted" && exec sleep 100000`, "sh", dir, size)
	holder := startProcess(t, "namespace", "unshare", args...)
	pid := strconv.Itoa(holder.cmd.Process.Pid)
	outside = filepath.Join("/proc", pid, "root", dir)
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if _, err := os.Stat(filepath.Join(outside, "mounted")); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal("tmpfs is not mounted")
		}
	}
	return func(program string, args ...string) *exec.Cmd {
		enter := append([]string{"-t", pid}, kinds...)
		return exec.Command("nsenter", append(append(enter, program), args...)...)
	}, outside
}

func TestDiskFull(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	far := rig.Redis(t)
	uplinks, read := toRedis(t, far)
	s.configure(parts{uplinks: uplinks})
	command, outside := smallDisk(t, s.state(), "56m")
	s.gateway.Command = command
	ballast := filepath.Join(outside, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 57<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("fill the disk: %v (want ENOSPC)", err)
	}

	// Full at the start: there is no room for a log.
	for n := 1; n <= 2; n++ {
		s.gateway.Start()
		s.said(n, "level=ERROR", `msg="lane cannot be opened, nothing is stored in it"`, "no space left on device")
		s.mustRefuse()
		s.said(n, "lane cannot be opened")
		if n == 1 {
			s.gateway.Stop()
		}
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	s.mustTake(30 * time.Second)
	s.mustHold(10*time.Second, "redis", read)

	// Full while it runs: the far broker is down, and the log takes all the room there is.
	far.Stop()
	before := len(s.acked)
	for s.publish(200<<10, 3*time.Second) {
		if len(s.acked) > before+2000 {
			t.Fatal("the disk does not get full")
		}
	}
	t.Logf("full after %d messages of 200 KiB", len(s.acked)-before)
	s.said(1, "level=WARN", `msg="log is full"`, "no space left on device")
	s.gateway.Stop()
	s.gateway.Start()
	far.Start()
	s.mustTake(60 * time.Second)
	s.mustHold(30*time.Second, "redis", read)
	s.gateway.Stop()
}

func TestLogLockedByAnotherProcess(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	far := rig.Redis(t)
	uplinks, read := toRedis(t, far)
	s.configure(parts{uplinks: uplinks})
	s.gateway.Start()
	s.mustTake(20 * time.Second)

	second := e2e.NewGateway(t, program(t, ""), openDir(t), "")
	config, err := os.ReadFile(filepath.Join(s.dir, "gateway.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	second.SetConfig(string(config))
	second.Start()
	if code := second.Wait(20 * time.Second); code != 5 {
		t.Errorf("the second gateway ends with exit code %d, want 5", code)
	}
	if text := strings.TrimSpace(second.Log()); !strings.Contains(text, fmt.Sprint(s.gateway.PID())) {
		t.Errorf("the second gateway says %q, want the process that has the log (%d)", text, s.gateway.PID())
	}
	s.mustTake(10 * time.Second)
	s.mustHold(10*time.Second, "redis", read)
	s.gateway.Stop()
}

func TestConfigMalformed(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]string{
		"no YAML":       "gateway: {id: e2e",
		"unknown key":   "gateway: {id: e2e, colour: red}\nuplinks: {}\n",
		"unknown value": "gateway: {id: e2e}\ndevices:\n  x: {driver: teleport}\n",
		"empty":         "",
	} {
		t.Run(name, func(t *testing.T) {
			g := e2e.NewGateway(t, program(t, ""), openDir(t), config)
			g.Start()
			if code := g.Wait(20 * time.Second); code != 6 {
				t.Errorf("exit code %d, want 6", code)
			}
			for line := range strings.Lines(g.Log()) {
				if !strings.HasPrefix(line, filepath.Join(g.Dir, "gateway.yaml")+":") {
					t.Errorf("line %q does not begin with FILE:LINE:COL", line)
				}
			}
		})
	}
}

// TestFarBrokersAndDevicesInTrouble has one gateway with every kind of trouble on both sides at once. None of it may hold
// up what works.
func TestFarBrokersAndDevicesInTrouble(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	kafka := rig.Kafka(t)
	works, down, refusing := rig.Redis(t), rig.Redis(t), rig.Redis(t, "--requirepass", "right")
	nats := rig.NATS(t, rig.NATSOptions{SyncAlways: true})
	down.Stop()
	absent, silent, garbage := rig.FreePort(t), rig.FreePort(t), rig.FreePort(t)
	listen(t, silent, func(c net.Conn) {
		t.Cleanup(func() { _ = c.Close() }) // it stays open and says nothing
	})
	listen(t, garbage, func(c net.Conn) {
		_, _ = c.Write([]byte("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")) // whether or not it is read
		hangUp(c)
	})
	point := "units: [{name: one, unit: 1, points: [{name: clock, table: holding, address: 0, type: uint64, every: 500ms}]}]"
	device := func(name string, port int) string {
		return fmt.Sprintf("  %s: {driver: modbus, address: \"127.0.0.1:%d\", timeout: 300ms, %s}\n", name, port, point)
	}

	s.configure(parts{
		devices: device("absent", absent) + device("silent", silent) + device("garbage", garbage),
		uplinks: fmt.Sprintf("  works: {driver: redis, address: %q, key: %q}\n", works.Addr, redisKey) +
			fmt.Sprintf("  down: {driver: redis, address: %q, key: %q}\n", down.Addr, redisKey) +
			fmt.Sprintf("  refusing: {driver: redis, address: %q, key: %q, password_file: password}\n", refusing.Addr, redisKey) +
			fmt.Sprintf("  topicless: {driver: kafka, brokers: [%q], topic: %s}\n", kafka.Addr, kafkaTopic) +
			fmt.Sprintf("  streamless: {driver: nats, servers: [%q], stream: %s, subject: %s}\n", nats.Addr, natsStream, natsSubject),
	})
	if err := os.WriteFile(filepath.Join(s.dir, "password"), []byte("right\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	setPassword := func(from, to string) {
		client := redis.NewClient(&redis.Options{Addr: refusing.Addr, Password: from})
		defer func() { _ = client.Close() }() // one command
		if err := client.ConfigSet(t.Context(), "requirepass", to).Err(); err != nil {
			t.Fatal(err)
		}
	}
	setPassword("right", "another")
	lines := [][]string{
		{"level=WARN", "uplink=down", "uplink failed, will retry", "refuses the connection"},
		{"level=ERROR", "uplink=refusing", "uplink failed, will retry", "refuses the sign-in: wrong user or password"},
		{"level=ERROR", "uplink=topicless", "uplink failed, will retry", "topic e2e.main does not exist"},
		{"level=ERROR", "uplink=streamless", "uplink failed, will retry", "no stream on the server takes the subject"},
		{"level=WARN", "device=absent", "unit does not deliver all values", "connection refused"},
		{"level=WARN", "device=silent", "unit does not deliver all values", "no answer within 300ms"},
		{"level=WARN", "device=garbage", "unit does not deliver all values"},
	}
	for n := 1; n <= 2; n++ {
		s.gateway.Start()
		for _, words := range lines {
			s.said(n, words...)
		}
		for range 5 {
			s.mustTake(10 * time.Second)
		}
		s.mustHold(20*time.Second, "the redis that works", func() []entry { return readRedis(t, works.Addr, redisKey) })
		time.Sleep(3 * time.Second) // more tries, of which there must be no lines
		for _, words := range lines {
			s.said(n, words[:3]...)
		}
		if n == 1 {
			t.Logf("stopped within %v", s.gateway.Stop())
		}
	}
	for _, x := range readRedis(t, works.Addr, redisKey) {
		if x.Source != "broker" && (x.Quality != "bad" || string(x.Value) != "null" || x.Reason == "") {
			t.Errorf("reading of %s is %s with the value %s and the reason %q", x.Topic, x.Quality, x.Value, x.Reason)
		}
	}

	down.Start()
	setPassword("another", "right")
	makeTopic(t, kafka.Addr, kafkaTopic)
	makeStream(t, nats.Addr, natsStream, natsSubject)
	python := filepath.Join(rig.Setup(t, "python"), "python", "bin", "python")
	startProcess(t, "pymodbus", python, filepath.Join(rig.Root(t), "test", "e2e", "slave.py"), strconv.Itoa(absent))
	s.mustTake(10 * time.Second)
	s.mustHold(2*time.Minute, "the redis that was down", func() []entry { return readRedis(t, down.Addr, redisKey) })
	s.mustHold(2*time.Minute, "nats", func() []entry { return readNATS(t, nats.Addr, natsStream) })
	s.mustHold(2*time.Minute, "kafka", func() []entry { return readKafka(t, kafka.Addr, kafkaTopic) })
	setPassword("right", "") // so that it can be read back
	s.mustHold(2*time.Minute, "the redis that refused", func() []entry { return readRedis(t, refusing.Addr, redisKey) })
	s.await(time.Minute, "a good reading of the device that was absent", func() bool { return s.count("unit is up", "device=absent") == 1 })
	s.gateway.Stop()
}

// TestBadMQTT sends what no client should send. Each is answered without a promise, and said in the log.
func TestBadMQTT(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	far := rig.Redis(t)
	uplinks, read := toRedis(t, far)
	s.configure(parts{uplinks: uplinks})
	s.gateway.Start()
	s.mustTake(20 * time.Second)
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port))
	connect := func() *e2e.Client {
		c, err := e2e.Connect(address, "bad", mqttUser, mqttPassword)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		return c
	}
	for i, c := range []struct {
		name   string
		packet []byte
		says   []string
	}{
		{"publish without rights", e2e.PublishPacket("other/topic", []byte("x"), 1, 1), []string{"level=WARN", "publish denied", "topic=other/topic"}},
		{"packet over the limit", e2e.PublishPacket("line/x", make([]byte, 300<<10), 1, 1), []string{"level=WARN", "client=bad", "packet too large"}},
		{"topic with a wildcard", e2e.PublishPacket("line/#", []byte("x"), 1, 1), []string{"level=WARN", "client=bad", "topic contains wildcards"}},
		{"packet that is cut short", []byte{e2e.Publish | 2, 3, 0, 200, 'x'}, []string{"level=WARN", "client=bad", "malformed"}},
	} {
		if i > 0 { // one kind of line comes once a minute at most, however many clients misbehave
			s.gateway.Stop()
			s.gateway.Start()
			s.mustTake(20 * time.Second)
		}
		client := connect()
		_, _ = client.Conn.Write(c.packet) // the broker may close before it has read everything
		_ = client.Conn.SetReadDeadline(time.Now().Add(10 * time.Second))
		if a, err := client.ReadAck(); err == nil && a.Stored() {
			t.Errorf("%s: the answer promises that it is stored", c.name)
		}
		client.Close()
		s.said(1, c.says...)
	}
	raw, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = raw.Write([]byte("GET / HTTP/1.1\r\n\r\n")) // the broker may close at once
	_ = raw.SetReadDeadline(time.Now().Add(10 * time.Second))
	if n, _ := raw.Read(make([]byte, 10)); n > 0 {
		t.Errorf("HTTP is answered with %d bytes", n)
	}
	_ = raw.Close() // it is over
	s.said(1, "level=WARN", "client was refused")
	if _, err := e2e.Connect(address, "bad", mqttUser, "wrong"); err == nil {
		t.Error("a wrong password signs in")
	}
	s.said(1, "level=WARN", "wrong user name or password")
	s.mustTake(10 * time.Second)
	s.mustHold(10*time.Second, "redis", read)
	s.gateway.Stop()
}
