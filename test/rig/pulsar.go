package rig

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// PulsarServer is a broker of Apache Pulsar with its store in one process.
type PulsarServer struct {
	*Server
	// Web is the host and port of its admin API.
	Web string
	// TLS is the host and port of its TLS listener, where settings name a tlsCertificateFilePath.
	TLS string
	// Token signs its administrator in, where it wants one.
	Token string
}

// Pulsar starts a broker and its bookie, standalone; journal and ledgers are synced. Topics come into being by their use, the
// namespace public/default keeps what nobody has read, and repeats are dropped by sequence id. settings are further lines for
// its configuration, which override ours, such as "maxMessageSize=262144".
func Pulsar(tb TB, settings ...string) *PulsarServer {
	tb.Helper()
	p := NewPulsar(tb, settings...)
	p.Begin()
	return p
}

// Begin starts what NewPulsar has prepared.
func (p *PulsarServer) Begin() {
	p.tb.Helper()
	p.begin()
}

// NewPulsar prepares what Pulsar starts: the caller may set Token before.
func NewPulsar(tb TB, settings ...string) *PulsarServer {
	tb.Helper()
	lib := filepath.Join(Setup(tb, "pulsar"), "pulsar-3.0.7", "lib")
	java, err := exec.LookPath("java")
	if err != nil {
		Setup(tb, "apt")
		java = "java"
	}
	dir := tb.TempDir()
	port, web, bookie, front, behind := FreePort(tb), FreePort(tb), FreePort(tb), FreePort(tb), FreePort(tb)
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			tb.Fatalf("settings of pulsar: %v", err)
		}
		return path
	}
	secure, tls := "", ""
	if text := strings.Join(settings, "\n"); strings.Contains(text, "tlsCertificateFilePath=") {
		secure = fmt.Sprintf("127.0.0.1:%d", FreePort(tb))
		tls = ",plain:pulsar+ssl://" + secure
	}
	conf := write("standalone.conf", fmt.Sprintf(pulsarSettings, port, web, behind, front, tls)+strings.Join(settings, "\n")+"\n")
	logging := write("log4j2.properties", pulsarLogging)
	args := []string{
		"-Xms64m", "-Xmx320m", "-XX:MaxDirectMemorySize=256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
		"-Dlog4j2.configurationFile=" + logging, "-Dio.netty.tryReflectionSetAccessible=true", "-Djava.net.preferIPv4Stack=true",
		"-Dbookkeeper.metadata.bookie.drivers=org.apache.pulsar.metadata.bookkeeper.PulsarMetadataBookieDriver",
		"-Dbookkeeper.metadata.client.drivers=org.apache.pulsar.metadata.bookkeeper.PulsarMetadataClientDriver",
		"-cp", filepath.Join(lib, "*"),
	}
	for _, open := range []string{
		"java.base/java.io", "java.base/java.util.zip", "java.base/java.nio", "java.base/jdk.internal.misc", "java.base/sun.net",
		"java.management/sun.management", "java.base/java.lang",
	} {
		args = append(args, "--add-opens", open+"=ALL-UNNAMED")
	}
	args = append(args, "org.apache.pulsar.PulsarStandaloneStarter", "--config", conf, "-nfw", "-nss", "-a", "127.0.0.1",
		"--metadata-dir", filepath.Join(dir, "meta"), "--bookkeeper-dir", filepath.Join(dir, "bookkeeper"), "--bookkeeper-port", fmt.Sprint(bookie))
	s := &Server{tb: tb, name: "pulsar", dir: dir, Addr: fmt.Sprintf("127.0.0.1:%d", port)}
	s.ProxyAt, s.ProxyTo = fmt.Sprintf("127.0.0.1:%d", front), fmt.Sprintf("127.0.0.1:%d", behind)
	s.command = func() *exec.Cmd { return exec.Command(java, args...) }
	p := &PulsarServer{Server: s, Web: fmt.Sprintf("127.0.0.1:%d", web), TLS: secure}
	s.ready = func() error { return p.Admin(http.MethodGet, "brokers/health", nil) }
	return p
}

// Admin asks the admin API; a body is sent as JSON, and a pointer in want takes the answer.
func (p *PulsarServer) Admin(method, path string, body any, want ...any) error {
	var content io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return err
		}
		content = bytes.NewReader(text)
	}
	req, err := http.NewRequest(method, "http://"+p.Web+"/admin/v2/"+path, content)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	if p.Token != "" {
		req.Header.Set("Authorization", "Bearer "+p.Token)
	}
	client := http.Client{Timeout: 10 * time.Second}
	defer client.CloseIdleConnections()
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }() // it was read
	answer, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode >= 300 {
		err = fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, answer)
	}
	if err != nil || len(want) == 0 {
		return err
	}
	return json.Unmarshal(answer, want[0])
}

const pulsarSettings = `metadataStoreUrl=
clusterName=standalone
bindAddress=127.0.0.1
advertisedAddress=127.0.0.1
brokerServicePort=
webServicePort=%[2]d
bindAddresses=plain:pulsar://127.0.0.1:%[1]d,proxied:pulsar://127.0.0.1:%[3]d%[5]s
advertisedListeners=plain:pulsar://127.0.0.1:%[1]d,proxied:pulsar://127.0.0.1:%[4]d%[5]s
internalListenerName=plain
managedLedgerDefaultEnsembleSize=1
managedLedgerDefaultWriteQuorum=1
managedLedgerDefaultAckQuorum=1
brokerDeduplicationEnabled=true
allowAutoTopicCreation=true
defaultRetentionTimeInMinutes=-1
defaultRetentionSizeInMB=-1
systemTopicEnabled=true
topicLevelPoliciesEnabled=true
loadManagerClassName=org.apache.pulsar.broker.loadbalance.NoopLoadManager
loadBalancerEnabled=false
loadBalancerOverrideBrokerNicSpeedGbps=1
defaultNumberOfNamespaceBundles=1
numIOThreads=2
numHttpServerThreads=4
numOrderedExecutorThreads=2
bookkeeperClientNumWorkerThreads=2
bookkeeperClientNumIoThreads=2
managedLedgerNumSchedulerThreads=2
managedLedgerCacheSizeMB=16
journalSyncData=true
dbStorage_writeCacheMaxSizeMb=16
dbStorage_readAheadCacheMaxSizeMb=8
dbStorage_rocksDB_blockCacheSize=8388608
`

const pulsarLogging = `rootLogger.level=warn
rootLogger.appenderRef.out.ref=out
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d %p %m (%c)%n
`
