package redis_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	client "github.com/redis/go-redis/v9"

	"edgegateway/pipeline"
	"edgegateway/test/rig"
	"edgegateway/uplink"
	"edgegateway/uplink/redis"
	"edgegateway/uplink/uplinktest"
)

const patient = 60 * time.Second

// gateway is a log and a runner.
type gateway struct {
	*uplink.Runner
	t    *testing.T
	log  *uplinktest.Log
	stop func()
}

func run(t *testing.T, driver uplink.Driver, log *uplinktest.Log, choice uplink.Choice) *gateway {
	t.Helper()
	return runAs(t, driver, log, choice, uplink.OrderStrict)
}

func runAs(t *testing.T, driver uplink.Driver, log *uplinktest.Log, choice uplink.Choice, order uplink.Order) *gateway {
	t.Helper()
	r := uplink.New(uplink.RunnerConfig{
		Driver: driver, Cursor: log, Env: uplink.Env{Gateway: "gw1", Stream: "line", Epoch: 7, Uplink: "far", Promise: uplink.Promise{Order: order}},
		Choice: func() (c uplink.Choice) { c, choice = choice, ""; return c },
		Timing: uplink.Timing{
			RetryMin: 10 * time.Millisecond, RetryMax: 50 * time.Millisecond, ConfigMin: 10 * time.Millisecond, ConfigMax: 50 * time.Millisecond,
			Drain: time.Second,
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	stopped := false
	g := &gateway{Runner: r, t: t, log: log, stop: func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v, want nil", err)
		}
		for _, m := range log.Mistakes() {
			t.Error(m)
		}
	}}
	t.Cleanup(g.stop)
	return g
}

func (g *gateway) append(n int) {
	for range n {
		g.log.Append(pipeline.Message{Topic: fmt.Sprintf("t%d", (g.log.Len()+1)%3), Value: pipeline.Int(int64(g.log.Len() + 1))})
	}
}

// send appends n messages and waits until all have an outcome.
func (g *gateway) send(n int) {
	g.t.Helper()
	g.append(n)
	g.settle()
}

func (g *gateway) settle() {
	g.t.Helper()
	if !g.log.Wait(g.log.Len(), patient) {
		g.t.Fatalf("%d of %d records have an outcome; %+v", g.log.Settled(), g.log.Len(), g.Status())
	}
}

// says waits until the status says the text, and returns the status.
func (g *gateway) says(text string) uplink.Status {
	g.t.Helper()
	for deadline := time.Now().Add(patient); ; time.Sleep(time.Millisecond) {
		s := g.Status()
		if strings.Contains(s.Error, text) {
			g.t.Logf("in plain words: %s", s.Error)
			return s
		}
		if time.Now().After(deadline) {
			g.t.Fatalf("Status = %+v, want an error with %q", s, text)
		}
	}
}

// far is the server as a reader sees it.
type far struct {
	*client.Client
	t *testing.T
}

func (f far) do(args ...any) any {
	f.t.Helper()
	v, err := f.Do(f.t.Context(), args...).Result()
	if err != nil {
		f.t.Fatalf("%v: %v", args, err)
	}
	return v
}

// holds wants the records 1 to n at the key, each once and in order.
func (f far) holds(as, key string, n int) {
	f.t.Helper()
	holds(f.t, f.Client, as, key, n)
}

func holds(t *testing.T, c client.Cmdable, as, key string, n int) {
	t.Helper()
	var ids []string
	if as == "list" {
		elements, err := c.LRange(t.Context(), key, 0, -1).Result()
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range elements {
			ids = append(ids, recordID(t, e))
		}
	} else {
		entries, err := c.XRange(t.Context(), key, "-", "+").Result()
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			ids = append(ids, e.Values["id"].(string))
		}
	}
	for i, id := range ids {
		if want := fmt.Sprintf("gw1/line/7/%d", i+1); id != want {
			t.Fatalf("%s: record %s stands where %s should", key, id, want)
		}
	}
	if len(ids) != n {
		t.Errorf("%s holds %d records, want %d", key, len(ids), n)
	}
}

func bothKinds(t *testing.T, run func(t *testing.T, f far, as string, driver func() uplink.Driver, server *rig.Server)) {
	for _, as := range []string{"stream", "list"} {
		t.Run(as, func(t *testing.T) {
			server := rig.Redis(t)
			run(t, far{connect(t, server.Addr), t}, as, func() uplink.Driver {
				return exactly{&redis.Config{Address: server.Addr, As: as, Key: "k"}}
			}, server)
		})
	}
}

func TestTheOlderOfTwoGatewaysIsFencedAndSaysSo(t *testing.T) {
	bothKinds(t, func(t *testing.T, f far, as string, driver func() uplink.Driver, _ *rig.Server) {
		older := run(t, driver(), uplinktest.NewLog(), "")
		older.send(100)
		copied := &gateway{log: uplinktest.NewLog()}
		copied.append(100) // they are there already
		newer := run(t, driver(), copied.log, "")
		newer.send(50)
		f.holds(as, "k", 150)
		older.append(60) // only to be held
		if s := older.says("another gateway with the id gw1 writes this " + as); !s.Config {
			t.Errorf("Status = %+v, want an error that a person must mend", s)
		}
		for range 20 { // the older one tries again and again, and must not take the fence back
			newer.send(5)
			time.Sleep(5 * time.Millisecond)
		}
		if s := newer.Status(); s.Error != "" || older.log.Settled() != 100 {
			t.Errorf("newer %+v, older settled %d, want no error and 100", s, older.log.Settled())
		}
		f.holds(as, "k", 250)
	})
}

func TestAFenceThatIsAsOldAsOursAndAnothersIsNotTakenBack(t *testing.T) {
	server := rig.Redis(t)
	f := far{connect(t, server.Addr), t}
	g := run(t, exactly{&redis.Config{Address: server.Addr, Key: "k"}}, uplinktest.NewLog(), "")
	g.send(10)
	f.do("SET", "{k}:fence", "1:another") // a fail-over lost our token, and another gateway came first
	g.append(1)
	g.says("another gateway with the id gw1")
	before := g.Status().NextTry
	for deadline := time.Now().Add(patient); !g.Status().NextTry.After(before) && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	if got := f.Get(t.Context(), "{k}:fence").Val(); got != "1:another" || g.log.Settled() != 10 {
		t.Errorf("fence %s, %d settled; want 1:another, 10", got, g.log.Settled())
	}
}

func TestWhatAServerHasLostIsSentAgainFromThere(t *testing.T) {
	bothKinds(t, func(t *testing.T, f far, as string, driver func() uplink.Driver, server *rig.Server) {
		dir := f.ConfigGet(t.Context(), "dir").Val()["dir"]
		files, old := filepath.Join(dir, "appendonlydir"), filepath.Join(t.TempDir(), "old")
		g := run(t, driver(), uplinktest.NewLog(), "")
		g.send(200)
		if err := os.CopyFS(old, os.DirFS(files)); err != nil {
			t.Fatal(err)
		}
		g.send(300)
		f.holds(as, "k", 500)
		server.Kill9()
		if err := os.RemoveAll(files); err != nil {
			t.Fatal(err)
		}
		if err := os.CopyFS(files, os.DirFS(old)); err != nil {
			t.Fatal(err)
		}
		server.Start()
		f.holds(as, "k", 200)
		g.send(100)
		f.holds(as, "k", 600)
	})
}

func TestAFailOverThatTheConnectionSurvivesIsNoticed(t *testing.T) {
	bothKinds(t, func(t *testing.T, f far, as string, driver func() uplink.Driver, _ *rig.Server) {
		g := run(t, driver(), uplinktest.NewLog(), "")
		g.send(200)
		if as == "list" {
			f.do("EVAL", "redis.call('LTRIM','k',0,149) return redis.call('SET','{k}:cursor','7-150')", 0)
		} else {
			f.do("EVAL", "for i=151,200 do redis.call('XDEL','k','7-'..i) end redis.call('XSETID','k','7-150') return redis.call('SET','{k}:cursor','7-150')", 0)
		}
		g.send(1)
		f.holds(as, "k", 201)
		if g.log.Again() != 0 && g.log.Settled() != 201 {
			t.Errorf("settled %d, want 201", g.log.Settled())
		}
		f.do("DEL", "{k}:fence")
		g.send(50)
		f.do("SET", "{k}:fence", "1:somebody-before") // an older token is what a fail-over leaves, too
		g.send(50)
		f.holds(as, "k", 301)
		if s := g.Status(); s.Error != "" {
			t.Errorf("Error = %q, want none any more", s.Error)
		}
	})
}

func TestALostCursorKeyIsFoundAgain(t *testing.T) {
	bothKinds(t, func(t *testing.T, f far, as string, driver func() uplink.Driver, _ *rig.Server) {
		log := uplinktest.NewLog()
		g := run(t, driver(), log, "")
		g.send(100)
		f.do("DEL", "{k}:cursor")
		g.send(100) // in the same session
		g.stop()
		f.do("DEL", "{k}:cursor")
		again := &gateway{log: uplinktest.NewLog()} // the gateway's own cursor is behind
		again.append(200)
		g = run(t, driver(), again.log, "")
		g.send(100)
		f.holds(as, "k", 300)
		if got := f.Get(t.Context(), "{k}:cursor").Val(); got != "7-300" {
			t.Errorf("cursor %q, want 7-300", got)
		}
	})
}

func TestADeadLetterAtTheEndMovesTheFarCursor(t *testing.T) {
	server := rig.Redis(t, "--proto-max-bulk-len", "1mb")
	f := far{connect(t, server.Addr), t}
	log := uplinktest.NewLog()
	driver := exactly{&redis.Config{Address: server.Addr, Key: "k"}}
	g := run(t, driver, log, "")
	g.append(5)
	log.Append(tooLarge())
	g.settle()
	g.stop() // mostly before the far cursor has passed it: the next session sees to that
	g = run(t, driver, log, "")
	for deadline := time.Now().Add(patient); f.Get(t.Context(), "{k}:cursor").Val() != "7-6"; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("cursor %q, want 7-6", f.Get(t.Context(), "{k}:cursor").Val())
		}
	}
	g.stop()
	if len(log.Letters()) != 1 || log.Again() != 1 { // the letter itself, which was not kept in memory
		t.Errorf("letters %v, %d given out again; want one, one", log.Letters(), log.Again())
	}
	f.holds("stream", "k", 5)
}

func TestFlushedScriptsAndAFullServerNeitherLoseNorDouble(t *testing.T) {
	bothKinds(t, func(t *testing.T, f far, as string, driver func() uplink.Driver, _ *rig.Server) {
		g := run(t, driver(), uplinktest.NewLog(), "")
		for range 30 {
			f.do("SCRIPT", "FLUSH")
			g.send(40)
		}
		if n := g.log.Again(); n != 0 {
			t.Errorf("%d records were sent again: the session did not survive a flush", n)
		}
		f.do("CONFIG", "SET", "maxmemory", 1)
		g.append(100)
		if s := g.says("reached its maxmemory"); s.Config {
			t.Errorf("Status = %+v, want an error that goes away by itself", s)
		}
		f.do("CONFIG", "SET", "maxmemory", 0)
		g.send(100)
		f.holds(as, "k", 1400)
	})
}

func TestAnOperatorMaySetTheCursorBack(t *testing.T) {
	bothKinds(t, func(t *testing.T, f far, as string, driver func() uplink.Driver, _ *rig.Server) {
		g := run(t, driver(), uplinktest.NewLog(), "")
		g.send(80)
		g.stop()
		old := uplinktest.NewLog() // of a disk that was put back
		g = run(t, driver(), old, "")
		g.append(1)
		g.says("an old copy of the gateway's disk was put back")
		g.stop()
		f.holds(as, "k", 80)
		g = run(t, driver(), old, uplink.Restart)
		g.append(49)
		g.settle()
		g.stop()
		want, n := "7-50", f.LLen
		if as == "stream" {
			want, n = "7-50@7-80", f.XLen
		}
		if n, at := n(t.Context(), "k").Val(), f.Get(t.Context(), "{k}:cursor").Val(); n != 130 || at != want {
			t.Errorf("%d records, cursor %s; want 130, %s", n, at, want)
		}
		g = run(t, driver(), old, "") // the next start needs no choice
		g.send(50)
		g.stop()
		if n := n(t.Context(), "k").Val(); n != 180 {
			t.Errorf("%d records, want 180", n)
		}
		if as == "stream" {
			last := f.XRevRangeN(t.Context(), "k", "+", "-", 1).Val()
			if len(last) != 1 || last[0].ID != "7-180" || last[0].Values["id"] != "gw1/line/7/100" {
				t.Errorf("last entry %v, want 7-180 with record 100", last)
			}
		}
	})
}

func TestALogOfAnEarlierEpochGoesOnBehindALaterOneWhereAnOperatorSaysSo(t *testing.T) {
	server := rig.Redis(t)
	f := far{connect(t, server.Addr), t}
	cfg := &redis.Config{Address: server.Addr, Key: "k"}
	if err := sendTo(t, cfg, 9, 1, 2, 3); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		epoch uint64
		reset bool
		ids   string
	}{
		{7, true, "9-1 9-2 9-3 9-4 9-5"},
		{8, false, "9-1 9-2 9-3 9-4 9-5 9-6 9-7"},
		{10, false, "9-1 9-2 9-3 9-4 9-5 9-6 9-7 10-1 10-2"},
	} {
		s, err := exactly{cfg}.Open(t.Context(), uplink.Env{Gateway: "gw1", Stream: "line", Epoch: step.epoch})
		if err != nil {
			t.Fatal(err)
		}
		if step.reset {
			if err := s.(uplink.Resumer).Reset(t.Context(), uplink.FarCursor{Epoch: step.epoch}); err != nil {
				t.Fatal(err)
			}
		}
		if err := send(t, s, step.epoch, 1, 2); err != nil {
			t.Fatal(err)
		}
		var ids []string
		for _, e := range f.XRange(t.Context(), "k", "-", "+").Val() {
			ids = append(ids, e.ID)
		}
		if got := strings.Join(ids, " "); got != step.ids {
			t.Errorf("epoch %d: ids %s, want %s", step.epoch, got, step.ids)
		}
	}
}

func TestExactlyOnceSaysWhatIsWrong(t *testing.T) {
	server := rig.Redis(t)
	f := far{connect(t, server.Addr), t}
	at := func(key, as string) uplink.Driver {
		return exactly{&redis.Config{Address: server.Addr, Key: key, As: as}}
	}
	f.do("SET", "text", "not a stream")
	f.do("SET", "{fence}:fence", "mine")
	f.do("RPUSH", "foreign", "{}")
	f.do("RPUSH", "list", `{"epoch":7,"seq":1}`)
	f.do("ACL", "SETUSER", "half", "on", ">half", "~*", "+@read", "+@connection", "+@scripting", "+get", "+set", "-xadd")
	half := exactly{&redis.Config{Address: server.Addr, Key: "half", User: "half", Password: pipeline.NewSecret("half")}}
	uplinktest.RunFaults(t, []uplinktest.Fault{
		{
			Name: "the stream is something else", Driver: at("text", "stream"), Want: "holds something else", Config: true,
			Mend: func() { f.do("DEL", "text") },
		},
		{Name: "the stream is a list", Driver: at("list", "stream"), Want: "want a key that is free or a stream", Config: true},
		{
			Name: "a fence that is none", Driver: at("fence", "stream"), Want: "instead of NUMBER:INSTANCE", Config: true,
			Mend: func() { f.do("DEL", "{fence}:fence") },
		},
		{Name: "somebody else's list", Driver: at("foreign", "list"), Want: "did not write", Config: true},
		{Name: "no right to append", Driver: half, Want: "no rights", Config: true, Mend: func() { f.do("ACL", "SETUSER", "half", "+xadd") }},
	})
}
