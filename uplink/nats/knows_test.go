package nats_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"edgegateway/test/rig"
	"edgegateway/uplink"
)

// knows wants the far side to know the record with a number, or not to.
func knows(t *testing.T, d uplink.Driver, seq int, want bool) {
	t.Helper()
	s := open(t, d)
	defer s.Close()
	got, err := s.(uplink.Knower).Knows(t.Context(), records(seq, seq)[0].ID)
	if err != nil || got != want {
		t.Errorf("Knows(%d) = %v, %v; want %v", seq, got, err, want)
	}
}

// What consumers have taken away is known by its id only, and to ask for an id must not make the server know it.
func TestWhatTheStreamKnows(t *testing.T) {
	for _, c := range []struct {
		name      string
		servers   int
		retention jetstream.RetentionPolicy
	}{
		{"the last message tells", 1, jetstream.LimitsPolicy},
		{"the id tells", 1, jetstream.WorkQueuePolicy},
		{"the last message of three servers tells", 3, jetstream.LimitsPolicy},
		{"the id tells, of three servers", 3, jetstream.WorkQueuePolicy},
	} {
		t.Run(c.name, func(t *testing.T) {
			addr := servers(t, c.servers)
			stream := makeStream(t, addr, jetstream.StreamConfig{
				Name: "known", Subjects: []string{"edge.*.known"}, Retention: c.retention, Replicas: c.servers, Duplicates: 2 * time.Minute,
			})
			driver := promised{at(addr, "known"), uplink.EffectivelyOnce}
			knows(t, driver, 1, false)
			knows(t, driver, 1, false)
			if err := send(t, open(t, driver), records(1, 20)); err != nil {
				t.Fatal(err)
			}
			if c.retention == jetstream.WorkQueuePolicy {
				if err := stream.Purge(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			knows(t, driver, 20, true)
			knows(t, driver, 21, false)
			if err := send(t, open(t, driver), records(21, 21)); err != nil {
				t.Fatal(err)
			}
			last, err := stream.GetLastMsgForSubject(t.Context(), "edge.gw1.known")
			if err != nil || last.Header.Get("Nats-Msg-Id") != records(21, 21)[0].ID.String() {
				t.Errorf("the last message is %v, %v; want number 21, which was only asked for before", last, err)
			}
		})
	}
}

// On a subject that others write to as well the last message tells nothing.
func TestWhatTheStreamKnowsOfOneOfTwo(t *testing.T) {
	addr := servers(t, 1)
	makeStream(t, addr, jetstream.StreamConfig{Name: "known", Subjects: []string{"edge.*.known"}})
	driver := promised{at(addr, "known"), uplink.AtLeastOnce}
	if err := send(t, open(t, driver), records(1, 5)); err != nil {
		t.Fatal(err)
	}
	other := records(1, 9)
	for i := range other {
		other[i].ID.Gateway = "gw2"
	}
	if err := send(t, open(t, driver), other); err != nil {
		t.Fatal(err)
	}
	knows(t, driver, 5, true)
	knows(t, driver, 6, false)
}

// servers starts so many servers and returns the address of one that takes streams with as many replicas.
func servers(t *testing.T, n int) string {
	t.Helper()
	if n == 1 {
		return rig.NATS(t, rig.NATSOptions{}).Addr
	}
	addr := rig.NATSCluster(t, n, rig.NATSOptions{})[0].Addr
	js := connect(t, addr)
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ready", Subjects: []string{"ready"}, Replicas: n})
		if err == nil {
			return addr
		}
		if time.Now().After(deadline) {
			t.Fatalf("the servers do not work together: %v", err)
		}
	}
}
