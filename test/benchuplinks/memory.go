package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"edgegateway/uplink"
	"edgegateway/wal"
)

// A child drains a log, so that nothing but an uplink is in its memory.
const childFlag = "drain"

// memoryGoal in MB.
const memoryGoal = 64

// memory fills a log and has a process of its own drain it.
func (b *bench) memory(ctx context.Context, s subject) error {
	dir := filepath.Join(b.dir, "drain")
	log, err := wal.Open(dir, wal.Options{NewEpoch: epoch, MaxBytes: 8 << 30})
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }() // build/ is not kept
	if _, err = log.Cursor("far", stream, wal.Oldest); err == nil {
		err = fill(log, b.drain/payload, func(bare) {})
	}
	if err == nil {
		err = log.Close()
	}
	if err != nil {
		return err
	}
	place := strings.ReplaceAll(s.name(), "_", "-") + "-memory"
	if err := s.far.prepare(ctx, s.addr, place, s.mode); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, self, childFlag, s.far.name, string(s.mode), s.addr, place, dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return err
	}
	var above, anonymous float64
	if _, err := fmt.Sscanf(string(out), "above %f anonymous %f", &above, &anonymous); err != nil {
		return fmt.Errorf("the child says %q: %w", out, err)
	}
	if above > memoryGoal {
		b.above++
	}
	b.say("memory-"+s.name(), above/memoryGoal, above, memoryGoal, "MB", "≤ 1")
	fmt.Fprintf(os.Stderr, "  without the pages of files: %.1f MB\n", anonymous)
	return s.far.forget(ctx, s.addr, place)
}

// child is the process that drains: DRIVER MODE ADDRESS PLACE DIRECTORY.
func child(args []string) error {
	var s subject
	for _, f := range fars() {
		if f.name == args[0] {
			s = subject{far: f, mode: uplink.Delivery(args[1]), addr: args[2]}
		}
	}
	log, err := wal.Open(args[4], wal.Options{NewEpoch: epoch, MaxBytes: 8 << 30})
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // it is thrown away
	cursor, err := log.Cursor("far", stream, wal.Oldest)
	if err != nil {
		return err
	}
	time.Sleep(time.Second)
	debug.FreeOSMemory()
	idle, idleAnonymous, err := resident()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	var most, mostAnonymous float64
	var watching sync.WaitGroup
	watching.Go(func() {
		for ctx.Err() == nil {
			all, anonymous, _ := resident() // the first call has shown that it works
			most, mostAnonymous = max(most, all), max(mostAnonymous, anonymous)
			time.Sleep(10 * time.Millisecond)
		}
	})
	err = drain(ctx, cursor, s.far.driver(s.addr, args[3]), s.promise())
	cancel()
	watching.Wait()
	fmt.Fprintf(os.Stdout, "above %.1f anonymous %.1f\n", most-idle, mostAnonymous-idleAnonymous)
	return err
}
