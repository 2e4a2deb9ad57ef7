package redis_test

import (
	"encoding/json"
	"net"
	"strings"
	"testing"

	client "github.com/redis/go-redis/v9"

	"edgegateway/pipeline"
	"edgegateway/test/rig"
	"edgegateway/uplink"
	"edgegateway/uplink/redis"
	"edgegateway/uplink/uplinktest"
)

// largeText grows sixfold in JSON.
var largeText = strings.Repeat("\x01", 250<<10)

func recordID(t testing.TB, payload string) string {
	t.Helper()
	var record struct{ ID string }
	if err := json.Unmarshal([]byte(payload), &record); err != nil {
		t.Fatalf("%s: %v", payload, err)
	}
	return record.ID
}

func connect(t testing.TB, addr string) *client.Client {
	t.Helper()
	c := client.NewClient(&client.Options{Addr: addr, ReadTimeout: patient})
	t.Cleanup(func() { _ = c.Close() }) // the test is over
	return c
}

func read(t testing.TB, addr, place string) []uplinktest.Stored {
	t.Helper()
	entries, err := connect(t, addr).XRange(t.Context(), "edge:gw1:"+place, "-", "+").Result()
	if err != nil {
		t.Fatalf("read back: %v", err)
	}
	out := make([]uplinktest.Stored, len(entries))
	for i, e := range entries {
		out[i] = uplinktest.Stored{ID: e.Values["id"].(string), Payload: e.Values["payload"].(string)}
	}
	return out
}

func TestFaults(t *testing.T) {
	server := rig.Redis(t, "--requirepass", "open")
	c := client.NewClient(&client.Options{Addr: server.Addr, Password: "open"})
	t.Cleanup(func() { _ = c.Close() }) // the test is over
	at := func(key string) *redis.Config {
		return &redis.Config{Address: server.Addr, Password: pipeline.NewSecret("open"), Key: key}
	}
	do := func(args ...any) {
		t.Helper()
		if err := c.Do(t.Context(), args...).Err(); err != nil {
			t.Fatalf("%v: %v", args, err)
		}
	}
	do("SET", "text", "not a stream")
	do("SET", "{newer}:cursor", "8-1")
	do("SET", "{odd}:cursor", "mine")
	do("XADD", "foreign", "99-1", "a", "b")
	do("SET", "{foreign}:cursor", "7-0")
	do("ACL", "SETUSER", "reader", "on", ">reader", "~*", "+@read", "+ping", "+config|get", "+hello", "+auth")
	wrong := at("wrong")
	wrong.Password = pipeline.NewSecret("shut")
	reader := at("rights")
	reader.User, reader.Password = "reader", pipeline.NewSecret("reader")
	encrypted := at("tls")
	encrypted.TLS.Enabled = true
	database := at("db")
	database.DB = 99
	uplinktest.RunFaults(t, []uplinktest.Fault{
		{Name: "wrong password", Driver: wrong, Want: "wrong user or password", Config: true},
		{Name: "no rights", Driver: reader, Want: "no rights", Config: true},
		{Name: "no such database", Driver: database, Want: "no such database", Config: true},
		{Name: "TLS to a server without it", Driver: encrypted, Want: "does it speak TLS"},
		{
			Name: "the key holds something else", Driver: at("text"), Want: "holds something else", Config: true,
			Mend: func() { do("DEL", "text") },
		},
		{Name: "an older log", Driver: at("newer"), Want: "newer log", Config: true},
		{
			Name: "a cursor that is none", Driver: at("odd"), Want: "instead of EPOCH-SEQUENCE", Config: true,
			Mend: func() { do("DEL", "{odd}:cursor") },
		},
		{Name: "somebody else writes to the stream", Driver: at("foreign"), Want: "did not write", Config: true},
	})
	do("CONFIG", "SET", "maxmemory", "1")
	uplinktest.RunFaults(t, []uplinktest.Fault{
		{Name: "the server is full", Driver: at("full"), Want: "maxmemory", Config: false, Mend: func() {
			do("CONFIG", "SET", "maxmemory", "0")
		}},
	})
}

func TestNewEpochGoesOnAfterTheOldOneAndALostCursorIsFoundAgain(t *testing.T) {
	server := rig.Redis(t)
	c := connect(t, server.Addr)
	send := func(epoch uint64, seqs ...uint64) {
		t.Helper()
		cfg := &redis.Config{Address: server.Addr, Key: "k"}
		s, err := cfg.Open(t.Context(), uplink.Env{Gateway: "gw1", Stream: "line", Epoch: epoch})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		var recs []uplink.Record
		for _, seq := range seqs {
			recs = append(recs, uplink.Record{ID: pipeline.RecordID{Gateway: "gw1", Stream: "line", Epoch: epoch, Seq: seq}, JSON: []byte("{}")})
		}
		if err := sendAll(t, s, recs); err != nil {
			t.Errorf("epoch %d, records %v: %v", epoch, seqs, err)
		}
	}
	const big = 1<<53 + 1 // beyond what a number of Lua holds
	send(1, big, big+1)
	send(1, big, big+1, big+2) // repeated
	if err := c.Del(t.Context(), "{k}:cursor").Err(); err != nil {
		t.Fatal(err)
	}
	send(1, big+1, big+2, big+3) // repeated, without the cursor
	send(2, 1, 2)                // a new log begins again at 1
	send(2, 2, 3)
	entries, err := c.XRange(t.Context(), "k", "-", "+").Result()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.ID)
	}
	want := "1-9007199254740993 1-9007199254740994 1-9007199254740995 1-9007199254740996 2-1 2-2 2-3"
	if s := strings.Join(got, " "); s != want {
		t.Errorf("ids\n%s, want\n%s", s, want)
	}
	if cursor := c.Get(t.Context(), "{k}:cursor").Val(); cursor != "2-3" {
		t.Errorf("cursor %q, want 2-3", cursor)
	}
}

func splitAddr(addr string) (host, port string, err error) { return net.SplitHostPort(addr) }
