package uplinktest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"edgegateway/pipeline"
	"edgegateway/uplink"
	"edgegateway/wal"
)

// The child is the test binary again, told by this variable to be a gateway: DIRECTORY ADDRESS PLACE.
const childVariable = "EDGE_UPLINKTEST_CHILD"

// gatewayKilled runs a gateway of log and runner in a process of its own, kills it again and again, and wants all that
// it said was on disk at the broker. A doubled record is one whose confirmation did not reach the disk before the kill.
func gatewayKilled(t *testing.T, b *bench) {
	const kills = 6
	dir := filepath.Join(t.TempDir(), "log")
	acked := 0
	for i := range kills {
		c := b.child(dir)
		c.waitPast(acked)
		time.Sleep(time.Duration(100+130*i) * time.Millisecond)
		acked = c.kill()
	}
	c := b.child(dir)
	total := c.settle(acked)
	stored := b.suite.Read(t, b.server.Addr, b.place)
	t.Logf("kills %d acknowledged %d stored in the log %d", kills, acked, total)
	mayDouble := 0
	if b.suite.Doubles { // each kill leaves what was in flight, and as much again until the next commit, with which the cursor goes
		mayDouble = kills * 2 * b.flightBound()
	}
	b.suite.judge(stored, 0, total, nil).mustBe(t, mayDouble)
}

// child is a gateway in a process of its own.
type child struct {
	t     *testing.T
	cmd   *exec.Cmd
	stdin io.Closer
	done  chan struct{}

	mu      sync.Mutex // guards the fields below
	acked   int        // last record that it said was on disk
	settled int        // records in its log when all had an outcome
	heap    int        // most bytes of live heap, and
	flight  int        // most records in flight, since they were last looked at
	left    time.Time  // when it last said that fewer records were left than before
	cursors int        // cursors that its log has now
	changes [2]int     // how often there was one more, and one less
}

// child starts one, with further variables.
func (b *bench) child(dir string, variables ...string) *child {
	b.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^"+strings.SplitN(b.Name(), "/", 2)[0]+"$")
	cmd.Env = append(os.Environ(), childVariable+"="+strings.Join([]string{dir, b.addr, b.place}, "\n"))
	cmd.Env = append(cmd.Env, variables...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatalf("child: %v", err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatalf("child: %v", err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatalf("child: %v", err)
	}
	c := &child{t: b.T, cmd: cmd, stdin: in, done: make(chan struct{})}
	go func() {
		defer close(c.done)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			word, number, _ := strings.Cut(lines.Text(), " ")
			n, err := strconv.Atoi(number)
			c.mu.Lock()
			switch {
			case err != nil:
			case word == "acked":
				c.acked = n
			case word == "settled":
				c.settled = n
			case word == "heap":
				c.heap = max(c.heap, n)
			case word == "flight":
				c.flight = max(c.flight, n)
			case word == "left":
				c.left = time.Now()
			case word == "cursors":
				if c.cursors > 0 && n != c.cursors {
					c.changes[max(0, c.cursors-n)]++
				}
				c.cursors = n
			}
			c.mu.Unlock()
		}
	}()
	b.Cleanup(func() { _ = cmd.Process.Kill() }) // it has mostly ended
	return c
}

// waitPast waits until the child has put a record on disk that no life before it had.
func (c *child) waitPast(acked int) {
	c.t.Helper()
	for deadline := time.Now().Add(patient); ; time.Sleep(2 * time.Millisecond) {
		c.mu.Lock()
		now := c.acked
		c.mu.Unlock()
		if now > acked {
			return
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("a life puts nothing on disk")
		}
	}
}

// kill ends the child at once and returns the last record that it said was on disk.
func (c *child) kill() int {
	_ = c.cmd.Process.Kill() // what comes of it, Wait says
	<-c.done
	_ = c.cmd.Wait() // killed
	return c.acked
}

// settle lets the child stop appending, send all it has and end. It returns how many records its log holds.
func (c *child) settle(atLeast int) int {
	_ = c.stdin.Close() // that is the signal
	began := time.Now()
	for ended := false; !ended; {
		select {
		case <-c.done:
			ended = true
		case <-time.After(time.Second):
			c.mu.Lock()
			moved := c.left
			c.mu.Unlock()
			if time.Since(began) > patient && time.Since(moved) > patient {
				_ = c.cmd.Process.Kill()
				c.t.Fatal("the last life does not settle")
			}
		}
	}
	if err := c.cmd.Wait(); err != nil {
		c.t.Fatalf("the last life: %v", err)
	}
	if c.settled < atLeast {
		c.t.Fatalf("the log holds %d records, %d were acknowledged", c.settled, atLeast)
	}
	return c.settled
}

// IsChild reports whether this process is the gateway that a suite kills: it needs no broker of its own.
func IsChild() bool {
	_, ok := os.LookupEnv(childVariable)
	return ok
}

// killed runs this process as the child where it is one.
func killed(t *testing.T, s Suite) bool {
	args, ok := os.LookupEnv(childVariable)
	if !ok {
		return false
	}
	part := strings.Split(args, "\n")
	if err := live(t.Context(), part[0], s.Driver(part[1], part[2]), s.env()); err != nil {
		t.Fatal(err)
	}
	return true
}

// live is a life of the gateway: it appends numbered messages and sends them until its standard input ends, then settles.
func live(ctx context.Context, dir string, driver uplink.Driver, env uplink.Env) error {
	log, err := wal.Open(dir, wal.Options{NewEpoch: epoch})
	if err != nil {
		return err
	}
	cursor, err := log.Cursor("far", stream, wal.Oldest)
	if err != nil {
		return err
	}
	last := 0 // the last record that is there already
	for _, s := range log.Stats().Streams {
		if s.Name == stream {
			last = int(s.Records)
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if _, ok := os.LookupEnv(liveFirstVariable); ok {
		return liveFirst(ctx, log, cursor, driver, env, last)
	}
	runner := uplink.New(uplink.RunnerConfig{Driver: driver, Env: env, Cursor: mayDie(cursor), Timing: timing})
	ended := make(chan error, 1)
	go func() { ended <- runner.Run(ctx) }()
	pause := time.Duration(0)
	if _, ok := os.LookupEnv(outageVariable); ok {
		pause = 10 * time.Millisecond
		go weigh(ctx, runner) // ends with this life
	}
	last, err = produce(ctx, log, last, 8, pause)
	if err != nil {
		return err
	}
	if err := settle(func() uint64 { return cursor.Lag().Records }); err != nil {
		return err
	}
	cancel()
	if err := <-ended; err != nil {
		return err
	}
	cursor.Close()
	fmt.Printf("settled %d\n", last)
	return log.Close()
}

// settle waits until nothing is left, as long as it becomes less.
func settle(left func() uint64) error {
	least, moved := left(), time.Now()
	for ; least > 0; time.Sleep(5 * time.Millisecond) {
		switch n := left(); {
		case n < least:
			least, moved = n, time.Now()
			fmt.Printf("left %d\n", n)
		case time.Since(moved) > patient:
			return fmt.Errorf("%d records are not settled", n)
		}
	}
	return nil
}

// produce appends messages in sequence, a burst first, and says of each that is on disk so, until standard input ends.
func produce(ctx context.Context, log *wal.Log, last, burst int, pause time.Duration) (int, error) {
	end := make(chan struct{})
	go func() {
		defer close(end)
		_, _ = io.Copy(io.Discard, os.Stdin) // ends with the parent at the latest
	}()
	for {
		select {
		case <-end:
			return last, nil
		default:
		}
		var err error
		if last, err = store(ctx, log, last, burst); err != nil {
			return last, err
		}
		burst = 8
		fmt.Printf("acked %d\n", last)
		time.Sleep(pause)
	}
}

// store appends n messages behind the last one and returns the last one when they are on disk.
func store(ctx context.Context, log *wal.Log, last, n int) (int, error) {
	batch := wal.Batch{Urgent: true}
	for range n {
		last++
		m := message(last)
		batch.Entries = append(batch.Entries, wal.Entry{Stream: stream, Time: m.Time, Data: pipeline.Encode(nil, &m)})
	}
	stored := make(chan error, 1)
	if err := log.Append(ctx, batch, func(err error) { stored <- err }); err != nil {
		return last, err
	}
	return last, <-stored
}
