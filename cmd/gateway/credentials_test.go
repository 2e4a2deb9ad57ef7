package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"edgegateway/control"
	"edgegateway/test/rig"
)

// authority signs certificates for tests.
type authority struct {
	t    *testing.T
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	pem  []byte
}

func newAuthority(t *testing.T, name string, ends time.Time) *authority {
	t.Helper()
	a := &authority{t: t}
	a.pem, _ = a.issue(name, ends)
	return a
}

// issue makes a certificate; the first one is the authority's own.
func (a *authority) issue(name string, ends time.Time) (cert, key []byte) {
	a.t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: ends,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: a.cert == nil, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, private
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &private.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	if a.cert == nil {
		if a.cert, err = x509.ParseCertificate(der); err != nil {
			a.t.Fatal(err)
		}
		a.key = private
	}
	private8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		a.t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private8})
}

// save writes a file at once, as whoever renews credentials should.
func (s *site) save(name string, content []byte) string {
	s.t.Helper()
	file := filepath.Join(s.dir, name)
	if err := writeDurably(file, content); err != nil {
		s.t.Fatal(err)
	}
	return file
}

func (s *site) arrives(want ...string) {
	s.t.Helper()
	for range 1500 {
		status := s.g.gather()
		if status.Uplinks[0].Backlog.Records == 0 && status.Uplinks[0].Acked >= uint64(len(want)) {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	s.t.Fatalf("%v have not arrived: %+v", want, s.g.gather().Uplinks)
}

func TestAPasswordThatChangesOnDiskIsTakenWithoutARestart(t *testing.T) {
	knows := func(password string) string { return "authorization { user: gw, password: " + password + " }" }
	server := rig.NATS(t, rig.NATSOptions{Settings: knows("first")})
	s := newSite(t, fmt.Sprintf("streams:\n  main: {from: [broker], uplinks: [far]}\n"+
		"uplinks:\n  far: {driver: nats, servers: [%q], stream: EDGE, create: true, user: gw, password_file: password}\n", server.Addr))
	s.save("password", []byte("first\n"))
	s.start()
	s.put("a", "1")
	s.arrives("a")

	// An empty file is no password: what was read before is used on, and the session stays.
	s.save("password", nil)
	eventually(t, "the empty file is noticed", func() bool {
		return strings.Contains(s.logs.String(), "credentials cannot be read") && strings.Contains(fmt.Sprint(s.g.gather().Credentials), "holds no secret")
	})
	s.put("b", "2")
	s.arrives("a", "b")
	if n := strings.Count(s.logs.String(), "credentials cannot be read"); n != 1 {
		t.Errorf("said %d times that the file cannot be read", n)
	}

	// The server first, then the file: the old password ends when the server says so, and the new one is taken by itself.
	server.Reload(knows("second"))
	s.save("password", []byte("second\n"))
	eventually(t, "the change is noticed", func() bool { return strings.Contains(s.logs.String(), "credentials have changed") })
	s.put("c", "3")
	s.arrives("a", "b", "c")

	// The file first, then the server: the uplink tries until the server knows the new one.
	s.save("password", []byte("third\n"))
	eventually(t, "the sign-in fails", func() bool { return strings.Contains(s.g.gather().Uplinks[0].Error, "refuses the sign-in") })
	server.Reload(knows("third"))
	s.put("d", "4")
	s.arrives("a", "b", "c", "d")
	if got := topics(natsMessages(t, server.Addr, nats.UserInfo("gw", "third"))); !slices.Equal(got, []string{"a", "b", "c", "d"}) {
		t.Errorf("arrived %v", got)
	}
	if n := strings.Count(s.logs.String(), "credentials have changed"); n != 2 {
		t.Errorf("the sessions began anew %d times, want 2:\n%s", n, s.logs.String())
	}
}

func TestARenewedClientCertificateIsTakenWithoutARestart(t *testing.T) {
	ca := newAuthority(t, "authority", time.Now().AddDate(1, 0, 0))
	s := newSite(t, "")
	caFile := s.save("ca.pem", ca.pem)
	cert, key := ca.issue("server", time.Now().AddDate(1, 0, 0))
	server := rig.NATS(t, rig.NATSOptions{Settings: fmt.Sprintf(
		"tls { cert_file: %q, key_file: %q, ca_file: %q, verify: true }", s.save("server.pem", cert), s.save("server.key", key), caFile)})
	renew := func(ends time.Time) {
		cert, key := ca.issue("gw", ends)
		s.save("client.key", key) // for a moment the two do not belong together
		time.Sleep(10 * time.Millisecond)
		s.save("client.pem", cert)
	}
	ends := time.Now().Add(10 * 24 * time.Hour)
	renew(ends)
	s.write(fmt.Sprintf("streams:\n  main: {from: [broker], uplinks: [far]}\nuplinks:\n  far:\n    driver: nats\n    servers: [%q]\n    stream: EDGE\n    create: true\n"+
		"    tls: {enabled: true, ca_file: %s, cert_file: %s, key_file: %s}\n", server.Addr, caFile, filepath.Join(s.dir, "client.pem"), filepath.Join(s.dir, "client.key")))
	s.start()
	s.put("a", "1")
	s.arrives("a")
	// It ends in ten days: that is a warning and a metric.
	eventually(t, "the end is warned of", func() bool {
		return strings.Contains(fmt.Sprint(s.g.monitor.Status().Problems), "client.pem) expires in 9 d")
	})
	if left := expiryMetric(t, s.g, "client.pem"); left < 9*24*3600 || left > 10*24*3600 {
		t.Errorf("the metric says %v s", left)
	}
	if left := expiryMetric(t, s.g, "ca.pem"); left < 300*24*3600 {
		t.Errorf("the metric says %v s of the authority", left)
	}
	since := s.g.gather().Uplinks[0]
	renew(time.Now().AddDate(0, 0, 90))
	eventually(t, "the change is noticed", func() bool { return strings.Contains(s.logs.String(), "credentials have changed") })
	s.put("b", "2")
	s.arrives("a", "b")
	if now := s.g.gather().Uplinks[0]; now.Since.Equal(since.Since) {
		t.Error("the session did not begin anew")
	}
	eventually(t, "the warning is gone", func() bool { return !strings.Contains(fmt.Sprint(s.g.monitor.Status().Problems), "expires") })
	if left := expiryMetric(t, s.g, "client.pem"); left < 80*24*3600 {
		t.Errorf("the metric says %v s after the renewal", left)
	}
	if n := strings.Count(s.logs.String(), "uplink failed"); n != 0 {
		t.Errorf("a renewal is no failure:\n%s", s.logs.String())
	}
}

// expiryMetric returns what /metrics says of a file.
func expiryMetric(t *testing.T, g *gateway, file string) float64 {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(control.NewCollector(g.monitor.Status))
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if f.GetName() == "edge_gateway_credential_expiry_seconds" && l.GetName() == "file" && strings.HasSuffix(l.GetValue(), file) {
					return m.GetGauge().GetValue()
				}
			}
		}
	}
	t.Errorf("no metric of %s", file)
	return 0
}

func TestExpiryIsReadFromWhatEnds(t *testing.T) {
	soon, late := time.Now().Add(time.Hour).Truncate(time.Second), time.Now().Add(1000*time.Hour).Truncate(time.Second)
	one, two := newAuthority(t, "one", soon), newAuthority(t, "two", late)
	token := func(payload string) string {
		return "eyJ0eXAiOiJKV1QifQ." + base64.RawURLEncoding.EncodeToString([]byte(payload)) + ".c2lnbmF0dXJl"
	}
	creds, err := os.ReadFile("../../uplink/nats/testdata/gateway.creds")
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name, key string
		content   []byte
		want      time.Time
	}{
		{"a chain ends with its first", "tls.cert_file", bytes.Join([][]byte{two.pem, one.pem}, nil), soon},
		{"authorities end with their last", "tls.ca_file", bytes.Join([][]byte{two.pem, one.pem}, nil), late},
		{"a token", "token_file", []byte(token(fmt.Sprintf(`{"exp":%d}`, soon.Unix()))), soon},
		{"credentials with an end", "creds_file", []byte("-----BEGIN NATS USER JWT-----\n" + token(fmt.Sprintf(`{"exp":%d}`, late.Unix())) + "\n------END NATS USER JWT------\n"), late},
		{"credentials without an end", "creds_file", creds, time.Time{}},
		{"a password", "password_file", []byte("a.b.c"), time.Time{}},
		{"nothing", "password_file", nil, time.Time{}},
	} {
		if got := expiry(test.key, test.content); !got.Equal(test.want) {
			t.Errorf("%s: ends %v, want %v", test.name, got, test.want)
		}
	}
}
