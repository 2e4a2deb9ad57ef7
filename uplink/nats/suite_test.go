package nats_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"edgegateway/pipeline"
	"edgegateway/test/rig"
	"edgegateway/uplink"
	"edgegateway/uplink/nats"
	"edgegateway/uplink/uplinktest"
)

// whoMay are the users of a server at which the tests need not sign in. It waits for sign-ins on lines of 2 s there and back.
func whoMay(gw string) string {
	return `authorization { timeout: 10, users: [ { user: admin, password: admin }` + gw + ` ] }
no_auth_user: admin`
}

// The right of the user gw, as long as he has one.
const gwMay = `, { user: gw, password: open }`

func suite(mode uplink.Delivery, options rig.NATSOptions) uplinktest.Suite {
	var server *rig.Server
	options.Settings = whoMay(gwMay)
	driver := func(addr, place string) *nats.Config {
		cfg := at(addr, place)
		cfg.Batch = 200 // on the slow line one takes less than half the time after which the suite's runner gives up
		return cfg
	}
	s := uplinktest.Suite{
		Name: "nats " + string(mode), Delivery: mode,
		Server:  func(tb rig.TB) *rig.Server { server = rig.NATS(tb, options); return server },
		Prepare: func(t testing.TB, addr, place string) { makeStream(t, addr, streamFor(mode, place)) },
		Driver:  func(addr, place string) uplink.Driver { return driver(addr, place) },
		Read:    read,
		Resumes: mode == uplink.ExactlyOnce,
		Refused: func() pipeline.Message {
			return pipeline.Message{Topic: "boiler/log", Value: pipeline.Bytes(bytes.Repeat([]byte("x"), 5000))}
		},
		Delete: func(t testing.TB, addr, place string) {
			if err := connect(t, addr).DeleteStream(t.Context(), place); err != nil {
				t.Fatalf("delete the stream: %v", err)
			}
		},
		Access: func(_ testing.TB, addr, place string) (uplink.Driver, func(), func()) {
			cfg := driver(addr, place)
			cfg.User, cfg.Password = "gw", pipeline.NewSecret("open")
			return cfg, func() { server.Reload(whoMay("")) }, func() { server.Reload(whoMay(gwMay)) }
		},
	}
	return s
}

func streamFor(mode uplink.Delivery, place string) jetstream.StreamConfig {
	if mode == uplink.ExactlyOnce {
		return atomic(place)
	}
	// The window is longer than any outage of the suite's long form.
	return jetstream.StreamConfig{Name: place, Subjects: []string{"edge.*." + place}, MaxMsgSize: 4000, Duplicates: 30 * time.Minute}
}

func TestSuiteAtLeastOnce(t *testing.T)     { conforms(t, uplink.AtLeastOnce) }
func TestSuiteEffectivelyOnce(t *testing.T) { conforms(t, uplink.EffectivelyOnce) }
func TestSuiteExactlyOnce(t *testing.T)     { conforms(t, uplink.ExactlyOnce) }

func conforms(t *testing.T, mode uplink.Delivery) {
	t.Parallel() // it waits more than it works
	uplinktest.Run(t, suite(mode, rig.NATSOptions{}))
}

func TestKillsAtLeastOnce(t *testing.T)     { kills(t, uplink.AtLeastOnce) }
func TestKillsEffectivelyOnce(t *testing.T) { kills(t, uplink.EffectivelyOnce) }
func TestKillsExactlyOnce(t *testing.T)     { kills(t, uplink.ExactlyOnce) }

func TestKillsLiveFirst(t *testing.T) {
	s := suite(uplink.EffectivelyOnce, rig.NATSOptions{})
	if n := uplinktest.RunLiveFirstKills(t, s, s.Name, 12); n != 0 {
		t.Errorf("%d records are stored twice, want none", n)
	}
}

func kills(t *testing.T, mode uplink.Delivery) {
	s := suite(mode, rig.NATSOptions{})
	if n := uplinktest.RunKills(t, s, s.Name, 12); n != 0 { // within the duplicate window none is there twice in any mode
		t.Errorf("%d records are stored twice, want none", n)
	}
}

func TestBrokerKillsAtLeastOnce(t *testing.T)     { brokerKills(t, uplink.AtLeastOnce) }
func TestBrokerKillsEffectivelyOnce(t *testing.T) { brokerKills(t, uplink.EffectivelyOnce) }
func TestBrokerKillsExactlyOnce(t *testing.T)     { brokerKills(t, uplink.ExactlyOnce) }

func brokerKills(t *testing.T, mode uplink.Delivery) {
	s := suite(mode, rig.NATSOptions{SyncAlways: true})
	if n := uplinktest.RunBrokerKills(t, s, s.Name, 3); n != 0 {
		t.Errorf("%d records are stored twice, want none", n)
	}
}

func TestControlCursorOutsideTheBatch(t *testing.T) {
	s := suite(uplink.ExactlyOnce, rig.NATSOptions{})
	s.Driver = func(addr, place string) uplink.Driver { return nats.Loose{Config: at(addr, place)} }
	uplinktest.RunControl(t, s, "nats exactly_once with the cursor outside the batch", 12)
}

func TestControlWithoutDedup(t *testing.T) {
	s := suite(uplink.EffectivelyOnce, rig.NATSOptions{})
	s.Driver = func(addr, place string) uplink.Driver { return nats.WithoutIDs{Config: at(addr, place)} }
	uplinktest.RunControl(t, s, "nats effectively_once without dedup", 6)
}

func TestControlWithoutPrefixDiscipline(t *testing.T) {
	for _, mode := range []uplink.Delivery{uplink.EffectivelyOnce, uplink.ExactlyOnce} {
		uplinktest.RunUndisciplined(t, suite(mode, rig.NATSOptions{}))
	}
}

func TestAnOldImageOfTheDiskIsFoundOut(t *testing.T) {
	uplinktest.RunRestored(t, suite(uplink.ExactlyOnce, rig.NATSOptions{}))
	uplinktest.RunRestoredByID(t, suite(uplink.EffectivelyOnce, rig.NATSOptions{}))
}

func TestTheOlderOfTwoGatewaysIsFencedAndSaysSo(t *testing.T) {
	uplinktest.RunTwins(t, suite(uplink.ExactlyOnce, rig.NATSOptions{}))
}
