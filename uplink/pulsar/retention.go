package pulsar

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	"edgegateway/uplink"
)

// retention is what the admin API says of how long a topic keeps what has been read, or what nobody waits for. Negative: for ever.
type retention struct {
	Minutes   int64 `json:"retentionTimeInMinutes"`
	Megabytes int64 `json:"retentionSizeInMB"`
}

// checkTopic refuses a topic that deletes at once what it confirms: one without a subscription and without retention. It notes what the
// topic takes at once.
func (c *Config) checkTopic(ctx context.Context, s *session) error {
	config, err := c.TLS.Client()
	if err != nil {
		return err
	}
	transport := &http.Transport{TLSClientConfig: config}
	defer transport.CloseIdleConnections()
	ask := func(path string, answer any) error {
		return c.ask(ctx, &http.Client{Transport: transport}, path, answer)
	}
	name := strings.TrimPrefix(s.topic, persistent)
	var limit int
	if err := ask("persistent/"+name+"/maxMessageSize", &limit); err != nil {
		return err
	}
	if limit > 0 && limit < mostBatch {
		s.room.topic.state(limit - limit/8) // leaves room for what is around it
	}
	var subscriptions []string
	if err := ask("persistent/"+name+"/subscriptions", &subscriptions); err != nil {
		return err
	}
	for _, subscription := range subscriptions {
		if !strings.HasPrefix(subscription, "edge-gateway-") && !strings.HasPrefix(subscription, "reader-") {
			return nil
		}
	}
	var keeps *retention
	if err := ask("persistent/"+name+"/retention?applied=true", &keeps); err != nil {
		return err
	}
	if keeps != nil && keeps.Minutes != 0 && keeps.Megabytes != 0 {
		return nil
	}
	return uplink.Config(fmt.Errorf("topic %s has no subscription and its namespace no retention, so %s would delete each record that it confirms "+
		"(want a subscription of who is to read it, or retention on the namespace)", s.topic, s.address))
}

// ask asks the admin API.
func (c *Config) ask(ctx context.Context, client *http.Client, path string, answer any) error {
	base := strings.TrimSuffix(c.Admin, "/")
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/admin/v2/"+path, http.NoBody)
	if err != nil {
		return err
	}
	if c.TokenFile != "" {
		token, err := c.readToken()
		if err != nil {
			return err
		}
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := client.Do(req)
	if err != nil {
		return uplink.Explain(c.Admin, err)
	}
	defer func() { _ = resp.Body.Close() }() // it was read
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	switch {
	case err != nil:
		return uplink.Explain(c.Admin, err)
	case resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden:
		return uplink.Config(fmt.Errorf("%s does not tell this user what the topic retains (want it to have the right, or admin left out)", c.Admin))
	case resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusNoContent:
		return fmt.Errorf("%s answers %s: %.200s", c.Admin, resp.Status, text)
	case len(text) == 0:
		return nil
	}
	if err := json.Unmarshal(text, answer); err != nil {
		return uplink.Config(fmt.Errorf("%s does not speak as an admin API of Pulsar (want its URL, http://HOST:8080): %w", c.Admin, err))
	}
	return nil
}
