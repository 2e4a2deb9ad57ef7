package redis_test

import (
	"testing"

	"edgegateway/pipeline"
	"edgegateway/test/rig"
	"edgegateway/uplink"
	"edgegateway/uplink/redis"
)

func TestWhatTheKeyKnows(t *testing.T) {
	const epoch = 7
	server := rig.Redis(t)
	for _, as := range []string{"stream", "list", "latest"} {
		t.Run(as, func(t *testing.T) {
			driver := &redis.Config{Address: server.Addr, Key: "edge:{gateway}:known-" + as, As: as}
			open := func() uplink.Session {
				s, err := driver.Open(t.Context(), uplink.Env{Gateway: "gw1", Stream: "line", Epoch: epoch, Uplink: "far"})
				if err != nil {
					t.Fatal(err)
				}
				return s
			}
			knows := func(seq int, epoch uint64, want bool) {
				t.Helper()
				s := open()
				defer s.Close()
				id := pipeline.RecordID{Gateway: "gw1", Stream: "line", Epoch: epoch, Seq: uint64(seq)}
				if got, err := s.(uplink.Knower).Knows(t.Context(), id); err != nil || got != want {
					t.Errorf("Knows(%d) = %v, %v; want %v", seq, got, err, want)
				}
			}
			told := as != "latest" // a hash takes no record for a repeat
			knows(1, epoch, false)
			if err := send(t, open(), epoch, 1, 5, 20); err != nil {
				t.Fatal(err)
			}
			knows(20, epoch, told)
			knows(21, epoch, false)
			knows(20, epoch+1, false)
			if err := send(t, open(), epoch, 21); err != nil { // asking has changed nothing
				t.Fatal(err)
			}
			knows(21, epoch, told)
		})
	}
}
