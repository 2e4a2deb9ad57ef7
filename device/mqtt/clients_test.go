package mqtt_test

import (
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"edgegateway/test/rig"
)

func TestMosquittoClients(t *testing.T) {
	for _, version := range []string{"mqttv311", "mqttv5"} {
		for qos := range 3 {
			t.Run(fmt.Sprintf("%s, QoS %d", version, qos), func(t *testing.T) {
				sink := newSink().auto(t, time.Millisecond)
				b := start(t, config(t), sink)
				q := strconv.Itoa(qos)
				who := []string{"-V", version, "-u", "admin", "-P", password, "-q", q, "-t", "dev/x"}
				sub := rig.MosquittoSub(t, b.Addr(), append(who, "-i", "sub", "-F", "%p")...)
				eventually(t, "the subscription", func() bool { return b.Status().Counters["subscriptions"] == 1 })
				var lines strings.Builder
				var want []string
				for i := range 300 {
					fmt.Fprintln(&lines, i)
					want = append(want, strconv.Itoa(i))
				}
				out, err := rig.MosquittoPubFrom(t, b.Addr(), strings.NewReader(lines.String()), append(who, "-i", "pub", "-l")...)
				if err != nil {
					t.Fatalf("mosquitto_pub: %v\n%s", err, out)
				}
				eventually(t, "all messages in the log", func() bool { return len(sink.messages()) >= len(want) })
				wantStored(t, sink, want...)
				eventually(t, "all messages at the subscriber", func() bool { return len(sub.Lines()) >= len(want) })
				if got := sub.Lines(); !slices.Equal(got, want) {
					t.Errorf("the subscriber got %q", got)
				}
			})
		}
	}
}

func TestMosquittoPubIsToldWhatItMayNot(t *testing.T) {
	sink := newSink().auto(t, 0)
	b := start(t, config(t), sink)
	for name, args := range map[string][]string{
		"no sign-in":             {"-V", "mqttv311"},
		"no sign-in, MQTT 5":     {"-V", "mqttv5"},
		"wrong password":         {"-u", "dev", "-P", "wrong"},
		"will without rights":    {"-u", "dev", "-P", password, "--will-topic", "cmd/x", "--will-payload", "x"},
		"topic without rights":   {"-V", "mqttv5", "-u", "dev", "-P", password, "-t", "cmd/x"},
		"user without any right": {"-V", "mqttv5", "-u", "quiet", "-P", password},
	} {
		t.Run(name, func(t *testing.T) {
			if !slices.Contains(args, "-t") {
				args = append(args, "-t", "dev/x")
			}
			out, err := rig.MosquittoPub(t, b.Addr(), append(args, "-q", "1", "-m", "x")...)
			if _, failed := errors.AsType[*exec.ExitError](err); !failed && !strings.Contains(out, "ot authorized") {
				t.Errorf("mosquitto_pub: %v, %q", err, out)
			}
		})
	}
	if n := len(sink.messages()); n != 0 {
		t.Errorf("%d messages stored", n)
	}
}

func TestPahoPublishes(t *testing.T) {
	for _, version := range []int{4, 5} {
		for qos := range 3 {
			t.Run(fmt.Sprintf("version byte %d, QoS %d", version, qos), func(t *testing.T) {
				sink := newSink().auto(t, time.Millisecond)
				b := start(t, config(t), sink)
				pub := rig.PahoPublisher(t, b.Addr(), rig.PahoOptions{
					Version: version, ClientID: "paho", User: "admin", Password: password, Topic: "dev/x", QoS: qos,
					Count: 300, Window: 20, Keep: true,
				})
				pub.WaitEnd()
				if n := len(pub.Acked()); n != 300 {
					t.Fatalf("%d acknowledged, want 300: %q", n, pub.Lines())
				}
				eventually(t, "all messages in the log", func() bool { return len(sink.messages()) >= 300 })
				if n := len(sink.messages()); n != 300 {
					t.Errorf("%d stored, want 300", n)
				}
				if names := sink.Remembered(""); len(names) != 0 {
					t.Errorf("names left: %q", names)
				}
			})
		}
	}
}

// The log loses what it had not committed, and the broker comes back with what the log remembers, again and again.
func TestPahoLosesAndDoublesNothingOverCrashes(t *testing.T) {
	for _, version := range []int{4, 5} {
		t.Run(fmt.Sprintf("version byte %d", version), func(t *testing.T) {
			sink := newSink().auto(t, time.Millisecond)
			conf := config(t)
			b := start(t, conf, sink)
			conf.Listen = b.Addr()
			const n = 2000
			pub := rig.PahoPublisher(t, conf.Listen, rig.PahoOptions{
				Version: version, ClientID: "paho", User: "admin", Password: password, Topic: "dev/x", QoS: 2,
				Count: n, Window: 20, Keep: true, Pause: 500 * time.Microsecond,
			})
			for crash := range 3 {
				eventually(t, "some progress", func() bool { return len(pub.Acked()) > n/5*(crash+1) })
				sink.crash()
				b.stop()
				sink.revive()
				b = start(t, conf, sink)
			}
			pub.WaitEnd()
			if got := len(pub.Acked()); got != n {
				t.Fatalf("%d acknowledged, want %d", got, n)
			}
			times := map[string]int{}
			for _, p := range sink.payloads() {
				times[p]++
			}
			doubled := 0
			for _, k := range times {
				doubled += k - 1
			}
			if len(times) != n || doubled != 0 {
				t.Errorf("%d distinct messages stored, %d doubled; want %d, 0", len(times), doubled, n)
			}
		})
	}
}
