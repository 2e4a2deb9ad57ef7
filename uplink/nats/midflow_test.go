package nats_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	client "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"edgegateway/pipeline"
	"edgegateway/test/rig"
	"edgegateway/uplink"
	"edgegateway/uplink/nats"
)

// TestWhatHappensToAStreamInMidFlowIsSaid has something happen to the stream while a session is open. It says what, and whether a
// person must mend it; once it is mended the next session sends the rest.
func TestWhatHappensToAStreamInMidFlowIsSaid(t *testing.T) {
	server := rig.NATS(t, rig.NATSOptions{Settings: `accounts {
		SMALL { jetstream { max_file: 300K }, users: [ { user: small, password: open } ] }
		GW { jetstream: enabled, users: [ { user: gw, password: open } ] }
	}`})
	as := map[string]jetstream.JetStream{}
	for _, user := range []string{"gw", "small"} {
		as[user] = connect(t, server.Addr, client.UserInfo(user, "open"))
	}
	update := func(js jetstream.JetStream, cfg jetstream.StreamConfig) {
		t.Helper()
		if _, err := js.UpdateStream(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
	}
	newOnly := func(cfg jetstream.StreamConfig) jetstream.StreamConfig {
		cfg.Discard = jetstream.DiscardNew
		return cfg
	}
	create := func(js jetstream.JetStream, cfg jetstream.StreamConfig) {
		t.Helper()
		if _, err := js.CreateStream(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
	}
	type happening struct {
		name   string
		user   string
		happen func(js jetstream.JetStream, cfg jetstream.StreamConfig)
		want   string
		config bool
		mend   func(js jetstream.JetStream, cfg jetstream.StreamConfig) // nil: it cannot be
		empty  bool                                                     // the stream that is there afterwards has the last records only
		large  bool                                                     // the records are
		silent bool                                                     // the server does not answer a batch
	}
	remove := func(js jetstream.JetStream, cfg jetstream.StreamConfig) {
		t.Helper()
		if err := js.DeleteStream(t.Context(), cfg.Name); err != nil {
			t.Fatal(err)
		}
	}
	happenings := []happening{
		{
			name: "sealed", want: "is sealed and takes nothing more", config: true,
			happen: func(js jetstream.JetStream, cfg jetstream.StreamConfig) { cfg.Sealed = true; update(js, cfg) },
		},
		{
			name: "full of messages", want: "maximum messages exceeded (is it full?)",
			happen: func(js jetstream.JetStream, cfg jetstream.StreamConfig) { cfg.MaxMsgs = 12; update(js, newOnly(cfg)) },
			mend:   func(js jetstream.JetStream, cfg jetstream.StreamConfig) { update(js, cfg) },
		},
		{
			name: "full of bytes", want: "maximum bytes exceeded (is it full?)", large: true,
			happen: func(js jetstream.JetStream, cfg jetstream.StreamConfig) {
				cfg.MaxBytes = 9000
				update(js, newOnly(cfg))
			},
			mend: func(js jetstream.JetStream, cfg jetstream.StreamConfig) { update(js, cfg) },
		},
		{
			name: "the account is full", user: "small", want: "has no room left for messages", large: true, silent: true,
			happen: func(js jetstream.JetStream, _ jetstream.StreamConfig) {
				create(js, jetstream.StreamConfig{Name: "BALLAST", Subjects: []string{"ballast"}})
				for {
					if _, err := js.Publish(t.Context(), "ballast", bytes.Repeat([]byte("x"), 2000)); err != nil {
						return
					}
				}
			},
			mend: func(js jetstream.JetStream, cfg jetstream.StreamConfig) { cfg.Name = "BALLAST"; remove(js, cfg) },
		},
		{name: "deleted", want: "takes the subject", happen: remove, mend: create, empty: true},
		{
			name: "its subject goes to another", want: "does not go to the stream", config: true,
			happen: func(js jetstream.JetStream, cfg jetstream.StreamConfig) {
				own := cfg.Subjects
				cfg.Subjects = []string{"nothing." + cfg.Name}
				update(js, cfg)
				cfg.Name, cfg.Subjects = "OTHER-"+cfg.Name, own
				create(js, cfg)
			},
			mend: func(js jetstream.JetStream, cfg jetstream.StreamConfig) {
				other := cfg
				other.Name = "OTHER-" + cfg.Name
				remove(js, other)
				update(js, cfg)
			},
		},
	}
	for _, mode := range []uplink.Delivery{uplink.AtLeastOnce, uplink.EffectivelyOnce, uplink.ExactlyOnce} {
		for i, h := range happenings {
			t.Run(fmt.Sprintf("%s/%s", mode, h.name), func(t *testing.T) {
				if h.user == "" {
					h.user = "gw"
				}
				place := fmt.Sprintf("%s-%d", strings.ReplaceAll(string(mode), "_", "-"), i)
				js, cfg := as[h.user], streamFor(mode, place)
				create(js, cfg)
				c := at(server.Addr, place)
				c.User, c.Password = h.user, pipeline.NewSecret("open")
				driver := promised{c, mode}
				recs := records(1, 20)
				if h.large {
					for i := range recs {
						recs[i].JSON = append(bytes.Repeat([]byte(" "), 1000), recs[i].JSON...)
					}
				}
				s := open(t, driver)
				if err := send(t, s, recs[:5]); err != nil {
					t.Fatalf("before: %v", err)
				}
				if h.silent && mode == uplink.ExactlyOnce {
					nats.Impatient(s)
				}
				h.happen(js, cfg)
				err := send(t, s, recs[5:])
				if h.silent && mode == uplink.ExactlyOnce { // the server says so to the next session only
					if err == nil || !strings.Contains(err.Error(), "no more room?") {
						t.Errorf("err = %v, want it to say that there may be no room", err)
					}
					_, err = driver.Open(t.Context(), uplink.Env{Gateway: "gw1", Stream: "line", Epoch: epoch})
				}
				if err == nil || !strings.Contains(err.Error(), h.want) || uplink.IsConfig(err) != h.config {
					t.Errorf("err = %v (config %v), want %q (config %v)", err, uplink.IsConfig(err), h.want, h.config)
				}
				t.Logf("in plain words: %v", err)
				s.Close()
				if h.mend == nil {
					return
				}
				h.mend(js, cfg)
				next, want := 5, 20
				again := open(t, driver)
				if r, ok := again.(uplink.Resumer); ok {
					next = int(r.Far().Seq)
				}
				if h.empty {
					next, want = 5, 15
				}
				if err := send(t, again, recs[next:]); err != nil {
					t.Fatalf("after it was mended: %v", err)
				}
				again.Close()
				stream, err := js.Stream(t.Context(), place)
				if err != nil {
					t.Fatal(err)
				}
				if mode == uplink.ExactlyOnce {
					want++ // the cursor
				}
				if n := int(stream.CachedInfo().State.Msgs); n != want {
					t.Errorf("%d messages are stored, want %d: each once", n, want)
				}
				if h.user == "small" {
					remove(js, cfg)
				}
			})
		}
	}
}

func TestAServerThatIsFullOrWithoutJetStreamIsSaid(t *testing.T) {
	for _, test := range []struct {
		name    string
		options rig.NATSOptions
		want    string
		config  bool
	}{
		{"full", rig.NATSOptions{MaxFile: 50_000}, "has no room left for messages", false},
		{"no JetStream", rig.NATSOptions{Settings: `accounts { PLAIN { users: [ { user: gw, password: open } ] } }
			no_auth_user: gw`}, "has no JetStream for this account", true},
	} {
		for _, mode := range []uplink.Delivery{uplink.AtLeastOnce, uplink.ExactlyOnce} {
			t.Run(test.name+"/"+string(mode), func(t *testing.T) {
				server := rig.NATS(t, test.options)
				c := at(server.Addr, "room")
				c.Create = true
				recs := records(1, 50)
				for i := range recs {
					recs[i].JSON = append(bytes.Repeat([]byte(" "), 2000), recs[i].JSON...)
				}
				var err error
				for range 2 { // where a batch is not answered the next session is told
					var s uplink.Session
					if s, err = (promised{c, mode}).Open(t.Context(), uplink.Env{Gateway: "gw1", Stream: "line", Epoch: epoch}); err == nil {
						if mode == uplink.ExactlyOnce {
							nats.Impatient(s)
						}
						err = send(t, s, recs)
						s.Close()
					}
				}
				if err == nil || !strings.Contains(err.Error(), test.want) || uplink.IsConfig(err) != test.config {
					t.Errorf("err = %v (config %v), want %q (config %v)", err, uplink.IsConfig(err), test.want, test.config)
				}
				t.Logf("in plain words: %v", err)
			})
		}
	}
}

func TestTooManyBatchesOfOthersAreSaid(t *testing.T) {
	server := rig.NATS(t, rig.NATSOptions{})
	makeStream(t, server.Addr, atomic("many"))
	nc, err := client.Connect(server.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	for n := range 50 {
		m := client.NewMsg("edge.gw2.many")
		m.Header.Set("Nats-Batch-Id", fmt.Sprint("other-", n))
		m.Header.Set("Nats-Batch-Sequence", "1")
		if _, err := nc.RequestMsgWithContext(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	if err := send(t, open(t, exactlyOnce(at(server.Addr, "many"))), records(1, 5)); err == nil || uplink.IsConfig(err) || !strings.Contains(err.Error(), "too many batches open at once") {
		t.Errorf("with 50 batches of others: %v", err)
	}
}

// While a commit is on its way, what comes is one batch.
func TestABatchTakesWhatComesWhileOneCommits(t *testing.T) {
	server := rig.NATS(t, rig.NATSOptions{})
	stream := makeStream(t, server.Addr, atomic("grows"))
	s := open(t, exactlyOnce(at(server.Addr, "grows")))
	if err := send(t, s, records(1, 1)); err != nil {
		t.Fatal(err)
	}
	server.Pause()
	recs := records(2, 301)
	acked := make(chan uint64, len(recs))
	for i := range recs {
		if err := s.Send(t.Context(), recs[i:i+1], func(seq uint64, o uplink.Outcome) {
			if o.Verdict == uplink.Ack {
				acked <- seq
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	server.Resume()
	for i := range recs {
		if seq := <-acked; seq != recs[i].ID.Seq {
			t.Fatalf("record %d is confirmed, want %d", seq, recs[i].ID.Seq)
		}
	}
	info, err := stream.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// The cursor was moved by the fence, for the first record, for the second, and once for all others.
	if commits := info.State.LastSeq - 301; commits != 4 {
		t.Errorf("the cursor was moved %d times, want 4", commits)
	}
	wantStored(t, read(t, server.Addr, "grows"), 301)
}

// A server that drops a message on its way and answers for later ones, as one does that loses the lead of the stream.
func TestARecordWithoutAnAnswerEndsTheSession(t *testing.T) {
	server := rig.NATS(t, rig.NATSOptions{})
	nc, err := client.Connect(server.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	n := 0
	if _, err := nc.Subscribe("drops", func(m *client.Msg) {
		if n++; n != 3 {
			_ = m.Respond(fmt.Appendf(nil, `{"stream":"S","seq":%d}`, n)) // the session notices
		}
	}); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	s, err := nats.OpenOn(t.Context(), &nats.Config{Servers: []string{server.Addr}, Subject: "drops"}, "S", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	outcomes := map[uint64]uplink.Outcome{}
	ended := make(chan struct{})
	for _, r := range records(1, 6) {
		if err := s.Send(t.Context(), []uplink.Record{r}, func(seq uint64, o uplink.Outcome) {
			if outcomes[seq] = o; seq == 3 {
				close(ended)
			}
		}); err != nil {
			break // it was noticed before the last one
		}
	}
	<-ended
	s.Close()
	if o := outcomes[3]; o.Verdict != uplink.Retry || o.Answered || !strings.Contains(o.Err.Error(), "not for record 3") {
		t.Errorf("the outcome of the record is %+v, want it in doubt", o)
	}
	for _, seq := range []uint64{1, 2, 4} {
		if outcomes[seq].Verdict != uplink.Ack {
			t.Errorf("the outcome of record %d is %+v, want it confirmed", seq, outcomes[seq])
		}
	}
}
