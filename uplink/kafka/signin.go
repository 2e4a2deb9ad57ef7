package kafka

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"edgegateway/uplink"
)

// signIn returns how a connection signs in, nil for not at all. What it signs in with is asked for at each connection, so a token
// that was renewed on disk needs no restart.
func (c *Config) signIn() sasl.Mechanism {
	switch c.SASL {
	case "plain":
		return plain.Plain(func(context.Context) (plain.Auth, error) {
			return plain.Auth{User: c.User, Pass: c.Password.Reveal()}, nil
		})
	case "scram-256":
		return scram.Sha256(c.scram)
	case "scram-512":
		return scram.Sha512(c.scram)
	case "oauthbearer":
		return oauth.Oauth(c.token)
	}
	return nil
}

func (c *Config) scram(context.Context) (scram.Auth, error) {
	return scram.Auth{User: c.User, Pass: c.Password.Reveal()}, nil
}

func (c *Config) token(context.Context) (oauth.Auth, error) {
	text, err := os.ReadFile(c.TokenFile)
	if err != nil {
		return oauth.Auth{}, uplink.Config(fmt.Errorf("token_file: %w", err))
	}
	token := bytes.TrimSpace(text)
	if len(token) == 0 {
		return oauth.Auth{}, uplink.Config(errors.New("token_file: " + c.TokenFile + " is empty (want the token, and nothing else, in it)"))
	}
	return oauth.Auth{Token: string(token)}, nil
}
