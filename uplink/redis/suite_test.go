package redis_test

import (
	"testing"

	"edgegateway/pipeline"
	"edgegateway/test/rig"
	"edgegateway/uplink"
	"edgegateway/uplink/redis"
	"edgegateway/uplink/uplinktest"
)

func suite(as string, mode uplink.Delivery) uplinktest.Suite {
	key := "edge:{gateway}:"
	s := uplinktest.Suite{
		Name: "redis " + string(mode), Delivery: mode,
		// The smallest bound that Redis allows on a value, so that a record can be refused.
		Server:  func(tb rig.TB) *rig.Server { return rig.Redis(tb, "--proto-max-bulk-len", "1mb") },
		Driver:  func(addr, place string) uplink.Driver { return &redis.Config{Address: addr, As: as, Key: key + place} },
		Read:    read,
		Resumes: mode == uplink.ExactlyOnce,
		Refused: tooLarge,
		Delete: func(t testing.TB, addr, place string) {
			if err := connect(t, addr).Del(t.Context(), "edge:gw1:"+place).Err(); err != nil {
				t.Fatalf("delete the key: %v", err)
			}
		},
		Access: func(t testing.TB, addr, place string) (uplink.Driver, func(), func()) {
			c := connect(t, addr)
			do := func(args ...any) {
				if err := c.Do(t.Context(), args...).Err(); err != nil {
					t.Fatalf("%v: %v", args, err)
				}
			}
			do("ACL", "SETUSER", "gw", "on", ">open", "~*", "+@all")
			cfg := &redis.Config{Address: addr, As: as, Key: key + place, User: "gw", Password: pipeline.NewSecret("open")}
			return cfg, func() {
				do("ACL", "SETUSER", "gw", "resetpass")
				do("CLIENT", "KILL", "USER", "gw")
			}, func() { do("ACL", "SETUSER", "gw", ">open") }
		},
	}
	switch as {
	case "list":
		s.Name, s.Read = "redis-list "+string(mode), readList
	case "latest":
		s.Name, s.Read, s.Latest = "redis-latest "+string(mode), readLatest, true
		s.Delete = func(t testing.TB, addr, place string) {
			for _, key := range keysOf(t, addr, place) {
				if err := connect(t, addr).Del(t.Context(), key).Err(); err != nil {
					t.Fatalf("delete the key: %v", err)
				}
			}
		}
	}
	return s
}

func TestSuiteAtLeastOnce(t *testing.T)             { conforms(t, "stream", uplink.AtLeastOnce) }
func TestSuiteEffectivelyOnce(t *testing.T)         { conforms(t, "stream", uplink.EffectivelyOnce) }
func TestSuiteExactlyOnce(t *testing.T)             { conforms(t, "stream", uplink.ExactlyOnce) }
func TestSuiteOfListsAtLeastOnce(t *testing.T)      { conforms(t, "list", uplink.AtLeastOnce) }
func TestSuiteOfListsEffectivelyOnce(t *testing.T)  { conforms(t, "list", uplink.EffectivelyOnce) }
func TestSuiteOfLatestAtLeastOnce(t *testing.T)     { conforms(t, "latest", uplink.AtLeastOnce) }
func TestSuiteOfLatestEffectivelyOnce(t *testing.T) { conforms(t, "latest", uplink.EffectivelyOnce) }
func TestSuiteOfListsExactlyOnce(t *testing.T)      { conforms(t, "list", uplink.ExactlyOnce) }

func conforms(t *testing.T, as string, mode uplink.Delivery) {
	t.Parallel() // it waits more than it works
	uplinktest.Run(t, suite(as, mode))
}

func TestKillsAtLeastOnce(t *testing.T)        { kills(t, "stream", uplink.AtLeastOnce) }
func TestKillsEffectivelyOnce(t *testing.T)    { kills(t, "stream", uplink.EffectivelyOnce) }
func TestKillsExactlyOnce(t *testing.T)        { kills(t, "stream", uplink.ExactlyOnce) }
func TestKillsOfListsExactlyOnce(t *testing.T) { kills(t, "list", uplink.ExactlyOnce) }
func TestKillsOfLatest(t *testing.T)           { kills(t, "latest", uplink.EffectivelyOnce) }

// TestKillsLiveFirst has older records come after newer ones, which they must not replace.
func TestKillsLiveFirst(t *testing.T) {
	s := suite("latest", uplink.EffectivelyOnce)
	uplinktest.RunLiveFirstKills(t, s, s.Name, 12)
}

func kills(t *testing.T, as string, mode uplink.Delivery) {
	s := suite(as, mode)
	if n := uplinktest.RunKills(t, s, s.Name, 12); n != 0 { // the cursor beside the key tells a repeat in any mode
		t.Errorf("%d records are stored twice, want none", n)
	}
}

func TestBrokerKillsAtLeastOnce(t *testing.T) { brokerKills(t, "stream", uplink.AtLeastOnce) }

func TestBrokerKillsEffectivelyOnce(t *testing.T) { brokerKills(t, "stream", uplink.EffectivelyOnce) }

func TestBrokerKillsExactlyOnce(t *testing.T)        { brokerKills(t, "stream", uplink.ExactlyOnce) }
func TestBrokerKillsOfListsExactlyOnce(t *testing.T) { brokerKills(t, "list", uplink.ExactlyOnce) }

func brokerKills(t *testing.T, as string, mode uplink.Delivery) {
	s := suite(as, mode)
	if n := uplinktest.RunBrokerKills(t, s, s.Name, 3); n != 0 {
		t.Errorf("%d records are stored twice, want none", n)
	}
}

func TestControlWithoutDedup(t *testing.T) {
	s := suite("list", uplink.EffectivelyOnce)
	s.Driver = func(addr, place string) uplink.Driver {
		c := &redis.Config{Address: addr, As: "list", Key: "edge:{gateway}:" + place}
		c.WithoutDedup()
		return c
	}
	uplinktest.RunControl(t, s, "redis effectively_once without dedup", 4)
}

func TestControlWithoutPrefixDiscipline(t *testing.T) {
	for _, mode := range []uplink.Delivery{uplink.EffectivelyOnce, uplink.ExactlyOnce} {
		uplinktest.RunUndisciplined(t, suite("stream", mode))
	}
}

func TestAnOldImageOfTheDiskIsFoundOut(t *testing.T) {
	for _, as := range []string{"stream", "list"} {
		uplinktest.RunRestored(t, suite(as, uplink.ExactlyOnce))
		uplinktest.RunRestoredByID(t, suite(as, uplink.EffectivelyOnce))
	}
}

func TestTheOlderOfTwoGatewaysIsFencedWhateverItDoes(t *testing.T) {
	for _, as := range []string{"stream", "list"} {
		uplinktest.RunTwins(t, suite(as, uplink.ExactlyOnce))
	}
}
