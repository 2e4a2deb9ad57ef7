package redis_test

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"testing"

	"edgegateway/pipeline"
	"edgegateway/test/rig"
	"edgegateway/uplink"
	"edgegateway/uplink/redis"
	"edgegateway/uplink/uplinktest"
)

// exactly is the driver in the mode of these tests.
type exactly struct{ *redis.Config }

func (d exactly) Open(ctx context.Context, env uplink.Env) (uplink.Session, error) {
	env.Promise = uplink.Promise{Delivery: uplink.ExactlyOnce, Order: uplink.OrderStrict}
	return d.Config.Open(ctx, env)
}

func suite(as string, driver func(*redis.Config) uplink.Driver) uplinktest.Suite {
	s := uplinktest.Suite{
		Server: func(tb rig.TB) *rig.Server { return rig.Redis(tb, "--proto-max-bulk-len", "1mb") },
		Driver: func(addr, place string) uplink.Driver {
			return driver(&redis.Config{Address: addr, As: as, Key: "edge:{gateway}:" + place})
		},
		Read:    read,
		Refused: tooLarge,
	}
	if as == "list" {
		s.Read = readList
	}
	return s
}

func inExactlyOnce(c *redis.Config) uplink.Driver { return exactly{c} }

func readList(t testing.TB, addr, place string) []uplinktest.Stored {
	t.Helper()
	elements, err := connect(t, addr).LRange(t.Context(), "edge:gw1:"+place, 0, -1).Result()
	if err != nil {
		t.Fatalf("read back: %v", err)
	}
	out := make([]uplinktest.Stored, len(elements))
	for i, e := range elements {
		out[i] = uplinktest.Stored{ID: recordID(t, e), Payload: e}
	}
	return out
}

func TestSuiteOfStreamsExactlyOnce(t *testing.T) { uplinktest.Run(t, suite("stream", inExactlyOnce)) }
func TestSuiteOfListsExactlyOnce(t *testing.T)   { uplinktest.Run(t, suite("list", inExactlyOnce)) }

func TestKilledGatewayOfAStreamNeitherLosesNorDoubles(t *testing.T) { killed(t, "stream") }
func TestKilledGatewayOfAListNeitherLosesNorDoubles(t *testing.T)   { killed(t, "list") }

func killed(t *testing.T, as string) {
	kills := 12
	if n, err := strconv.Atoi(os.Getenv("UPLINK_KILLS")); err == nil {
		kills = n // the long form
	}
	count, parent := uplinktest.KillGateway(t, suite(as, inExactlyOnce), kills)
	if !parent {
		return
	}
	fmt.Fprintf(os.Stdout, "kill redis exactly_once: %v\n", count)
	t.Logf("as %s: %v", as, count)
	if count.Lost != 0 || count.Doubled != 0 || count.Sent == 0 {
		t.Errorf("%v, want none lost or doubled", count)
	}
}

func TestKilledGatewayDoublesWithoutDedup(t *testing.T) {
	count, parent := uplinktest.KillGateway(t, suite("list", func(c *redis.Config) uplink.Driver {
		c.WithoutDedup()
		return c
	}), 4)
	if parent && (count.Doubled == 0 || count.Lost != 0) {
		t.Errorf("%v, want some doubled: this run sees whether the suite sees", count)
	}
}

func tooLarge() pipeline.Message {
	return pipeline.Message{Topic: "boiler/log", Value: pipeline.String(largeText)}
}
