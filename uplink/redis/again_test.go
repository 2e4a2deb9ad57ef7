package redis_test

import (
	"testing"

	client "github.com/redis/go-redis/v9"

	"edgegateway/test/rig"
	"edgegateway/uplink"
	"edgegateway/uplink/redis"
)

// TestWhatIsSentAgainHasAKeyOfItsOwn: its sequences begin anew, so at the key of its stream they would be taken for old ones.
func TestWhatIsSentAgainHasAKeyOfItsOwn(t *testing.T) {
	server := rig.Redis(t)
	c := client.NewClient(&client.Options{Addr: server.Addr})
	t.Cleanup(func() { _ = c.Close() }) // the test is over
	for _, test := range []struct {
		as, key, at, again string
		delivery           uplink.Delivery
	}{
		{"stream", "edge:{gateway}:{stream}", "edge:gw1:line", "edge:gw1:line!far", uplink.ExactlyOnce},
		{"list", "all:{gateway}", "all:gw1", "all:gw1!far", uplink.ExactlyOnce},
		{"latest", "now:{topic}:{stream}", "now:t:line", "now:t:line!far", uplink.EffectivelyOnce},
	} {
		t.Run(test.as, func(t *testing.T) {
			cfg := &redis.Config{Address: server.Addr, As: test.as, Key: test.key}
			env := uplink.Env{Gateway: "gw1", Stream: "line", Epoch: 7, Uplink: "far", Promise: uplink.Promise{Delivery: test.delivery}}
			again := env
			again.Stream, again.Route = "line!far", "line"
			for _, e := range []uplink.Env{env, again} {
				s, err := cfg.Open(t.Context(), e)
				if err != nil {
					t.Fatal(err)
				}
				if err := send(t, s, 7, 1, 2, 3); err != nil {
					t.Fatal(err)
				}
			}
			for _, key := range []string{test.at, test.again} {
				var n int64
				var err error
				switch test.as {
				case "stream":
					n, err = c.XLen(t.Context(), key).Result()
				case "list":
					n, err = c.LLen(t.Context(), key).Result()
				default:
					n, err = c.HGet(t.Context(), key, "seq").Int64() // the newest of the three
				}
				if err != nil || n != 3 {
					t.Errorf("%s: %d, %v, want 3", key, n, err)
				}
			}
			keys, err := c.Keys(t.Context(), "*line!far*:cursor").Result()
			if test.as == "stream" && (err != nil || len(keys) != 1) {
				t.Errorf("cursors of what is sent again: %v, %v", keys, err)
			}
		})
	}
}
