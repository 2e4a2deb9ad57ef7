package pulsar_test

import (
	"encoding/base64"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"edgegateway/test/rig"
	"edgegateway/uplink"
	"edgegateway/uplink/uplinktest"
)

// settings are those of the brokers of these tests. Whoever does not sign in is the administrator; the gateway, where it signs in, has
// the rights that a test gives it.
func settings() []string {
	return []string{
		"maxMessageSize=" + maxMessage, "backlogQuotaCheckIntervalInSeconds=1",
		"authenticationEnabled=true", "authorizationEnabled=true", "superUserRoles=admin", "anonymousUserRole=admin",
		"authenticationProviders=org.apache.pulsar.broker.authentication.AuthenticationProviderToken",
		"tokenSecretKey=data:;base64," + base64.StdEncoding.EncodeToString(tokenKey),
		"brokerClientAuthenticationPlugin=org.apache.pulsar.client.impl.auth.AuthenticationToken",
		"brokerClientAuthenticationParameters=token:" + token("admin", tokenKey),
	}
}

var tokenKey = []byte("a key of 32 bytes for the tests!")

// start starts a broker of its own for a test that stops or kills it.
func start(tb rig.TB) *rig.PulsarServer { return rig.Pulsar(tb, settings()...) }

// suite is that of a delivery; pack is the driver's setting. It has the shared broker, or one of its own.
func suite(delivery uplink.Delivery, pack int, of func(rig.TB) *rig.PulsarServer) uplinktest.Suite {
	prefix := strings.ReplaceAll(string(delivery), "_", "") + strconv.Itoa(pack) + "-"
	name := "pulsar " + string(delivery)
	if pack > 1 {
		name = "pulsar-packs " + string(delivery)
	}
	var b *rig.PulsarServer
	driver := func(addr, place string) promised {
		c := at(addr, prefix+place)
		c.Pack = pack
		return promised{c, delivery}
	}
	topics := func(place string) []string {
		return []string{"persistent/public/default/" + prefix + place, "persistent/public/default/" + prefix + place + "-cursor"}
	}
	return uplinktest.Suite{
		Name: name, Delivery: delivery,
		Server: func(tb rig.TB) *rig.Server { b = of(tb); return b.Server },
		Driver: func(addr, place string) uplink.Driver { return driver(addr, place) },
		Read:   func(t testing.TB, addr, place string) []uplinktest.Stored { return read(t, addr, prefix+place) },
		Delete: func(t testing.TB, _, place string) {
			for _, topic := range topics(place) {
				if err := b.Admin(http.MethodDelete, topic+"?force=true", nil); err != nil && !strings.Contains(err.Error(), "404") {
					t.Fatal(err)
				}
			}
		},
		Access: func(t testing.TB, addr, place string) (uplink.Driver, func(), func()) {
			d := driver(addr, place)
			d.TokenFile = filepath.Join(t.TempDir(), "token")
			if err := os.WriteFile(d.TokenFile, []byte(token("gw", tokenKey)), 0o600); err != nil {
				t.Fatal(err)
			}
			each := func(method, path string, body any) {
				for _, topic := range topics(place) {
					if err := b.Admin(method, topic+path, body); err != nil {
						t.Errorf("%s %s%s: %v", method, topic, path, err)
					}
				}
			}
			each(http.MethodPut, "", nil) // rights are of topics that are there
			allow := func() { each(http.MethodPost, "/permissions/gw", []string{"produce", "consume"}) }
			allow()
			return d, func() {
				each(http.MethodDelete, "/permissions/gw", nil)
				each(http.MethodPut, "/unload", nil) // the broker asks for rights when a producer is made
			}, allow
		},
		Refused:       tooLarge,
		Doubles:       delivery == uplink.AtLeastOnce,
		Resumes:       delivery == uplink.ExactlyOnce,
		Interruptions: 1,
	}
}

func common(rig.TB) *rig.PulsarServer { return broker() }

func TestSuiteAtLeastOnce(t *testing.T) { uplinktest.Run(t, suite(uplink.AtLeastOnce, 1, start)) }

func TestSuiteEffectivelyOnce(t *testing.T) {
	uplinktest.Run(t, suite(uplink.EffectivelyOnce, 1, start))
}

func TestSuiteExactlyOnce(t *testing.T) { uplinktest.Run(t, suite(uplink.ExactlyOnce, 1, start)) }

func TestSuiteExactlyOnceInPacks(t *testing.T) {
	uplinktest.Run(t, suite(uplink.ExactlyOnce, 100, start))
}

func TestKillsAtLeastOnce(t *testing.T) {
	s := suite(uplink.AtLeastOnce, 1, common)
	n := uplinktest.RunKills(t, s, s.Name, 12)
	t.Logf("%d records are there twice: what was in flight", n)
}

func TestKillsEffectivelyOnce(t *testing.T)        { kills(t, uplink.EffectivelyOnce, 1) }
func TestKillsEffectivelyOnceInPacks(t *testing.T) { kills(t, uplink.EffectivelyOnce, 100) }
func TestKillsExactlyOnce(t *testing.T)            { kills(t, uplink.ExactlyOnce, 1) }
func TestKillsExactlyOnceInPacks(t *testing.T)     { kills(t, uplink.ExactlyOnce, 100) }

func kills(t *testing.T, delivery uplink.Delivery, pack int) {
	s := suite(delivery, pack, common)
	if n := uplinktest.RunKills(t, s, s.Name, 12); n != 0 {
		t.Errorf("%d records are there twice, want none", n)
	}
}

func TestBrokerKillsAtLeastOnce(t *testing.T) {
	s := suite(uplink.AtLeastOnce, 1, start)
	n := uplinktest.RunBrokerKills(t, s, s.Name, 2)
	t.Logf("%d records are there twice: what was in flight", n)
}

func TestBrokerKillsEffectivelyOnce(t *testing.T)    { brokerKills(t, uplink.EffectivelyOnce, 1) }
func TestBrokerKillsExactlyOnce(t *testing.T)        { brokerKills(t, uplink.ExactlyOnce, 1) }
func TestBrokerKillsExactlyOnceInPacks(t *testing.T) { brokerKills(t, uplink.ExactlyOnce, 100) }

func brokerKills(t *testing.T, delivery uplink.Delivery, pack int) {
	s := suite(delivery, pack, start)
	if n := uplinktest.RunBrokerKills(t, s, s.Name, 2); n != 0 {
		t.Errorf("%d records are there twice, want none", n)
	}
}

func TestControlWithoutReadingBack(t *testing.T) {
	s := suite(uplink.ExactlyOnce, 1, common)
	s.Driver = func(addr, place string) uplink.Driver {
		c := at(addr, "exactlyonce1-"+place)
		c.WithoutReadBack()
		return promised{c, uplink.ExactlyOnce}
	}
	uplinktest.RunControl(t, s, "pulsar exactly_once without reading back", 4)
}

func TestControlWithoutDedup(t *testing.T) {
	s := suite(uplink.EffectivelyOnce, 1, common)
	s.Driver = func(addr, place string) uplink.Driver {
		c := at(addr, "effectivelyonce1-"+place)
		c.WithoutDedup()
		return promised{c, uplink.EffectivelyOnce}
	}
	uplinktest.RunControl(t, s, "pulsar effectively_once without dedup", 4)
}

func TestControlWithoutPrefixDiscipline(t *testing.T) {
	for _, s := range []uplinktest.Suite{
		suite(uplink.EffectivelyOnce, 1, common), suite(uplink.ExactlyOnce, 1, common), suite(uplink.ExactlyOnce, 100, common),
	} {
		uplinktest.RunUndisciplined(t, s)
	}
}

func TestAnOldImageOfTheDiskIsFoundOut(t *testing.T) {
	for _, pack := range []int{1, 100} {
		uplinktest.RunRestored(t, suite(uplink.ExactlyOnce, pack, common))
		uplinktest.RunRestoredByID(t, suite(uplink.EffectivelyOnce, pack, common))
	}
}

func TestTheOlderOfTwoGatewaysIsFencedWhateverItDoes(t *testing.T) {
	for _, pack := range []int{1, 100} {
		uplinktest.RunTwins(t, suite(uplink.ExactlyOnce, pack, common))
	}
}

// A crash of the whole device leaves the cursor anywhere, and the batches of the next life are cut at other places.
func TestABacklogThatIsSentAgainFromTheBeginningIsStoredOnce(t *testing.T) {
	for _, of := range []struct {
		topic    string
		delivery uplink.Delivery
		pack     int
	}{
		{"again-effectively", uplink.EffectivelyOnce, 1},
		{"again-effectively-packs", uplink.EffectivelyOnce, 100},
		{"again-exactly", uplink.ExactlyOnce, 1},
		{"again-exactly-packs", uplink.ExactlyOnce, 100},
	} {
		const all = 12_000
		for n := 500; n <= all; n += 2300 {
			c := at(broker().Addr, of.topic)
			c.Pack = of.pack
			g := run(t, promised{c, of.delivery}, filled(n), "")
			g.log.Wait(n-rand.IntN(500), patient) // and in mid-flow it ends
			g.stop()
		}
		c := at(broker().Addr, of.topic)
		c.Pack = of.pack
		g := run(t, promised{c, of.delivery}, filled(all), "")
		g.settle()
		g.stop()
		holds(t, of.topic, upTo(all)...)
	}
}
