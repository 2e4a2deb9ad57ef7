package rig

import (
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// KafkaOptions say what Kafka brokers are like.
type KafkaOptions struct {
	Settings  []string          // further lines for the properties file, such as "message.max.bytes=100000"
	Listeners map[string]string // further listeners by name, with the protocol of each: SASL_PLAINTEXT, SSL or SASL_SSL
}

// Kafka starts a broker of one node (KRaft). Topics must be made; they do not come into being by a write. settings are as
// in KafkaOptions.
func Kafka(tb TB, settings ...string) *Server {
	tb.Helper()
	return KafkaWith(tb, KafkaOptions{Settings: settings})
}

// KafkaWith starts a broker of one node with options. Server.At says where its further listeners are.
func KafkaWith(tb TB, o KafkaOptions) *Server {
	tb.Helper()
	return kafkaNodes(tb, 1, o)[0]
}

// KafkaCluster starts several nodes, each broker and controller. What topics and transactions need is on all of them, and a write
// is confirmed when all but one have it.
func KafkaCluster(tb TB, nodes int, o KafkaOptions) []*Server {
	tb.Helper()
	return kafkaNodes(tb, nodes, o)
}

// kafkaFronts is how many proxies can stand in front of a node at once.
const kafkaFronts = 4

func kafkaNodes(tb TB, nodes int, o KafkaOptions) []*Server {
	tb.Helper()
	lib := filepath.Join(Setup(tb, "kafka"), "kafka-4.3.1", "lib")
	java, err := exec.LookPath("java")
	if err != nil {
		Setup(tb, "apt")
		java = "java"
	}
	var voters []string
	each := 2 + 2*kafkaFronts + len(o.Listeners)
	ports := freePorts(tb, nodes*each)
	for i := range nodes {
		voters = append(voters, fmt.Sprintf("%d@127.0.0.1:%d", i+1, ports[i*each]))
	}
	servers := make([]*Server, nodes)
	for i := range servers {
		servers[i] = kafkaNode(tb, java, lib, i+1, ports[i*each:(i+1)*each], voters, o)
	}
	if nodes == 1 {
		servers[0].begin()
		return servers
	}
	for _, s := range servers { // one alone answers, but has no controller before a second is there
		s.tb.Cleanup(s.end)
		s.Launch()
	}
	for _, s := range servers {
		s.WaitReady()
	}
	return servers
}

// kafkaNode makes the settings and the storage of a node.
func kafkaNode(tb TB, java, lib string, id int, ports []int, voters []string, o KafkaOptions) *Server {
	tb.Helper()
	next := func() string {
		p := ports[0]
		ports = ports[1:]
		return fmt.Sprintf("127.0.0.1:%d", p)
	}
	dir := tb.TempDir()
	s := &Server{tb: tb, name: fmt.Sprintf("kafka %d", id), dir: dir, At: map[string]string{}}
	listeners := []string{"CONTROLLER://" + next()}
	s.Addr = next()
	listeners = append(listeners, "PLAINTEXT://"+s.Addr)
	advertised := []string{"PLAINTEXT://" + s.Addr}
	protocols := []string{"PLAINTEXT:PLAINTEXT", "CONTROLLER:PLAINTEXT"}
	// Kafka tells its clients where to connect next, so each proxy needs a listener that names the proxy.
	for n := range kafkaFronts {
		name, front := fmt.Sprintf("PROXIED%d", n), Front{At: next(), To: next()}
		listeners = append(listeners, name+"://"+front.To)
		advertised = append(advertised, name+"://"+front.At)
		protocols = append(protocols, name+":PLAINTEXT")
		s.Fronts = append(s.Fronts, front)
	}
	s.ProxyAt, s.ProxyTo, s.Fronts = s.Fronts[0].At, s.Fronts[0].To, s.Fronts[1:]
	for _, name := range slices.Sorted(maps.Keys(o.Listeners)) {
		s.At[name] = next()
		listeners = append(listeners, name+"://"+s.At[name])
		advertised = append(advertised, name+"://"+s.At[name])
		protocols = append(protocols, name+":"+o.Listeners[name])
	}
	properties, logging := filepath.Join(dir, "server.properties"), filepath.Join(dir, "log4j2.properties")
	text := fmt.Sprintf(kafkaProperties, id, strings.Join(voters, ","), strings.Join(listeners, ","), strings.Join(advertised, ","),
		strings.Join(protocols, ","), filepath.Join(dir, "data"), min(len(voters), 3), max(1, min(len(voters), 3)-1))
	for path, text := range map[string]string{properties: text + strings.Join(o.Settings, "\n") + "\n", logging: kafkaLogging} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			tb.Fatalf("settings of kafka: %v", err)
		}
	}
	heap := "-Xmx384m"
	if len(voters) > 1 {
		heap = "-Xmx256m"
	}
	run := func(heap, class string, args ...string) *exec.Cmd {
		return exec.Command(java, append([]string{
			heap, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dlog4j2.configurationFile=" + logging,
			"-cp", filepath.Join(lib, "*"), class,
		}, args...)...)
	}
	if out, err := run("-Xmx128m", "kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qg", "-c", properties).CombinedOutput(); err != nil {
		tb.Fatalf("format kafka's storage: %v\n%s", err, out)
	}
	s.command = func() *exec.Cmd { return run(heap, "kafka.Kafka", properties) }
	s.ready = func() error { return kafkaAnswers(s.Addr) }
	return s
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
node.id=%[1]d
controller.quorum.voters=%[2]s
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listeners=%[3]s
advertised.listeners=%[4]s
listener.security.protocol.map=%[5]s
log.dirs=%[6]s
offsets.topic.replication.factor=%[7]d
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=%[7]d
transaction.state.log.min.isr=%[8]d
transaction.state.log.num.partitions=1
default.replication.factor=%[7]d
min.insync.replicas=%[8]d
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
