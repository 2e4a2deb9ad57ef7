package nats_test

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	client "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"edgegateway/test/rig"
	"edgegateway/uplink"
	"edgegateway/uplink/nats"
)

// TestNothingIsSentBehindADroppedRecord plays a stream whose leader drops one record without a word, as one does that is deposed.
func TestNothingIsSentBehindADroppedRecord(t *testing.T) {
	const all, dropped = 100, 51
	server := rig.NATS(t, rig.NATSOptions{})
	for _, test := range []struct {
		name  string
		order uplink.Order
		same  func(seq uint64) bool // what must not come behind the dropped one
	}{
		{"control", "", nil},
		{"strict", uplink.OrderStrict, func(uint64) bool { return true }},
		{"key", uplink.OrderKey, func(seq uint64) bool { return seq%keys == dropped%keys }},
	} {
		t.Run(test.name, func(t *testing.T) {
			nc, err := client.Connect("nats://" + server.Addr)
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			var mu sync.Mutex // guards what came
			var came []uint64
			_, err = nc.Subscribe("played."+test.name, func(m *client.Msg) {
				id := m.Header.Get(jetstream.MsgIDHeader)
				seq, _ := strconv.ParseUint(id[strings.LastIndex(id, "/")+1:], 10, 64) // 0 is none of ours
				mu.Lock()
				defer mu.Unlock()
				if came = append(came, seq); seq != dropped {
					_ = m.Respond(fmt.Appendf(nil, `{"stream":"PLAYED", "seq":%d}`, len(came))) // who does not get it shows that
				}
			})
			if err == nil {
				err = nc.Flush()
			}
			if err != nil {
				t.Fatal(err)
			}
			s, err := nats.OpenWaiting(t.Context(), &nats.Config{Servers: []string{server.Addr}, Subject: "played." + test.name}, "PLAYED",
				300*time.Millisecond, test.order)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			recs := records(1, all)
			for i := range recs {
				recs[i].Message.Topic = fmt.Sprintf("boiler/%d", recs[i].ID.Seq%keys)
			}
			doubt := make(chan error, all)
			err = s.Send(t.Context(), recs, func(_ uint64, o uplink.Outcome) {
				if o.Verdict != uplink.Ack {
					doubt <- o.Err
				}
			})
			if test.order != "" { // the rest waits, so Send tells
				if err == nil || !strings.Contains(err.Error(), "has the stream another leader?") {
					t.Errorf("Send = %v, want it to say that no answer came", err)
				}
				if in := <-doubt; in == nil || !strings.Contains(in.Error(), "has the stream another leader?") {
					t.Errorf("record %d: %v, want that no answer came", dropped, in)
				}
			}
			time.Sleep(50 * time.Millisecond) // for what would come all the same
			mu.Lock()
			defer mu.Unlock()
			behind := 0
			for _, seq := range came {
				if seq > dropped && (test.same == nil || test.same(seq)) {
					behind++
				}
			}
			if (behind > 0) != (test.order == "") {
				t.Errorf("%d records came behind the dropped one: %v", behind, came)
			}
		})
	}
}
