package kafka_test

import (
	"bytes"
	"os"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"edgegateway/pipeline"
	"edgegateway/test/rig"
	"edgegateway/uplink"
	"edgegateway/uplink/uplinktest"
)

// suite is what the shared suite needs to know of a mode. settings are the broker's.
func suite(mode uplink.Delivery, settings ...string) uplinktest.Suite {
	refused := 0
	driver := func(addr, place string) uplink.Driver {
		e := exactly(addr, place+"-{gateway}")
		e.Uplink, e.Plain = place, mode != uplink.ExactlyOnce
		return e
	}
	settings = append(settings, "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer", "allow.everyone.if.no.acl.found=true")
	s := uplinktest.Suite{
		Name: "kafka " + string(mode), Delivery: mode,
		Server:  func(tb rig.TB) *rig.Server { return rig.Kafka(tb, settings...) },
		Prepare: prepare,
		Driver:  driver,
		Read:    readCommitted,
		Refused: func() pipeline.Message {
			if refused++; refused%2 == 1 { // refused together with the whole batch that it is in
				return pipeline.Message{Topic: "boiler/late", Key: "boiler", Time: time.Now().AddDate(10, 0, 0)}
			}
			return pipeline.Message{Topic: "boiler/log", Key: "boiler", Value: pipeline.Bytes(bytes.Repeat([]byte("x"), 150_000))}
		},
		Delete: func(t testing.TB, addr, place string) {
			admin := kadm.NewClient(connect(t, addr))
			if _, err := admin.DeleteTopic(t.Context(), place+"-gw1"); err != nil {
				t.Fatalf("delete the topic: %v", err)
			}
			// The broker answers before it knows of that itself, and takes records until then.
			for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
				topics, err := admin.ListTopics(t.Context(), place+"-gw1")
				if err == nil && !topics.Has(place+"-gw1") {
					return
				}
				if time.Now().After(deadline) {
					t.Fatalf("the topic does not go: %v, %v", err, topics)
				}
			}
		},
		Access: func(t testing.TB, addr, place string) (uplink.Driver, func(), func()) {
			admin := kadm.NewClient(connect(t, addr))
			denied := func() *kadm.ACLBuilder {
				return kadm.NewACLs().ResourcePatternType(kadm.ACLPatternLiteral).Topics(place + "-gw1").
					Operations(kadm.OpWrite).Deny("User:ANONYMOUS").DenyHosts("*")
			}
			return driver(addr, place),
				func() {
					if made, err := admin.CreateACLs(t.Context(), denied()); err != nil || made[0].Err != nil {
						t.Errorf("deny: %v %+v", err, made)
					}
				},
				func() {
					if gone, err := admin.DeleteACLs(t.Context(), denied()); err != nil || gone[0].Err != nil {
						t.Errorf("allow again: %v %+v", err, gone)
					}
				}
		},
		Doubles:       mode != uplink.ExactlyOnce,
		Resumes:       mode == uplink.ExactlyOnce,
		Interruptions: 1, // a start takes five seconds
	}
	return s
}

func TestSuiteAtLeastOnce(t *testing.T) { uplinktest.Run(t, suite(uplink.AtLeastOnce)) }
func TestSuiteExactlyOnce(t *testing.T) { uplinktest.Run(t, suite(uplink.ExactlyOnce)) }

func TestKillsAtLeastOnce(t *testing.T) {
	s := suite(uplink.AtLeastOnce)
	n := uplinktest.RunKills(t, s, s.Name, 10)
	t.Logf("%d records are there twice: what was in flight", n)
}

func TestKillsLiveFirst(t *testing.T) {
	s := suite(uplink.AtLeastOnce)
	n := uplinktest.RunLiveFirstKills(t, s, s.Name, 12)
	t.Logf("%d records are there twice: what was in flight", n)
}

func TestKillsExactlyOnce(t *testing.T) {
	s := suite(uplink.ExactlyOnce)
	if n := uplinktest.RunKills(t, s, s.Name, 12); n != 0 {
		t.Errorf("%d records are there twice, want none", n)
	}
}

// A broker that has each record on its disk before it confirms.
const syncEach = "log.flush.interval.messages=1"

func TestBrokerKillsAtLeastOnce(t *testing.T) {
	s := suite(uplink.AtLeastOnce, syncEach)
	n := uplinktest.RunBrokerKills(t, s, s.Name, 2)
	t.Logf("%d records are there twice: what was in flight", n)
}

func TestBrokerKillsExactlyOnce(t *testing.T) {
	s := suite(uplink.ExactlyOnce, syncEach)
	if n := uplinktest.RunBrokerKills(t, s, s.Name, 2); n != 0 {
		t.Errorf("%d records are there twice, want none", n)
	}
}

func TestControlCursorOutsideTheTransaction(t *testing.T) {
	s := suite(uplink.ExactlyOnce)
	s.Driver = func(addr, place string) uplink.Driver {
		e := exactly(addr, place+"-{gateway}")
		e.Outside = true
		commits := 0
		e.Committed = func() { // a life that is to die in the window dies in this one, between data and cursor
			if commits++; os.Getenv("EDGE_UPLINKTEST_WINDOW") != "" && commits > 2 {
				if self, err := os.FindProcess(os.Getpid()); err == nil {
					_ = self.Kill() // that is the purpose
				}
				select {} // until it has come
			}
		}
		return e
	}
	uplinktest.RunControl(t, s, "kafka exactly_once with the cursor outside the transaction", 6)
}

func TestControlWithoutPrefixDiscipline(t *testing.T) {
	uplinktest.RunUndisciplined(t, suite(uplink.ExactlyOnce))
}

func TestAnOldImageOfTheDiskIsFoundOut(t *testing.T) {
	uplinktest.RunRestored(t, suite(uplink.ExactlyOnce))
}

func TestTheOlderOfTwoGatewaysIsFencedAndSaysSo(t *testing.T) {
	uplinktest.RunTwins(t, suite(uplink.ExactlyOnce))
}
