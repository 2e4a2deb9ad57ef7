package rig

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
)

// TestPortsAreNobodyElses takes ports in three processes at once, as suites side by side do.
func TestPortsAreNobodyElses(t *testing.T) {
	const each = 130 // more than a block
	if os.Getenv("RIG_PORTS") != "" {
		for range each {
			fmt.Println("port", FreePort(t))
		}
		_, _ = os.Stdin.Read(make([]byte, 1)) // until all have theirs
		return
	}
	seen := map[int]bool{}
	note := func(port int) {
		if seen[port] {
			t.Errorf("port %d was handed out twice", port)
		}
		seen[port] = true
	}
	for range each {
		note(FreePort(t))
	}
	for range 2 {
		cmd := exec.Command(os.Args[0], "-test.run", "^TestPortsAreNobodyElses$")
		cmd.Env = append(os.Environ(), "RIG_PORTS=1")
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = in.Close() // it ends then
			_ = cmd.Wait()
		})
		for n := range each {
			var port int
			if _, err := fmt.Fscanf(out, "port %d\n", &port); err != nil {
				t.Fatalf("port %d of the other process: %v", n, err)
			}
			note(port)
		}
	}
	if len(seen) != 3*each {
		t.Errorf("%d ports, want %d", len(seen), 3*each)
	}
}
