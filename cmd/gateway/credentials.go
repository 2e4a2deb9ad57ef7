package main

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"edgegateway/control"
	"edgegateway/control/config"
)

// credentials watches the files that uplinks sign in with. Drivers read them anew for each session; a file that has changed
// makes the sessions begin anew, so that a renewed password, token or certificate is in use before the old one ends.
type credentials struct {
	log     *slog.Logger
	renewed func(uplinkName string)
	period  time.Duration

	mu    sync.Mutex // guards what the list holds
	files []*credential
}

// credential is a file of an uplink and what was in it.
type credential struct {
	uplink string
	file   config.File

	inUse   [sha256.Size]byte // of the sessions that run
	seen    [sha256.Size]byte // at the last look
	err     error             // of the last look; what is in use stays in use
	expires time.Time         // zero for never, or not known
}

const credentialPeriod = 5 * time.Second

func newCredentials(uplinks map[string]config.Component, log *slog.Logger, renewed func(string)) *credentials {
	w := &credentials{log: log, renewed: renewed, period: credentialPeriod}
	for _, name := range slices.Sorted(maps.Keys(uplinks)) {
		for _, f := range config.Files(uplinks[name].Settings) {
			c := &credential{uplink: name, file: f}
			c.look()
			c.inUse = c.seen
			w.files = append(w.files, c)
		}
	}
	return w
}

// watch looks at the files until ctx ends.
func (w *credentials) watch(ctx context.Context) {
	if len(w.files) == 0 {
		return
	}
	tick := time.NewTicker(w.period)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, name := range w.changed() {
			w.log.Info("credentials have changed, the uplink signs in anew", "uplink", name)
			w.renewed(name)
		}
	}
}

// changed looks at every file and returns the uplinks with new ones. A change counts when the files of its uplink have been
// the same for two looks: a certificate and its key are not replaced in the same moment.
func (w *credentials) changed() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	moving, fresh := map[string]bool{}, map[string]bool{}
	for _, c := range w.files {
		before, failed := c.seen, c.err
		c.look()
		moving[c.uplink] = moving[c.uplink] || c.seen != before || c.err != nil
		fresh[c.uplink] = fresh[c.uplink] || c.seen != c.inUse
		switch {
		case c.err != nil && failed == nil:
			w.log.Warn("credentials cannot be read, what was read before is used on", "uplink", c.uplink, "key", c.file.Key, "err", c.err)
		case c.err == nil && failed != nil:
			w.log.Info("credentials can be read again", "uplink", c.uplink, "key", c.file.Key)
		}
	}
	var names []string
	for _, c := range w.files {
		if fresh[c.uplink] && !moving[c.uplink] {
			c.inUse = c.seen
			if !slices.Contains(names, c.uplink) {
				names = append(names, c.uplink)
			}
		}
	}
	return names
}

// look reads the file. What cannot be read leaves everything as it was.
func (c *credential) look() {
	var content []byte
	if c.file.Secret.IsSet() {
		var text string
		text, c.err = c.file.Secret.Read()
		content = []byte(text)
	} else {
		content, c.err = readBounded(c.file.Path)
	}
	if c.err == nil {
		c.seen = sha256.Sum256(content)
		c.expires = expiry(c.file.Key, content)
	}
}

// list returns the files whose content ends at some time or cannot be read.
func (w *credentials) list() []control.Credential {
	w.mu.Lock()
	defer w.mu.Unlock()
	var list []control.Credential
	for _, c := range w.files {
		if c.err == nil && c.expires.IsZero() {
			continue
		}
		shown := control.Credential{Uplink: c.uplink, Key: c.file.Key, File: c.file.Path, Expires: c.expires}
		if c.err != nil {
			shown.Error = c.err.Error()
		}
		list = append(list, shown)
	}
	return list
}

// expiry returns when what is in a file is of no more use; zero for never, or where that cannot be told. A chain of certificates
// ends with its first one. Of several authorities one is enough, so they end with their last.
func expiry(key string, content []byte) time.Time {
	authorities := strings.HasSuffix(key, "ca_file")
	var end time.Time
	for rest := content; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if block.Type != "CERTIFICATE" || err != nil {
			continue
		}
		if end.IsZero() || certificate.NotAfter.After(end) == authorities {
			end = certificate.NotAfter
		}
	}
	if !end.IsZero() {
		return end
	}
	for word := range strings.FieldsSeq(string(content)) {
		if t := tokenExpiry(word); !t.IsZero() {
			return t
		}
	}
	return time.Time{}
}

// tokenExpiry returns the end of a JSON web token, which NATS credentials hold too.
func tokenExpiry(word string) time.Time {
	parts := strings.Split(word, ".")
	if len(parts) != 3 {
		return time.Time{}
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return time.Time{}
	}
	var claims struct {
		Expires float64 `json:"exp"`
	}
	if json.Unmarshal(payload, &claims) != nil || claims.Expires <= 0 {
		return time.Time{}
	}
	return time.Unix(int64(claims.Expires), 0)
}
