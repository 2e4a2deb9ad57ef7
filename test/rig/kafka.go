package rig

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Kafka starts a broker of one node (KRaft). Topics must be made; they do not come into being by a write. settings are
// further lines for its properties file, such as "message.max.bytes=100000".
func Kafka(tb TB, settings ...string) *Server {
	tb.Helper()
	lib := filepath.Join(Setup(tb, "kafka"), "kafka-4.3.1", "lib")
	java, err := exec.LookPath("java")
	if err != nil {
		Setup(tb, "apt")
		java = "java"
	}
	dir := tb.TempDir()
	// Kafka tells its clients where to connect next, so a proxy needs a listener that names the proxy.
	port, controller, front, behind := FreePort(tb), FreePort(tb), FreePort(tb), FreePort(tb)
	properties := filepath.Join(dir, "server.properties")
	logging := filepath.Join(dir, "log4j2.properties")
	write := func(path, text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			tb.Fatalf("settings of kafka: %v", err)
		}
	}
	write(properties, fmt.Sprintf(kafkaProperties, port, controller, filepath.Join(dir, "data"), behind, front)+strings.Join(settings, "\n")+"\n")
	write(logging, kafkaLogging)
	run := func(heap, class string, args ...string) *exec.Cmd {
		return exec.Command(java, append([]string{
			heap, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dlog4j2.configurationFile=" + logging,
			"-cp", filepath.Join(lib, "*"), class,
		}, args...)...)
	}
	if out, err := run("-Xmx128m", "kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qg", "-c", properties).CombinedOutput(); err != nil {
		tb.Fatalf("format kafka's storage: %v\n%s", err, out)
	}
	s := &Server{tb: tb, name: "kafka", dir: dir, Addr: fmt.Sprintf("127.0.0.1:%d", port)}
	s.ProxyAt, s.ProxyTo = fmt.Sprintf("127.0.0.1:%d", front), fmt.Sprintf("127.0.0.1:%d", behind)
	s.command = func() *exec.Cmd { return run("-Xmx384m", "kafka.Kafka", properties) }
	s.ready = func() error { return kafkaAnswers(s.Addr) }
	return s.begin()
}

// kafkaAnswers asks for the API versions (key 18, version 0), which a broker answers when it serves.
func kafkaAnswers(addr string) error {
	c, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }() // a probe
	if err := c.SetDeadline(time.Now().Add(2 * time.Second)); err != nil {
		return err
	}
	// u32 length, i16 key, i16 version, i32 correlation, i16 length of the client id (-1: none)
	if _, err := c.Write([]byte{0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 1, 0xff, 0xff}); err != nil {
		return err
	}
	_, err = c.Read(make([]byte, 4))
	return err
}

const kafkaProperties = `process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:%[2]d
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listeners=PLAINTEXT://127.0.0.1:%[1]d,CONTROLLER://127.0.0.1:%[2]d,PROXIED://127.0.0.1:%[4]d
advertised.listeners=PLAINTEXT://127.0.0.1:%[1]d,PROXIED://127.0.0.1:%[5]d
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs=%[3]s
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
controlled.shutdown.enable=false
broker.session.timeout.ms=1500
broker.heartbeat.interval.ms=300
`

const kafkaLogging = `rootLogger.level=warn
rootLogger.appenderRef.out.ref=out
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d %p %m (%c)%n
`
