package rig

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Redis starts a redis-server that confirms a write only when it is on disk. args are settings as on its command line:
// "--maxmemory", "3mb".
func Redis(tb TB, args ...string) *Server {
	tb.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		Setup(tb, "apt")
	}
	return redisFrom(tb, "redis-server", args)
}

// Redis8 starts a newer one than the distribution has.
func Redis8(tb TB, args ...string) *Server {
	tb.Helper()
	return redisFrom(tb, filepath.Join(Setup(tb, "redis"), "redis", "redis-server"), args)
}

// Valkey starts a server of the other line that has come from Redis 7.2.
func Valkey(tb TB, args ...string) *Server {
	tb.Helper()
	return redisFrom(tb, filepath.Join(Setup(tb, "redis"), "redis", "valkey-server"), args)
}

func redisFrom(tb TB, program string, args []string) *Server {
	tb.Helper()
	port := strconv.Itoa(FreePort(tb))
	dir := tb.TempDir()
	s := &Server{tb: tb, name: filepath.Base(program), dir: dir, Addr: "127.0.0.1:" + port}
	s.command = func() *exec.Cmd {
		return exec.Command(program, append([]string{
			"--port", port, "--bind", "127.0.0.1", "--dir", dir,
			"--appendonly", "yes", "--appendfsync", "always", "--save", "",
		}, args...)...)
	}
	s.ready = tcpAnswers(s.Addr, "PING\r\n", "+PONG\r\n")
	for i, arg := range args {
		if arg == "--requirepass" && i+1 < len(args) {
			s.ready = tcpAnswers(s.Addr, "AUTH "+args[i+1]+"\r\nPING\r\n", "+OK\r\n")
		}
	}
	return s.begin()
}

// RedisCluster starts a cluster of so many masters, which share the slots evenly. Where it is replicated, the replica of Nodes[i] is
// Nodes[masters+i]; it takes over within a few seconds, however old its data are.
func RedisCluster(tb TB, masters int, replicated bool, args ...string) []*Server {
	tb.Helper()
	all := masters
	if replicated {
		all *= 2
	}
	nodes := make([]*Server, all)
	ids := make([]string, all)
	for i := range nodes {
		bus := strconv.Itoa(FreePort(tb))
		nodes[i] = Redis(tb, append([]string{
			"--cluster-enabled", "yes", "--cluster-port", bus, "--cluster-node-timeout", "2000", "--cluster-replica-validity-factor", "0",
			"--repl-diskless-sync-delay", "0",
		}, args...)...)
		ids[i] = redisSays(tb, nodes[i].Addr, "CLUSTER MYID")
		if i < masters {
			redisSays(tb, nodes[i].Addr, fmt.Sprintf("CLUSTER ADDSLOTSRANGE %d %d", i*16384/masters, (i+1)*16384/masters-1))
		}
		redisSays(tb, nodes[i].Addr, "CLUSTER SET-CONFIG-EPOCH "+strconv.Itoa(i+1))
		if i > 0 {
			host, port, _ := net.SplitHostPort(nodes[i].Addr)
			redisSays(tb, nodes[0].Addr, "CLUSTER MEET "+host+" "+port+" "+bus)
		}
	}
	wait := func(what string, done func(node *Server, info string) bool) {
		tb.Helper()
		for deadline := time.Now().Add(startTimeout); ; time.Sleep(20 * time.Millisecond) {
			ready := 0
			for _, node := range nodes {
				if done(node, redisSays(tb, node.Addr, "CLUSTER INFO")) {
					ready++
				}
			}
			if ready == all {
				return
			}
			if time.Now().After(deadline) {
				tb.Fatalf("the cluster has not %s within %v", what, startTimeout)
			}
		}
	}
	wait("met", func(_ *Server, info string) bool {
		return strings.Contains(info, "cluster_known_nodes:"+strconv.Itoa(all))
	})
	for i := masters; i < all; i++ {
		redisSays(tb, nodes[i].Addr, "CLUSTER REPLICATE "+ids[i-masters])
	}
	wait("come up", func(_ *Server, info string) bool { return strings.Contains(info, "cluster_state:ok") })
	for _, node := range nodes[masters:] {
		RedisReplica(tb, node)
	}
	return nodes
}

// RedisReplica waits until a replica has all that its master has, and would have it after a kill -9: after it was given all, it writes
// a new append-only file, and until that is done a start finds the one from before.
func RedisReplica(tb TB, replica *Server) {
	tb.Helper()
	for deadline := time.Now().Add(startTimeout); !RedisIsReplica(redisSays(tb, replica.Addr, "INFO")); {
		if time.Now().After(deadline) {
			tb.Fatalf("the replica %s has no link to its master", replica.Addr)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// RedisIsReplica reads an INFO for RedisReplica.
func RedisIsReplica(info string) bool {
	for _, want := range []string{"master_link_status:up", "aof_rewrite_in_progress:0", "aof_rewrite_scheduled:0"} {
		if !strings.Contains(info, want) {
			return false
		}
	}
	return true
}

// RedisSentinels starts sentinels that watch a master under a name and agree by a majority. settings are further lines of their files.
// Where they name a tls-cert-file, sentinels and servers talk to each other by TLS, and Server.At["TLS"] is where a client can.
func RedisSentinels(tb TB, n int, name, master, settings string) []*Server {
	tb.Helper()
	host, port, _ := net.SplitHostPort(master)
	sentinels := make([]*Server, n)
	for i := range sentinels {
		own := strconv.Itoa(FreePort(tb))
		dir := tb.TempDir()
		file := filepath.Join(dir, "sentinel.conf")
		text := fmt.Sprintf("port %s\nbind 127.0.0.1\ndir %s\nsentinel monitor %s %s %s %d\n", own, dir, name, host, port, n/2+1) +
			fmt.Sprintf("sentinel down-after-milliseconds %s 1000\nsentinel failover-timeout %s 5000\n%s\n", name, name, settings)
		s := &Server{tb: tb, name: "sentinel", dir: dir, Addr: "127.0.0.1:" + own}
		if strings.Contains(settings, "tls-cert-file") {
			secure := strconv.Itoa(FreePort(tb))
			text += "tls-port " + secure + "\ntls-replication yes\n"
			s.At = map[string]string{"TLS": "127.0.0.1:" + secure}
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			tb.Fatalf("settings of a sentinel: %v", err)
		}
		s.command = func() *exec.Cmd { return exec.Command("redis-server", file, "--sentinel") }
		s.ready = tcpAnswers(s.Addr, "PING\r\n", "")
		sentinels[i] = s.begin()
	}
	return sentinels
}

// redisSays returns the answer to a command of a server without a password. An error is one of the test.
func redisSays(tb TB, addr, command string) string {
	tb.Helper()
	answer, err := redisAnswer(addr, command)
	if err != nil {
		tb.Fatalf("%s: %s: %v", addr, command, err)
	}
	return answer
}

func redisAnswer(addr, command string) (string, error) {
	c, err := net.DialTimeout("tcp", addr, 5*time.Second)
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }() // one question
	if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(c, command+"\r\n"); err != nil {
		return "", err
	}
	r := bufio.NewReader(c)
	line, err := r.ReadString('\n')
	if err != nil {
		return "", err
	}
	rest := strings.TrimRight(line[1:], "\r\n")
	switch line[0] {
	case '-':
		return "", fmt.Errorf("it says %s", rest)
	case '$':
		n, err := strconv.Atoi(rest)
		if err != nil || n < 0 {
			return "", err
		}
		text := make([]byte, n)
		_, err = io.ReadFull(r, text)
		return string(text), err
	}
	return rest, nil
}
