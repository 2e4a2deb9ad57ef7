package nats_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"edgegateway/pipeline"
	"edgegateway/test/rig"
	"edgegateway/uplink"
	"edgegateway/uplink/nats"
	"edgegateway/uplink/uplinktest"
)

// A user's key pair, made for this test.
const (
	nkeyPublic = "UC3NSKIGELUHO6SBYVHSZATKCA5AAIQWI26PYONCI5JSWC7DAWD2CHN6"
	nkeySeed   = "SUAHMO6NORQE5DKKIW4RMKLSBZKPMKSX62BABZJPZNLLEJ6BVIKS2BU4PI"
)

func TestEachWayToSignInSends(t *testing.T) {
	operator, err := os.ReadFile("testdata/operator.conf")
	if err != nil {
		t.Fatal(err)
	}
	seed := write(t, "gateway.nk", nkeySeed)
	certificate, key := uplinktest.Certificate(t)
	ca := certificate // it is its own authority
	withTLS := nats.Config{User: "gw", Password: pipeline.NewSecret("open"), TLS: uplink.TLS{Enabled: true, CAFile: ca}}
	for _, test := range []struct {
		name     string
		settings string
		config   nats.Config
		wrong    nats.Config
		want     string // what the wrong one is told
	}{
		{"token", "authorization { token: s3cret }", nats.Config{Token: pipeline.NewSecret("s3cret")}, nats.Config{Token: pipeline.NewSecret("guess")}, "refuses the sign-in"},
		{
			"nkey", "authorization { users: [ { nkey: " + nkeyPublic + " } ] }",
			nats.Config{NKeyFile: seed},
			nats.Config{NKeyFile: write(t, "other.nk", "no seed")},
			"holds no seed of a user's nkey",
		},
		{
			"nkey without its file", "authorization { users: [ { nkey: " + nkeyPublic + " } ] }",
			nats.Config{NKeyFile: seed},
			nats.Config{NKeyFile: seed + ".missing"},
			"nkey_file:",
		},
		{"credentials", string(operator), nats.Config{CredsFile: "testdata/gateway.creds"}, nats.Config{}, "refuses the sign-in"},
		{
			"credentials without their file", string(operator),
			nats.Config{CredsFile: "testdata/gateway.creds"},
			nats.Config{CredsFile: "testdata/missing.creds"},
			"creds_file:",
		},
		{
			"user over TLS", fmt.Sprintf("authorization { user: gw, password: open }\ntls { cert_file: %q, key_file: %q }", certificate, key), withTLS,
			nats.Config{User: "gw", Password: pipeline.NewSecret("open"), TLS: uplink.TLS{Enabled: true}},
			"signed by an authority that is not trusted",
		},
		{
			"client certificate", fmt.Sprintf("tls { cert_file: %q, key_file: %q, ca_file: %q, verify: true }", certificate, key, ca),
			nats.Config{TLS: uplink.TLS{Enabled: true, CAFile: ca, CertFile: certificate, KeyFile: key}},
			nats.Config{TLS: uplink.TLS{Enabled: true, CAFile: ca}},
			"client certificate in tls.cert_file",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := rig.NATS(t, rig.NATSOptions{Settings: test.settings})
			for _, c := range []*nats.Config{&test.config, &test.wrong} {
				c.Servers, c.Subject, c.Stream, c.Create = []string{server.Addr}, "edge.{gateway}.{stream}", "EDGE", true
				c.DuplicateWindow = 2 * time.Minute
				if problems := c.Check(); len(problems) > 0 {
					t.Fatalf("Check: %v", problems)
				}
			}
			if err := send(t, open(t, exactlyOnce(&test.config)), records(1, 20)); err != nil {
				t.Errorf("send: %v", err)
			}
			s, err := test.wrong.Open(t.Context(), uplink.Env{Gateway: "gw1", Stream: "line", Epoch: epoch})
			for try := 0; err != nil && strings.Contains(err.Error(), "closed the connection") && try < 100; try++ {
				if !strings.Contains(err.Error(), test.want) {
					t.Errorf("signing in wrongly: %v, want %q", err, test.want)
				}
				s, err = test.wrong.Open(t.Context(), uplink.Env{Gateway: "gw1", Stream: "line", Epoch: epoch}) // as the Runner does
			}
			if err == nil {
				s.Close()
			}
			if err == nil || !uplink.IsConfig(err) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("signing in wrongly: %v, want an error for a person with %q", err, test.want)
			}
			t.Logf("in plain words: %v", err)
		})
	}
}

func write(t *testing.T, name, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(text+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestALineTooSlowForTheServersSignInIsSaid(t *testing.T) {
	server := rig.NATS(t, rig.NATSOptions{Settings: "authorization { timeout: 0.3, users: [ { user: gw, password: open } ] }"})
	proxy := uplinktest.NewProxy(t, server.ProxyAt, server.ProxyTo)
	proxy.Slow(400*time.Millisecond, 0)
	cfg := &nats.Config{Servers: []string{proxy.Addr}, Subject: "x", User: "gw", Password: pipeline.NewSecret("open")}
	_, err := cfg.Open(t.Context(), uplink.Env{Gateway: "gw1", Stream: "line"})
	if !uplink.IsConfig(err) || !strings.Contains(err.Error(), "gave the sign-in up before it arrived") {
		t.Errorf("Open = %v, want it to say what the server's setting does", err)
	}
}
