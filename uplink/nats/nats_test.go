package nats_test

import (
	"cmp"
	"strings"
	"testing"
	"time"

	client "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"edgegateway/pipeline"
	"edgegateway/test/rig"
	"edgegateway/uplink/nats"
	"edgegateway/uplink/uplinktest"
)

func connect(t testing.TB, addr string, options ...client.Option) jetstream.JetStream {
	t.Helper()
	nc, err := client.Connect(addr, options...)
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatalf("jetstream: %v", err)
	}
	return js
}

func read(t testing.TB, addr, place string) []uplinktest.Stored {
	t.Helper()
	js := connect(t, addr)
	s, err := js.Stream(t.Context(), place)
	var consumer jetstream.Consumer
	for n := 0; ; n++ { // nodes that have just started may need a while for it
		if err == nil {
			consumer, err = s.OrderedConsumer(t.Context(), jetstream.OrderedConsumerConfig{})
		}
		if err == nil {
			break
		}
		if n == 5 {
			t.Fatalf("read back: %v", err)
		}
		time.Sleep(time.Second)
		s, err = js.Stream(t.Context(), place)
	}
	n := int(s.CachedInfo().State.Msgs)
	out := make([]uplinktest.Stored, 0, n)
	if n == 0 {
		return out
	}
	messages, err := consumer.Messages(jetstream.PullMaxMessages(500))
	if err != nil {
		t.Fatalf("read back: %v", err)
	}
	defer messages.Stop()
	for len(out) < n {
		m, err := messages.Next(jetstream.NextMaxWait(20 * time.Second))
		if err != nil {
			t.Fatalf("read back: %d of %d messages, then: %v", len(out), n, err)
		}
		if strings.HasSuffix(m.Subject(), ".cursor") {
			n--
			continue
		}
		out = append(out, uplinktest.Stored{ID: cmp.Or(m.Headers().Get("Nats-Msg-Id"), m.Headers().Get("Gw-Id"), m.Headers().Get("Loose-Id")), Payload: string(m.Data())})
	}
	return out
}

func TestFaults(t *testing.T) {
	server := rig.NATS(t, rig.NATSOptions{User: "gw", Password: "open", MaxPayload: 64 << 10})
	js := connect(t, server.Addr, client.UserInfo("gw", "open"))
	at := func(subject string) *nats.Config {
		return &nats.Config{Servers: []string{server.Addr}, Subject: subject, User: "gw", Password: pipeline.NewSecret("open")}
	}
	create := func(cfg jetstream.StreamConfig) {
		t.Helper()
		if _, err := js.CreateStream(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
	}
	create(jetstream.StreamConfig{Name: "OTHER", Subjects: []string{"other.>"}})
	create(jetstream.StreamConfig{Name: "FULL", Subjects: []string{"full"}, MaxMsgs: 1, Discard: jetstream.DiscardNew})
	wrong := at("x")
	wrong.Password = pipeline.NewSecret("shut")
	encrypted := at("x")
	encrypted.TLS.Enabled = true
	elsewhere := at("other.line")
	elsewhere.Stream = "MINE"
	made := at("made.{gateway}.{stream}")
	made.Stream, made.Create, made.DuplicateWindow = "MADE", true, 5*time.Minute
	uplinktest.RunFaults(t, []uplinktest.Fault{
		{Name: "wrong password", Driver: wrong, Want: "wrong user, password", Config: true},
		{Name: "TLS to a server without it", Driver: encrypted, Want: "does not speak TLS", Config: true},
		{Name: "no stream takes the subject", Driver: at("missing"), Want: "takes the subject missing", Config: true, Mend: func() {
			create(jetstream.StreamConfig{Name: "MISSING", Subjects: []string{"missing"}})
		}},
		{Name: "another stream takes the subject", Driver: elsewhere, Want: "goes to the stream OTHER, not to MINE", Config: true},
		{Name: "the stream is full", Driver: at("full"), Want: "takes no more", Mend: func() {
			cfg := jetstream.StreamConfig{Name: "FULL", Subjects: []string{"full"}, MaxMsgs: 100, Discard: jetstream.DiscardNew}
			if _, err := js.UpdateStream(t.Context(), cfg); err != nil {
				t.Fatal(err)
			}
		}},
		{Name: "a stream that is missing is made where that is wanted", Driver: made, Want: "", Mend: func() {}},
	})
	info, err := js.Stream(t.Context(), "MADE")
	if err != nil {
		t.Fatal(err)
	}
	if c := info.CachedInfo().Config; c.Subjects[0] != "made.*.*" || c.Duplicates != 5*time.Minute {
		t.Errorf("made the stream %+v, want subjects made.*.* and a window of 5 min", c)
	}
}
