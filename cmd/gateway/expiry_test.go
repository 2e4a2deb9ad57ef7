package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestTheEndOfCredentialsIsWarnedOfThirtyDaysAhead looks at /metrics and at the page as a browser gets them. No server is there: what is
// in the files is known without.
func TestTheEndOfCredentialsIsWarnedOfThirtyDaysAhead(t *testing.T) {
	const day = 24 * time.Hour
	in := func(days int) time.Time { return time.Now().Add(time.Duration(days)*day + time.Hour) }
	s := newSite(t, "")
	ca := newAuthority(t, "authority", in(1000))
	for name, days := range map[string]int{"soon": 20, "later": 40} {
		cert, key := ca.issue("gw", in(days))
		s.save(name+".pem", cert)
		s.save(name+".key", key)
	}
	token := func(days int) []byte {
		return []byte(webToken(`{"alg":"HS256"}`, map[string]any{"sub": "gw", "exp": in(days).Unix()}, func(string) []byte { return []byte("signature") }))
	}
	s.save("token20", token(20))
	s.save("token40", token(40))
	s.save("creds20", newOperator(t).credentials(1, in(20)))
	s.save("token0", token(-2))
	at := func(name string) string { return filepath.Join(s.dir, name) }
	s.write(fmt.Sprintf("streams:\n  main: {from: [broker], uplinks: [nats-tls, nats-tls-40, nats-creds, pulsar, pulsar-0, kafka-40]}\nuplinks:\n"+
		"  nats-tls: {driver: nats, servers: [\"127.0.0.1:1\"], tls: {enabled: true, cert_file: %s, key_file: %s}}\n"+
		"  nats-tls-40: {driver: nats, servers: [\"127.0.0.1:1\"], tls: {enabled: true, cert_file: %s, key_file: %s}}\n"+
		"  nats-creds: {driver: nats, servers: [\"127.0.0.1:1\"], creds_file: %s}\n"+
		"  pulsar: {driver: pulsar, servers: [\"127.0.0.1:1\"], token_file: %s}\n"+
		"  pulsar-0: {driver: pulsar, servers: [\"127.0.0.1:1\"], token_file: %s}\n"+
		"  kafka-40: {driver: kafka, brokers: [\"127.0.0.1:1\"], topic: edge, sasl: oauthbearer, token_file: %s}\n",
		at("soon.pem"), at("soon.key"), at("later.pem"), at("later.key"), at("creds20"), at("token20"), at("token0"), at("token40")))
	s.start()
	eventually(t, "the page is there", func() bool { return s.g.page.Load() != nil })
	page := "http://" + s.g.page.Load().Addr().String()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Jar: jar, Timeout: 10 * time.Second}
	get := func(path string) string {
		t.Helper()
		answer, err := client.Get(page + path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = answer.Body.Close() }()
		text, err := io.ReadAll(answer.Body)
		if err != nil || answer.StatusCode != http.StatusOK {
			t.Fatalf("GET %s: %s %v", path, answer.Status, err)
		}
		return string(text)
	}
	form := regexp.MustCompile(`name="token" value="([0-9a-f]+)"`).FindStringSubmatch(get("/set-up"))
	if form == nil {
		t.Fatal("no form at /set-up")
	}
	password := "a long enough password"
	answer, err := client.PostForm(page+"/set-up", url.Values{
		"token": {form[1]}, "code": {s.g.page.Load().SetupCode()}, "password": {password}, "again": {password},
	})
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()

	metrics := get("/metrics")
	left := func(uplink, file string) (seconds float64) {
		t.Helper()
		for line := range strings.Lines(metrics) {
			name := fmt.Sprintf("edge_gateway_credential_expiry_seconds{file=%q,uplink=%q} ", at(file), uplink)
			if value, ok := strings.CutPrefix(line, name); ok {
				if _, err := fmt.Sscan(value, &seconds); err != nil {
					t.Fatal(err)
				}
				return seconds
			}
		}
		t.Errorf("no metric of %s: %s", uplink, metrics)
		return 0
	}
	var text string
	eventually(t, "the page knows", func() bool { text = get("/"); return strings.Contains(text, "creds20) expires in") })
	for _, c := range []struct {
		uplink, file, key string
		days              int
	}{
		{"nats-tls", "soon.pem", "tls.cert_file", 20},
		{"nats-tls-40", "later.pem", "tls.cert_file", 40},
		{"nats-creds", "creds20", "creds_file", 20},
		{"pulsar", "token20", "token_file", 20},
		{"pulsar-0", "token0", "token_file", -2},
		{"kafka-40", "token40", "token_file", 40},
	} {
		if got, most := left(c.uplink, c.file), time.Until(in(c.days)).Seconds(); got > most || got < most-600 {
			t.Errorf("%s: %v s left, want about %v", c.uplink, got, most)
		}
		warned := fmt.Sprintf("Its %s (%s) expire", c.key, at(c.file))
		if got, want := strings.Contains(text, warned), c.days < 30; got != want {
			t.Errorf("%s: on the page %t, want %t: %q", c.uplink, got, want, warned)
		}
	}
	if want := fmt.Sprintf("(%s) expired 47 h ago", at("token0")); !strings.Contains(text, want) {
		t.Errorf("the page does not say %q:\n%s", want, text)
	}
	for _, p := range s.g.monitor.Status().Problems {
		t.Logf("%s: %s: %s", p.Severity, p.Where, p.Text)
	}
}
