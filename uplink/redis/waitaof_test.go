package redis_test

import (
	"fmt"
	"io"
	"net"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"edgegateway/test/rig"
	"edgegateway/uplink"
	"edgegateway/uplink/redis"
	"edgegateway/uplink/uplinktest"
)

var waitAOF = regexp.MustCompile(`\*4\r\n\$7\r\nWAITAOF\r\n(?:\$\d+\r\n\d+\r\n){3}`)

// withWAITAOF is a line to a server that is too old for WAITAOF: it has the server run a script in its place, so that the
// answer stands where WAITAOF's would. It relies on a command that comes in one piece, as short ones do.
func withWAITAOF(t *testing.T, server string, answer *atomic.Value) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	t.Cleanup(func() { _ = l.Close(); running.Wait() })
	serve := func(near net.Conn) {
		far, err := net.Dial("tcp", server)
		if err != nil {
			_ = near.Close()
			return
		}
		running.Go(func() {
			_, _ = io.Copy(near, far)
			_ = near.Close()
		})
		for buf := make([]byte, 1<<20); ; {
			n, err := near.Read(buf)
			script := answer.Load().(string)
			eval := fmt.Sprintf("*3\r\n$4\r\nEVAL\r\n$%d\r\n%s\r\n$1\r\n0\r\n", len(script), script)
			_, _ = far.Write(waitAOF.ReplaceAllLiteral(buf[:n], []byte(eval)))
			if err != nil {
				_ = far.Close()
				return
			}
		}
	}
	running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() { serve(c) })
		}
	})
	return l.Addr().String()
}

func TestWaitingForTheDisk(t *testing.T) {
	server := rig.Redis(t)
	f := far{connect(t, server.Addr), t}
	var answer atomic.Value
	answer.Store("return {1,0}")
	addr := withWAITAOF(t, server.Addr, &answer)
	g := run(t, exactly{&redis.Config{Address: addr, Key: "k", WaitAOF: true}}, uplinktest.NewLog(), "")
	g.send(20)
	answer.Store("return {0,0}")
	g.append(20)
	if s := g.says("has not written to its disk within"); s.Config || s.Acked != 20 {
		t.Errorf("Status = %+v, want 20 confirmed and nobody asked", s)
	}
	answer.Store("return redis.error_reply('ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.')")
	if s := g.says("want appendonly yes"); !s.Config {
		t.Errorf("Status = %+v, want an error that a person must mend", s)
	}
	answer.Store("return {1,0}")
	g.settle()
	g.stop()
	f.holds("stream", "k", 40)
	replicas := run(t, exactly{&redis.Config{Address: addr, Key: "l", WaitAOF: true, WaitReplicas: 2}}, uplinktest.NewLog(), "")
	answer.Store("return {1,1}")
	replicas.append(1)
	replicas.says("want 2: are the replicas up")
	answer.Store("return {1,2}")
	replicas.settle()
}

// TestWaitingForTheDiskOfANewerServer has a disk that is written once a second, so that each answer takes its time.
func TestWaitingForTheDiskOfANewerServer(t *testing.T) {
	for name, start := range map[string]func(rig.TB, ...string) *rig.Server{"redis 8": rig.Redis8, "valkey 9": rig.Valkey} {
		t.Run(name, func(t *testing.T) {
			server := start(t, "--appendfsync", "everysec")
			host, port, _ := splitAddr(server.Addr)
			f := far{connect(t, server.Addr), t}
			g := run(t, exactly{&redis.Config{Address: server.Addr, Key: "k", WaitAOF: true}}, uplinktest.NewLog(), "")
			g.send(1500)
			g.stop()
			f.holds("stream", "k", 1500)
			if calls := f.Info(t.Context(), "commandstats").Val(); !strings.Contains(calls, "cmdstat_waitaof:") {
				t.Errorf("the server was never asked to wait:\n%s", calls)
			}

			both := run(t, exactly{&redis.Config{Address: server.Addr, Key: "l", As: "list", WaitAOF: true, WaitReplicas: 1}}, uplinktest.NewLog(), "")
			both.append(20)
			both.says("0 replicas of " + server.Addr + " have the records")
			replica := start(t, "--replicaof", host, port)
			both.settle()
			f.holds("list", "l", 20)
			replica.Stop()
			memory := run(t, &redis.Config{Address: server.Addr, Key: "m", WaitReplicas: 1}, uplinktest.NewLog(), "")
			memory.append(5)
			memory.says("0 replicas of " + server.Addr + " have the records")
			replica.Start()
			memory.settle()
			f.holds("stream", "m", 5)

			f.do("CONFIG", "SET", "appendonly", "no")
			off := run(t, exactly{&redis.Config{Address: server.Addr, Key: "n", WaitAOF: true}}, uplinktest.NewLog(), "")
			off.append(5)
			if s := off.says("want appendonly yes"); !s.Config {
				t.Errorf("Status = %+v, want an error that a person must mend", s)
			}
			f.do("CONFIG", "SET", "appendonly", "yes")
			off.settle()
		})
	}
}

// TestBrokerKillsWithTheDiskOfANewerServer: what WAITAOF has answered for is there after a kill.
func TestBrokerKillsWithTheDiskOfANewerServer(t *testing.T) {
	for name, start := range map[string]func(rig.TB, ...string) *rig.Server{"redis 8": rig.Redis8, "valkey 9": rig.Valkey} {
		s := suite("stream", uplink.ExactlyOnce)
		s.Name = name + " wait_aof exactly_once"
		s.Server = func(tb rig.TB) *rig.Server {
			return start(tb, "--proto-max-bulk-len", "1mb")
		}
		s.Driver = func(addr, place string) uplink.Driver {
			return &redis.Config{Address: addr, As: "stream", Key: "edge:{gateway}:" + place, WaitAOF: true}
		}
		if n := uplinktest.RunBrokerKills(t, s, s.Name, 3); n != 0 {
			t.Errorf("%s: %d records are stored twice, want none", name, n)
		}
	}
}
