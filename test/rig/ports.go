package rig

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
)

// Ports are handed out below those that the system gives to connections by itself (from 32768), in blocks: a broker takes seconds until it
// listens, and nobody else may have its port by then, nor while it is stopped. A block belongs to a process until that ends.
const (
	firstPort  = 20_000
	lastPort   = 32_000
	blockPorts = 100
)

var ports struct {
	mu        sync.Mutex
	next, end int // what is left of the last block
	locks     []*os.File
}

// FreePort returns a port of the loopback that nobody listens on, and that no other process gets from here.
func FreePort(tb TB) int {
	tb.Helper()
	ports.mu.Lock()
	defer ports.mu.Unlock()
	for {
		if ports.next == ports.end {
			if err := takeBlock(); err != nil {
				tb.Fatalf("free port: %v", err)
			}
		}
		port := ports.next
		ports.next++
		if l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			_ = l.Close() // nothing was accepted
			return port
		}
	}
}

// freePorts returns so many ports.
func freePorts(tb TB, n int) []int {
	tb.Helper()
	out := make([]int, n)
	for i := range out {
		out[i] = FreePort(tb)
	}
	return out
}

// takeBlock locks the next block that is nobody's. A lock goes with its process.
func takeBlock() error {
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("edge-gateway-ports-%d", os.Getuid()))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for first := firstPort; first < lastPort; first += blockPorts {
		f, err := os.OpenFile(filepath.Join(dir, strconv.Itoa(first)), os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return err
		}
		if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			ports.next, ports.end, ports.locks = first, first+blockPorts, append(ports.locks, f)
			return nil
		}
		_ = f.Close() // it is another's
	}
	return fmt.Errorf("all ports from %d to %d are taken by processes that run tests", firstPort, lastPort)
}
