package pulsar

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/apache/pulsar-client-go/pulsar"

	"edgegateway/uplink"
)

// signIn returns how to sign in, or nil. Files are read now, so at each session, and a token at each connection too.
func (c *Config) signIn(ctx context.Context) (pulsar.Authentication, error) {
	switch {
	case c.TokenFile != "":
		if _, err := c.readToken(); err != nil {
			return nil, err
		}
		return pulsar.NewAuthenticationTokenFromSupplier(c.readToken), nil
	case c.OAuth2.KeyFile != "":
		return c.signInOAuth2(ctx)
	case c.TLS.Enabled && c.TLS.CertFile != "":
		return pulsar.NewAuthenticationFromTLSCertSupplier(func() (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(c.TLS.CertFile, c.TLS.KeyFile)
			return &pair, err
		}), nil
	}
	return nil, nil
}

func (c *Config) readToken() (string, error) {
	text, err := os.ReadFile(c.TokenFile)
	token := strings.TrimSpace(string(text))
	if err != nil {
		return "", uplink.Config(fmt.Errorf("token_file: %w", err))
	}
	if token == "" {
		return "", uplink.Config(fmt.Errorf("token_file: %s is empty (want a token)", c.TokenFile))
	}
	return token, nil
}

func (c *Config) signInOAuth2(ctx context.Context) (pulsar.Authentication, error) {
	o := c.OAuth2
	var key struct {
		Type     string `json:"type"`
		ClientID string `json:"client_id"`
		Secret   string `json:"client_secret"`
		Issuer   string `json:"issuer_url"`
	}
	text, err := os.ReadFile(o.KeyFile)
	if err == nil {
		err = json.Unmarshal(text, &key)
	}
	if err == nil && (key.ClientID == "" || key.Secret == "") {
		err = fmt.Errorf("%s has no client_id or no client_secret", o.KeyFile)
	}
	if err != nil {
		return nil, uplink.Config(fmt.Errorf("oauth2.key_file: %w (want JSON with type, client_id, client_secret and issuer_url)", err))
	}
	if o.Issuer == "" {
		o.Issuer = key.Issuer
	}
	if o.Issuer == "" {
		return nil, uplink.Config(fmt.Errorf("oauth2.issuer: missing, and %s has no issuer_url", o.KeyFile))
	}
	// The library's own constructor hides why it fails, so what it needs was looked at before.
	signIn := pulsar.NewAuthenticationOAuth2(map[string]string{
		"type": "client_credentials", "issuerUrl": o.Issuer, "audience": o.Audience, "scope": o.Scope, "privateKey": o.KeyFile, "clientId": key.ClientID,
	})
	issuer, ok := signIn.(interface {
		Init() error
		GetData() ([]byte, error)
	})
	if !ok {
		return nil, fmt.Errorf("%s cannot be an issuer of OAuth 2.0 (is oauth2.issuer right?)", o.Issuer)
	}
	if err := issuer.Init(); err != nil { // asks nobody
		return nil, err
	}
	token := func() (string, error) {
		token, err := issuer.GetData() // one that it has already, while that is valid
		return string(token), err
	}
	// The library asks the issuer when it connects, and where that fails waits for the answer of a broker that it has not asked.
	asked := make(chan error, 1)
	c.links.Go(func() { _, err := token(); asked <- err })
	select {
	case err = <-asked:
	case <-ctx.Done():
		err = ctx.Err()
	}
	switch {
	case err == nil:
		return pulsar.NewAuthenticationTokenFromSupplier(token), nil
	case says(err, "invalid_client", "unauthorized_client", "invalid_scope", "invalid_grant", "status code was received: 4"):
		return nil, uplink.Config(fmt.Errorf("%s refuses the sign-in: wrong client id, secret, audience or scope (it says: %w)", o.Issuer, err))
	}
	return nil, fmt.Errorf("%s does not answer as an issuer of OAuth 2.0 (is oauth2.issuer right, and is it up?): %w", o.Issuer, err)
}
