package redis_test

import (
	"strings"
	"testing"

	client "github.com/redis/go-redis/v9"

	"edgegateway/pipeline"
	"edgegateway/test/rig"
	"edgegateway/uplink"
	"edgegateway/uplink/redis"
	"edgegateway/uplink/uplinktest"
)

func TestSuite(t *testing.T) {
	uplinktest.Run(t, uplinktest.Suite{
		// The smallest bound that Redis allows on a value, so that a record can be refused.
		Server: func(tb rig.TB) *rig.Server { return rig.Redis(tb, "--proto-max-bulk-len", "1mb") },
		Driver: func(addr, place string) uplink.Driver {
			return &redis.Config{Address: addr, Key: "edge:{gateway}:" + place}
		},
		Read: read,
		Refused: func() pipeline.Message {
			return pipeline.Message{Topic: "boiler/log", Value: pipeline.String(strings.Repeat("\x01", 250<<10))}
		},
	})
}

func connect(t testing.TB, addr string) *client.Client {
	t.Helper()
	c := client.NewClient(&client.Options{Addr: addr})
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
