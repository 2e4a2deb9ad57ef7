package pulsar_test

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"edgegateway/test/rig"
	"edgegateway/uplink"
	"edgegateway/uplink/pulsar"
	"edgegateway/uplink/uplinktest"
)

// token signs a user's name with HMAC-SHA256, as Pulsar's own command does.
func token(user string, key []byte) string {
	enc := base64.RawURLEncoding.EncodeToString
	text := enc([]byte(`{"alg":"HS256"}`)) + "." + enc([]byte(`{"sub":"`+user+`"}`))
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(text))
	return text + "." + enc(mac.Sum(nil))
}

// TestSignIn signs in in each way there is, rightly and wrongly, at one broker: by token and by OAuth 2.0 at its open listener, by
// certificate at the other.
func TestSignIn(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		must(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	ca := newAuthority(t)
	caFile := file("ca.pem", ca.pem)
	pair := func(of *authority, name, user string) (cert, key string) {
		c, k := of.issue(t, user)
		return file(name+".crt", c), file(name+".key", k)
	}
	brokerCert, brokerKey := pair(ca, "broker", "broker")
	b := rig.NewPulsar(t, "authenticationEnabled=true", "authorizationEnabled=true", "superUserRoles=admin",
		"authenticationProviders=org.apache.pulsar.broker.authentication.AuthenticationProviderToken,"+
			"org.apache.pulsar.broker.authentication.AuthenticationProviderTls",
		"tokenSecretKey=data:;base64,"+base64.StdEncoding.EncodeToString(tokenKey),
		"brokerClientAuthenticationPlugin=org.apache.pulsar.client.impl.auth.AuthenticationToken",
		"brokerClientAuthenticationParameters=token:"+token("admin", tokenKey),
		"tlsCertificateFilePath="+brokerCert, "tlsKeyFilePath="+brokerKey, "tlsTrustCertsFilePath="+caFile, "tlsRequireTrustedClientCertOnConnect=true")
	b.Token = token("admin", tokenKey)
	b.Begin()
	permissions := "namespaces/public/default/permissions/gw"
	allow := func() { must(t, b.Admin(http.MethodPost, permissions, []string{"produce", "consume"})) }
	topics := 0
	config := func(addr string, change func(*pulsar.Config)) *pulsar.Config {
		topics++
		c := at(addr, "signin-"+string(rune('a'+topics)))
		change(c)
		if problems := c.Check(); len(problems) > 0 {
			t.Fatalf("Check: %v", problems)
		}
		return c
	}
	signed := func(path string) *pulsar.Config { return config(b.Addr, func(c *pulsar.Config) { c.TokenFile = path }) }
	withKey := func(path string) *pulsar.Config {
		return config(b.Addr, func(c *pulsar.Config) { c.OAuth2.KeyFile = path })
	}
	secured := func(cert, key string, change func(*pulsar.Config)) *pulsar.Config {
		return config(b.TLS, func(c *pulsar.Config) {
			c.TLS = uplink.TLS{Enabled: true, CAFile: caFile, CertFile: cert, KeyFile: key}
			if change != nil {
				change(c)
			}
		})
	}
	issuer := oauth(t, token("gw", tokenKey))
	oauthKey := func(secret, issuer string) string {
		return `{"type":"client_credentials","client_id":"gw","client_secret":"` + secret + `","issuer_url":"` + issuer + `"}`
	}
	good, cert, key := file("good", token("gw", tokenKey)), "", ""
	cert, key = pair(ca, "gw", "gw")
	strange := newAuthority(t)
	strangeCert, strangeKey := pair(strange, "strange", "gw")
	renewedCert, renewedKey := pair(ca, "renewed", "somebody")
	wrong := file("wrong", token("gw", []byte("another key, also of 32 bytes !!!")))
	uplinktest.RunFaults(t, []uplinktest.Fault{
		{
			Name: "no rights", Driver: promised{signed(good), uplink.ExactlyOnce}, Want: "has no rights for this", Config: true,
			Mend: allow,
		},
		{
			Name: "a wrong token that is renewed", Driver: signed(wrong), Want: "refuses the sign-in", Config: true,
			Mend: func() { file("wrong", token("gw", tokenKey)+"\n") },
		},
		{Name: "no token", Driver: config(b.Addr, func(*pulsar.Config) {}), Want: "refuses the sign-in", Config: true},
		{
			Name: "no token file", Driver: signed(filepath.Join(dir, "missing")), Want: "token_file: ", Config: true,
			Mend: func() { file("missing", token("gw", tokenKey)) },
		},
		{Name: "a key file without an id", Driver: withKey(file("bad", "{}")), Want: "oauth2.key_file", Config: true},
		{
			Name: "an issuer that is down", Driver: withKey(file("down", oauthKey("open", "http://127.0.0.1:1"))), Want: "does not answer as an issuer",
			Mend: func() { file("down", oauthKey("open", issuer)) },
		},
		{
			Name: "a wrong secret that is renewed", Driver: withKey(file("secret", oauthKey("wrong", issuer))), Want: "refuses the sign-in", Config: true,
			Mend: func() { file("secret", oauthKey("open", issuer)) },
		},
		{
			Name: "no client certificate", Driver: secured("", "", func(c *pulsar.Config) { c.TokenFile = good }), Want: "client certificate", Config: true,
		},
		{
			Name: "a client certificate of another authority", Driver: secured(strangeCert, strangeKey, nil), Want: "certificate", Config: true,
			Mend: func() { pair(ca, "strange", "gw") },
		},
		{
			Name: "a client certificate of somebody else", Driver: secured(renewedCert, renewedKey, nil), Want: "has no rights for this", Config: true,
			Mend: func() { pair(ca, "renewed", "gw") },
		},
		{
			Name: "a broker of another authority", Want: "authority that is not trusted", Config: true,
			Driver: secured(cert, key, func(c *pulsar.Config) { c.TLS.CAFile = file("other.pem", strange.pem) }),
			Mend:   func() { file("other.pem", ca.pem) },
		},
		{
			Name: "no TLS to a port that wants it", Driver: config(b.TLS, func(*pulsar.Config) {}), Want: "TLS",
		},
	})
	for name, config := range map[string]func() *pulsar.Config{
		"a token":              func() *pulsar.Config { return signed(good) },
		"OAuth 2.0":            func() *pulsar.Config { return withKey(file("oauth", oauthKey("open", issuer))) },
		"a client certificate": func() *pulsar.Config { return secured(cert, key, nil) },
		"a token over TLS":     func() *pulsar.Config { return secured(cert, key, func(c *pulsar.Config) { c.TokenFile = good }) },
	} {
		for _, delivery := range []uplink.Delivery{uplink.AtLeastOnce, uplink.ExactlyOnce} {
			t.Run(name+" "+string(delivery), func(t *testing.T) {
				driver := promised{config(), delivery}
				g := run(t, driver, uplinktest.NewLog(), "")
				g.send(10)
				g.stop()
				g = run(t, driver, g.log, "")
				g.send(10)
			})
		}
	}
}

// oauth is an issuer that gives whoever knows the secret a token.
func oauth(t *testing.T, access string) string {
	var s *httptest.Server
	s = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if strings.HasSuffix(r.URL.Path, "/openid-configuration") {
			_ = json.NewEncoder(w).Encode(map[string]string{"token_endpoint": s.URL + "/token", "issuer": s.URL})
			return
		}
		if r.FormValue("client_id") != "gw" || r.FormValue("client_secret") != "open" {
			w.WriteHeader(http.StatusUnauthorized)
			_ = json.NewEncoder(w).Encode(map[string]string{"error": "invalid_client"})
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"access_token": access, "token_type": "Bearer", "expires_in": 3600})
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// authority signs certificates.
type authority struct {
	key  *rsa.PrivateKey
	cert *x509.Certificate
	pem  string
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048) // the broker reads no other keys
	must(t, err)
	cert := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, key.Public(), key)
	must(t, err)
	return &authority{key, cert, block("CERTIFICATE", der)}
}

// issue makes a certificate of a name, for who serves on the loopback or signs in.
func (a *authority) issue(t *testing.T, name string) (cert, key string) {
	t.Helper()
	k, err := rsa.GenerateKey(rand.Reader, 2048)
	must(t, err)
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	must(t, err)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, a.cert, k.Public(), a.key)
	must(t, err)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(k)
	must(t, err)
	return block("CERTIFICATE", der), block("PRIVATE KEY", pkcs8)
}

func block(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}
