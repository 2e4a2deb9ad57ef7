package redis_test

import (
	"fmt"
	"io"
	"net"
	"regexp"
	"sync"
	"sync/atomic"
	"testing"

	"edgegateway/test/rig"
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
