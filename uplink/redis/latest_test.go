package redis_test

import (
	"bufio"
	"cmp"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"edgegateway/pipeline"
	"edgegateway/test/rig"
	"edgegateway/uplink"
	"edgegateway/uplink/redis"
	"edgegateway/uplink/uplinktest"
)

// sendTo sends records of an epoch in one session, topic t, and returns its error.
func sendTo(t *testing.T, cfg *redis.Config, epoch uint64, seqs ...uint64) error {
	t.Helper()
	s, err := cfg.Open(t.Context(), uplink.Env{Gateway: "gw1", Stream: "line", Epoch: epoch})
	if err != nil {
		return err
	}
	return send(t, s, epoch, seqs...)
}

// send sends records of an epoch, topic t, and closes the session.
func send(t *testing.T, s uplink.Session, epoch uint64, seqs ...uint64) error {
	t.Helper()
	defer s.Close()
	var recs []uplink.Record
	for _, seq := range seqs {
		recs = append(recs, uplink.Record{
			ID:      pipeline.RecordID{Gateway: "gw1", Stream: "line", Epoch: epoch, Seq: seq},
			Message: pipeline.Message{Topic: "t"}, JSON: []byte(strconv.FormatUint(seq, 10)),
		})
	}
	return sendAll(t, s, recs)
}

// sendAll sends records, waits for the outcome of each, and returns why one is not stored.
func sendAll(t *testing.T, s uplink.Session, recs []uplink.Record) error {
	t.Helper()
	outcomes := make(chan uplink.Outcome, len(recs))
	if err := s.Send(t.Context(), recs, func(_ uint64, o uplink.Outcome) { outcomes <- o }); err != nil {
		return err
	}
	var failed error
	for range recs {
		select {
		case o := <-outcomes:
			if o.Verdict != uplink.Ack {
				failed = cmp.Or(failed, o.Err)
			}
		case <-time.After(patient):
			t.Fatal("no outcome")
		}
	}
	return failed
}

func TestLatestHoldsTheNewestRecordWhateverComesAgain(t *testing.T) {
	server := rig.Redis(t)
	f := far{connect(t, server.Addr), t}
	cfg := &redis.Config{Address: server.Addr, As: "latest", Key: "now:{gateway}:{stream}"}
	const big = 1<<53 + 1 // beyond what a number of Lua holds
	for _, step := range []struct {
		epoch uint64
		seqs  []uint64
		want  string
	}{
		{7, []uint64{3, 4, 5}, "7-5"},
		{7, []uint64{3, 4}, "7-5"},                        // late
		{7, []uint64{5}, "7-5"},                           // again
		{7, []uint64{big + 1, big}, "7-9007199254740994"}, // doubles are equal here
		{8, []uint64{1}, "8-1"},                           // a new log
	} {
		if err := sendTo(t, cfg, step.epoch, step.seqs...); err != nil {
			t.Fatal(err)
		}
		h := f.HGetAll(t.Context(), "now:gw1:line:t").Val()
		if got := h["epoch"] + "-" + h["seq"]; got != step.want || h["id"] != "gw1/line/"+strings.Replace(step.want, "-", "/", 1) || h["payload"] != h["seq"] || h["topic"] != "t" {
			t.Errorf("after %d %v: %v, want %s", step.epoch, step.seqs, h, step.want)
		}
	}
	if err := sendTo(t, cfg, 7, 1); err == nil || !uplink.IsConfig(err) || !strings.Contains(err.Error(), "newer log") {
		t.Errorf("an older log: %v, want it refused", err)
	}
	f.do("SET", "now:gw1:line:t", "text")
	if err := sendTo(t, cfg, 8, 2); err == nil || !uplink.IsConfig(err) || !strings.Contains(err.Error(), "holds something else") {
		t.Errorf("a key of another type: %v, want it refused", err)
	}
}

func TestLatestThroughARunner(t *testing.T) {
	server := rig.Redis(t, "--proto-max-bulk-len", "1mb")
	f := far{connect(t, server.Addr), t}
	log := uplinktest.NewLog()
	g := run(t, &redis.Config{Address: server.Addr, As: "latest", Key: "{topic}:{stream}"}, log, "")
	g.send(1000)
	log.Append(tooLarge())
	f.do("SCRIPT", "FLUSH")
	g.send(100)
	for topic, seq := range map[string]string{"t0": "1101", "t1": "1099", "t2": "1100"} {
		if got := f.HGet(t.Context(), topic+":line", "seq").Val(); got != seq {
			t.Errorf("%s: record %s, want %s", topic, got, seq)
		}
	}
	if n := len(log.Letters()); n != 1 {
		t.Errorf("%d dead letters, want 1", n)
	}
}

func TestChecksSayWhatWouldBeRight(t *testing.T) {
	for _, test := range []struct {
		cfg  *redis.Config
		want string
	}{
		{&redis.Config{As: "pubsub", Key: "k"}, "as: Redis keeps nothing of what is published"},
		{&redis.Config{As: "set", Key: "k"}, `as: unknown "set" (want stream, list or latest)`},
		{&redis.Config{As: "latest", Key: "k:{topic}", MaxLen: 5}, "max_len: is for streams and lists"},
		{&redis.Config{Key: "k:{topic}"}, "key: unknown placeholder {topic}"},
		{&redis.Config{As: "latest", Key: "k:{topic}"}, ""},
		{&redis.Config{As: "list", Key: "k", MaxLen: 5}, ""},
		{&redis.Config{Key: "k", Cluster: []string{"c:1"}}, "address: where the server is must be said once"},
		{&redis.Config{Key: "k", Sentinel: redis.Sentinel{Master: "m"}}, "address: where the server is must be said once"},
	} {
		test.cfg.Address = "r:6379"
		got := ""
		for _, p := range test.cfg.Check() {
			got += p.Path + ": " + p.Text
		}
		if (got == "") != (test.want == "") || !strings.HasPrefix(got, test.want) {
			t.Errorf("as %q: %q, want %q", test.cfg.As, got, test.want)
		}
	}
	for _, test := range []struct {
		cfg  *redis.Config
		want string
	}{
		{&redis.Config{Key: "k"}, "address: where the server is must be said once"},
		{&redis.Config{Key: "k", Cluster: []string{"c:1"}}, ""},
		{&redis.Config{Key: "k", Cluster: []string{"c:1"}, DB: 3}, "db: a cluster has one database only"},
		{&redis.Config{Key: "k", Cluster: []string{"c:1"}, As: "latest"}, ""},
		{&redis.Config{Key: "k", Cluster: []string{"c:1"}, As: "latest", WaitReplicas: 1}, "as: the hashes are at several nodes"},
		{&redis.Config{Key: "k", Sentinel: redis.Sentinel{Master: "m", Addresses: []string{"s:1"}}}, ""},
		{&redis.Config{Key: "k", Sentinel: redis.Sentinel{Master: "m"}}, "sentinel: addresses and master belong together"},
		{&redis.Config{Key: "k", Address: "r:1", Sentinel: redis.Sentinel{User: "u"}}, "sentinel: there is a sign-in but no sentinel"},
	} {
		got := ""
		for _, p := range test.cfg.Check() {
			got += p.Path + ": " + p.Text
		}
		if (got == "") != (test.want == "") || !strings.HasPrefix(got, test.want) {
			t.Errorf("%+v: %q, want %q", test.cfg, got, test.want)
		}
	}
	for as, n := range map[string]int{"stream": 3, "list": 3, "latest": 6} {
		kept := 0
		for _, p := range uplink.Promises() {
			if uplink.CheckPromise(&redis.Config{As: as}, p) == nil {
				kept++
			}
		}
		if kept != n {
			t.Errorf("as %s keeps %d promises, want %d", as, kept, n)
		}
	}
}

func TestWaitingForReplicas(t *testing.T) {
	server := rig.Redis(t, "--repl-diskless-sync-delay", "0")
	host, port, err := net.SplitHostPort(server.Addr)
	if err != nil {
		t.Fatal(err)
	}
	f := far{connect(t, server.Addr), t}
	driver := exactly{&redis.Config{Address: server.Addr, Key: "k", WaitReplicas: 1}}
	g := run(t, driver, uplinktest.NewLog(), "")
	g.append(10)
	if s := g.says("want 1: are the replicas up"); s.Config || s.Acked != 0 {
		t.Errorf("Status = %+v without a replica, want nothing confirmed and nobody asked", s)
	}
	replica := rig.Redis(t, "--replicaof", host, port)
	g.settle()
	f.do("SCRIPT", "FLUSH")
	g.send(100)
	replica.Pause()
	g.append(50)
	s := g.says("want 1: are the replicas up")
	replica.Resume()
	if s.Acked != 110 {
		t.Errorf("%d confirmed while the replica stood still, want 110", s.Acked)
	}
	g.settle()
	g.stop()
	f.holds("stream", "k", 160)
	far{connect(t, replica.Addr), t}.holds("stream", "k", 160)
	uplinktest.RunFaults(t, []uplinktest.Fault{
		{Name: "the address of a replica", Driver: exactly{&redis.Config{Address: replica.Addr, Key: "r"}}, Want: "read-only replica"},
		{Name: "too old for WAITAOF", Driver: exactly{&redis.Config{Address: server.Addr, Key: "r", WaitAOF: true}}, Want: "older than Redis 7.2", Config: true},
	})
}

// saying is a server that answers everything with the same words.
func saying(t *testing.T, words string) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { _ = l.Close(); <-done })
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			for in := bufio.NewScanner(c); in.Scan(); {
				if strings.HasPrefix(in.Text(), "*") { // the head of a command
					_, _ = fmt.Fprintf(c, "-%s\r\n", words)
				}
			}
			_ = c.Close()
		}
	}()
	return l.Addr().String()
}

func TestTheServersWordsAreExplained(t *testing.T) {
	for words, want := range map[string]string{
		"LOADING Redis is loading the dataset in memory":                                   "still loading",
		"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to":  "cannot write to its disk",
		"READONLY You can't write against a read only replica.":                            "read-only replica",
		"OOM command not allowed when used memory > 'maxmemory'.":                          "maxmemory",
		"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.": "lost its master",
		"NOREPLICAS Not enough good replicas to write.":                                    "min-replicas-to-write",
		"ERR max number of clients reached":                                                "maxclients",
		"BUSY Redis is busy running a script.":                                             "busy",
		"! MOVED 3999 127.0.0.1:6381":                                                      "node of a cluster",
		"! NOPERM this user has no permissions to run the 'evalsha' command":               "no rights",
		"! WRONGPASS invalid username-password pair or user is disabled.":                  "wrong user or password",
	} {
		words, config := strings.CutPrefix(words, "! ")
		cfg := &redis.Config{Address: saying(t, words), Key: "k"}
		err := sendTo(t, cfg, 7, 1)
		if err == nil || !strings.Contains(err.Error(), want) || uplink.IsConfig(err) != config {
			t.Errorf("%s: %v (config %v), want %q (config %v)", words, err, uplink.IsConfig(err), want, config)
		}
	}
}

func TestATopicThatIsSomebodyElsesHoldsOnlyItself(t *testing.T) {
	server := rig.Redis(t)
	f := far{connect(t, server.Addr), t}
	f.do("SET", "k:t1", "not a hash")
	log := uplinktest.NewLog()
	g := runAs(t, &redis.Config{Address: server.Addr, As: "latest", Key: "k"}, log, "", uplink.OrderKey)
	g.append(30) // topics t0, t1, t2
	for deadline := time.Now().Add(patient); g.Status().Acked < 20; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("Status = %+v, want the 20 records of the other topics confirmed", g.Status())
		}
	}
	s := g.Status()
	if s.Held != 10 || s.Error != "" || s.Attempts == 0 || !strings.Contains(s.HeldFor, "holds something else") {
		t.Errorf("Status = %+v, want 10 held and why", s)
	}
	f.do("DEL", "k:t1")
	g.settle()
	for topic, seq := range map[string]string{"t0": "30", "t1": "28", "t2": "29"} {
		if got := f.HGet(t.Context(), "k:"+topic, "seq").Val(); got != seq {
			t.Errorf("hash of %s holds record %s, want %s", topic, got, seq)
		}
	}
}

// keysOf returns the keys of a place that holds the last record of each topic.
func keysOf(t testing.TB, addr, place string) (keys []string) {
	t.Helper()
	each := connect(t, addr).Scan(t.Context(), 0, "edge:gw1:"+place+":*", 1000).Iterator()
	for each.Next(t.Context()) {
		keys = append(keys, each.Val())
	}
	if err := each.Err(); err != nil {
		t.Fatalf("read back: %v", err)
	}
	return keys
}

func readLatest(t testing.TB, addr, place string) (out []uplinktest.Stored) {
	t.Helper()
	c := connect(t, addr)
	for _, key := range keysOf(t, addr, place) {
		h, err := c.HGetAll(t.Context(), key).Result()
		if err != nil {
			t.Fatalf("read back: %v", err)
		}
		out = append(out, uplinktest.Stored{ID: h["id"], Payload: h["payload"]})
	}
	return out
}
