package wal_test

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"testing"
	"time"

	"edgegateway/wal"
)

// crashDir names, in the environment, the log that this process works on until it is killed.
const crashDir = "WAL_CRASH_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(crashDir); dir != "" {
		fmt.Fprintln(os.Stderr, crashChild(dir))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

var crashOptions = wal.Options{SegmentBytes: small}

// crashChild appends to two streams and takes from one of them, and says what it knows: "A STREAM N" when a record is
// durable, "D N" before it gives a record its outcome.
func crashChild(dir string) error {
	l, err := wal.Open(dir, crashOptions)
	if err != nil {
		return err
	}
	c, err := l.Cursor("u", "a", wal.Oldest)
	if err != nil {
		return err
	}
	ctx := context.Background()
	next := map[string]int{"a": 1, "b": 1}
	for _, s := range l.Stats().Streams {
		next[s.Name] = int(s.Records) + 1
	}
	go func() {
		for {
			recs, err := c.Read(ctx, 7, 0)
			if err != nil {
				panic(err)
			}
			for _, r := range recs {
				fmt.Fprintf(os.Stdout, "D %d\n", r.Seq)
			}
			c.Done(recs...)
		}
	}()
	for i := 0; ; i++ {
		s := []string{"a", "b"}[i%2]
		n := next[s]
		next[s]++
		b := batch(s, n, n, 50+i%4000)
		b.State = []wal.Change{{Key: s, Value: fmt.Append(nil, n)}}
		b.Urgent = i%3 != 0
		if err := l.Append(ctx, b, func(err error) {
			if err != nil {
				panic(err)
			}
			fmt.Fprintf(os.Stdout, "A %s %d\n", s, n)
		}); err != nil {
			return err
		}
	}
}

func TestKilledAtAnyMoment(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, crashOptions)
	cursor(t, l, "check", "a") // keeps what the child's own cursor has passed
	cursor(t, l, "check", "b")
	closeLog(t, l)
	reader := map[string]uint64{"a": 0, "b": 0}
	var cursorSeq uint64
	for kill := range 14 {
		acked, handed := runAndKill(t, dir, kill)
		l := open(t, dir, crashOptions)
		state := map[string]string{}
		l.State("", func(k string, v []byte) bool { state[k] = string(v); return true })
		for _, s := range l.Stats().Streams {
			if s.Records < acked[s.Name] {
				t.Errorf("kill %d: stream %s has %d records, %d were acknowledged", kill, s.Name, s.Records, acked[s.Name])
			}
			if state[s.Name] != fmt.Sprint(s.Records) {
				t.Errorf("kill %d: state of %s is %s with %d records", kill, s.Name, state[s.Name], s.Records)
			}
			if s.Dropped != 0 {
				t.Errorf("kill %d: %d records dropped", kill, s.Dropped)
			}
			c := cursor(t, l, "check", s.Name)
			for reader[s.Name] < s.Records {
				for _, r := range read(t, c, 1000) {
					if reader[s.Name]++; r.Seq != reader[s.Name] || string(r.Data[:8]) != string(data("", int(r.Seq), 8)) {
						t.Fatalf("kill %d: stream %s: record %d after %d", kill, s.Name, r.Seq, reader[s.Name]-1)
					}
					c.Done(r)
				}
			}
		}
		for _, info := range l.Cursors() {
			if info.Uplink != "u" {
				continue
			}
			if info.Seq < cursorSeq || info.Seq > max(handed, cursorSeq) {
				t.Errorf("kill %d: cursor at %d, was at %d, handed out to %d", kill, info.Seq, cursorSeq, handed)
			}
			cursorSeq = info.Seq
		}
		closeLog(t, l)
	}
	if reader["a"] < 100 || cursorSeq == 0 {
		t.Errorf("only %d records and cursor %d: the child did too little", reader["a"], cursorSeq)
	}
}

// runAndKill runs the child for a random time once it works, kills it, and returns what it said.
func runAndKill(t *testing.T, dir string, kill int) (acked map[string]uint64, handed uint64) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), crashDir+"="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	acked = map[string]uint64{}
	lines, records := bufio.NewScanner(out), 0
	var timer *time.Timer
	for lines.Scan() {
		var s string
		var n uint64
		if _, err := fmt.Sscanf(lines.Text(), "A %s %d", &s, &n); err == nil {
			if records++; acked[s] != 0 && n != acked[s]+1 {
				t.Errorf("kill %d: %s %d acknowledged after %d", kill, s, n, acked[s])
			}
			acked[s] = n
		} else if _, err := fmt.Sscanf(lines.Text(), "D %d", &n); err == nil {
			handed = n
		}
		if timer == nil {
			timer = time.AfterFunc(time.Duration(rand.IntN(120))*time.Millisecond, func() { _ = cmd.Process.Kill() })
		}
	}
	if timer == nil {
		t.Fatalf("kill %d: the child said nothing", kill)
	}
	timer.Stop()
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	return acked, handed
}
