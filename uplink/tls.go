package uplink

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"

	"edgegateway/pipeline"
)

// TLS is the `tls` section of every uplink that dials.
type TLS struct {
	Enabled    bool   `yaml:"enabled" doc:"Encrypt the connection and verify the server's certificate." default:"false"`
	CAFile     string `yaml:"ca_file" doc:"PEM file of the authorities to trust instead of the system's."`
	CertFile   string `yaml:"cert_file" doc:"PEM file of the client certificate, where the server asks for one."`
	KeyFile    string `yaml:"key_file" doc:"PEM file of the client certificate's private key."`
	ServerName string `yaml:"server_name" doc:"Name the server's certificate must bear, where it is not the address."`
}

// Check implements pipeline.Checker; its paths begin at the tls section.
func (t *TLS) Check() []pipeline.Problem {
	if (t.CertFile == "") != (t.KeyFile == "") {
		return []pipeline.Problem{{Path: "cert_file", Text: "cert_file and key_file belong together (want both or neither)"}}
	}
	if !t.Enabled && (t.CAFile != "" || t.CertFile != "" || t.ServerName != "") {
		return []pipeline.Problem{{Path: "enabled", Text: "the section is filled in but TLS is off (want enabled: true)"}}
	}
	return nil
}

// CheckTLS returns the problems of a driver's tls section with their full path.
func CheckTLS(t *TLS) []pipeline.Problem {
	problems := t.Check()
	for i := range problems {
		problems[i].Path = "tls." + problems[i].Path
	}
	return problems
}

// Client returns the settings for dialling, or nil where TLS is off. The authorities are read now, so at each new
// session; the client certificate is read at each handshake, so that a renewed one needs no restart.
func (t *TLS) Client() (*tls.Config, error) {
	if !t.Enabled {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName}
	if t.CAFile != "" {
		pem, err := os.ReadFile(t.CAFile)
		if err != nil {
			return nil, Config(fmt.Errorf("tls.ca_file: %w", err))
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, Config(fmt.Errorf("tls.ca_file: %s holds no certificate (want PEM: -----BEGIN CERTIFICATE-----)", t.CAFile))
		}
	}
	if t.CertFile != "" {
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
			if err != nil {
				return nil, fmt.Errorf("tls.cert_file: %w", err)
			}
			return &pair, nil
		}
	}
	return c, nil
}
