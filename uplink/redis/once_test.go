package redis_test

import (
	"context"
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
		Resumes: true,
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
	if n := uplinktest.RunKills(t, suite(as, inExactlyOnce), "redis exactly_once", kills); n != 0 {
		t.Errorf("%d records are stored twice, want none", n)
	}
}

func TestKilledGatewayDoublesWithoutDedup(t *testing.T) {
	doubled := uplinktest.RunKills(t, suite("list", func(c *redis.Config) uplink.Driver {
		c.WithoutDedup()
		return c
	}), "redis without dedup", 4)
	if !uplinktest.IsChild() && doubled == 0 {
		t.Error("no record is stored twice: the suite would not see it")
	}
}

func tooLarge() pipeline.Message {
	return pipeline.Message{Topic: "boiler/log", Value: pipeline.String(largeText)}
}
