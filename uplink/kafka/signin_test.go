package kafka_test

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
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"edgegateway/pipeline"
	"edgegateway/test/rig"
	"edgegateway/uplink"
	"edgegateway/uplink/kafka"
	"edgegateway/uplink/uplinktest"
)

const saslSettings = `listener.name.sasl.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER
listener.name.sasl.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required user_gw="open";
listener.name.sasl.scram-sha-256.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.sasl.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.sasl.oauthbearer.sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";
listener.name.onlyplain.sasl.enabled.mechanisms=PLAIN
listener.name.onlyplain.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required user_gw="open";
listener.name.tls.ssl.keystore.type=PEM
listener.name.tls.ssl.truststore.type=PEM
listener.name.tls.ssl.client.auth=required
`

// TestSignIn signs in in each way there is, rightly and wrongly.
func TestSignIn(t *testing.T) {
	dir := t.TempDir()
	ca := newAuthority(t)
	caFile := writeFile(t, dir, "ca.pem", ca.pem)
	brokerFile := writeFile(t, dir, "broker.pem", ca.issue(t, "broker", true)...)
	client := ca.issue(t, "gw", false)
	keyFile, certFile := writeFile(t, dir, "gw.key", client[0]), writeFile(t, dir, "gw.crt", client[1])
	strange := newAuthority(t)
	strangeFile := writeFile(t, dir, "strange.pem", strange.pem)
	server := rig.KafkaWith(t, rig.KafkaOptions{
		Listeners: map[string]string{"SASL": "SASL_PLAINTEXT", "ONLYPLAIN": "SASL_PLAINTEXT", "TLS": "SSL"},
		Settings: []string{saslSettings + "listener.name.tls.ssl.keystore.location=" + brokerFile +
			"\nlistener.name.tls.ssl.truststore.location=" + caFile},
	})
	admin := kadm.NewClient(connect(t, server.Addr))
	for _, m := range []kadm.ScramMechanism{kadm.ScramSha256, kadm.ScramSha512} {
		made, err := admin.AlterUserSCRAMs(t.Context(), nil, []kadm.UpsertSCRAM{{User: "gw", Mechanism: m, Iterations: 4096, Password: "open"}})
		if err != nil || made.Error() != nil {
			t.Fatalf("make the user: %v %v", err, made.Error())
		}
	}
	token := writeFile(t, dir, "token", unsecured(-time.Hour))
	at := func(listener string, change func(*kafka.Config)) *kafka.Config {
		topic := fmt.Sprintf("signin-%d", time.Now().UnixNano())
		if _, err := admin.CreateTopic(t.Context(), 1, 1, nil, topic); err != nil {
			t.Fatal(err)
		}
		c := &kafka.Config{Brokers: []string{server.At[listener]}, Topic: topic, ClientID: "edge"}
		change(c)
		if problems := c.Check(); len(problems) > 0 {
			t.Fatalf("Check: %v", problems)
		}
		return c
	}
	sasl := func(how, password string) *kafka.Config {
		return at("SASL", func(c *kafka.Config) { c.SASL, c.User, c.Password = how, "gw", pipeline.NewSecret(password) })
	}
	tls := func(change func(*uplink.TLS)) *kafka.Config {
		return at("TLS", func(c *kafka.Config) {
			c.TLS = uplink.TLS{Enabled: true, CAFile: caFile, CertFile: certFile, KeyFile: keyFile}
			change(&c.TLS)
		})
	}
	var faults []uplinktest.Fault
	for _, how := range []string{"plain", "scram-256", "scram-512"} {
		good, bad := sasl(how, "open"), sasl(how, "wrong")
		faults = append(faults, uplinktest.Fault{Name: how + " with a wrong password", Driver: bad, Want: "wrong user or password", Config: true})
		t.Run(how, func(t *testing.T) { arrives(t, good) })
	}
	t.Run("a client certificate", func(t *testing.T) { arrives(t, tls(func(*uplink.TLS) {})) })
	bearer := at("SASL", func(c *kafka.Config) { c.SASL, c.TokenFile = "oauthbearer", token })
	none := at("SASL", func(c *kafka.Config) { c.SASL, c.TokenFile = "oauthbearer", filepath.Join(dir, "none") })
	scram := at("ONLYPLAIN", func(c *kafka.Config) { c.SASL, c.User, c.Password = "scram-512", "gw", pipeline.NewSecret("open") })
	uplinktest.RunFaults(t, append(faults, []uplinktest.Fault{
		{Name: "a token that has expired, and is renewed", Driver: bearer, Want: "refuses the sign-in", Config: true, Mend: func() {
			writeFile(t, dir, "token", unsecured(time.Hour))
		}},
		{Name: "no token", Driver: none, Want: "token_file", Config: true, Mend: func() { writeFile(t, dir, "none", unsecured(time.Hour)) }},
		{Name: "a way to sign in that is not offered", Driver: scram, Want: "does not offer this way to sign in", Config: true},
		{Name: "no client certificate", Driver: tls(func(c *uplink.TLS) { c.CertFile, c.KeyFile = "", "" }), Want: "client certificate", Config: true},
		{Name: "a broker of another authority", Driver: tls(func(c *uplink.TLS) { c.CAFile = strangeFile }), Want: "authority that is not trusted", Config: true},
		{Name: "no TLS to a broker that has it", Driver: at("TLS", func(*kafka.Config) {}), Want: "or tls.enabled: true", Config: true},
	}...))
}

// arrives wants what is in a log to be confirmed.
func arrives(t *testing.T, driver uplink.Driver) {
	log := logOf(20)
	run(t, driver, uplink.Env{Gateway: "gw1", Stream: "line", Epoch: 7, Uplink: "far"}, log, func(uplink.Status) bool { return log.Settled() == 20 })
}

// unsecured returns a token without a signature, which the broker takes where it was told of no key. It ends after a time.
func unsecured(after time.Duration) []byte {
	end := time.Now().Add(after)
	encode := base64.RawURLEncoding.EncodeToString
	claims := fmt.Sprintf(`{"sub":"gw","iat":%d,"exp":%d}`, end.Add(-2*time.Hour).Unix(), end.Unix())
	return []byte(encode([]byte(`{"alg":"none"}`)) + "." + encode([]byte(claims)) + ".\n")
}

func writeFile(t *testing.T, dir, name string, parts ...[]byte) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, bytes.Join(parts, nil), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// authority signs certificates.
type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	pem  []byte
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{key, cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

// issue returns a key and a certificate in PEM.
func (a *authority) issue(t *testing.T, name string, server bool) [][]byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	usage := x509.ExtKeyUsageClientAuth
	if server {
		usage = x509.ExtKeyUsageServerAuth
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{usage}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}, a.cert, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return [][]byte{
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
	}
}
