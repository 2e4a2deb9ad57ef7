package redis_test

import (
	"context"
	"testing"

	"edgegateway/pipeline"
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

func tooLarge() pipeline.Message {
	return pipeline.Message{Topic: "boiler/log", Value: pipeline.String(largeText)}
}
