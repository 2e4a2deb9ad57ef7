package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"edgegateway/uplink"
)

// choicePath is the file in which an operator's choice waits for an uplink of a stream: the command writes it, and the running
// gateway takes it at the next try, within a minute.
func choicePath(stateDir, stream, uplinkName string) string {
	return filepath.Join(stateDir, "choices", stream+"."+uplinkName)
}

// chooseRequest is what choose asks of a running gateway.
type chooseRequest struct {
	Stream string `json:"stream"`
	Choice string `json:"choice"`
}

// checkChoice refuses what names no uplink, stream or choice.
func checkChoice(c *Config, uplinkName, stream string, choice uplink.Choice) error {
	s, ok := c.Streams[baseStream(stream)]
	switch {
	case !ok || stream != baseStream(stream) && stream != againStream(stream, uplinkName):
		return fmt.Errorf("there is no stream %q (%s)", stream, have(c.Streams))
	case !slices.Contains(s.Uplinks, uplinkName):
		return fmt.Errorf("stream %s does not go to an uplink %q (it goes to %s)", stream, uplinkName, strings.Join(s.Uplinks, ", "))
	case choice != uplink.Resume && choice != uplink.Restart:
		return fmt.Errorf("unknown choice %q (want %s or %s)", choice, uplink.Resume, uplink.Restart)
	}
	return nil
}

// leaveChoice leaves a choice where the uplink takes it at its next try.
func leaveChoice(c *Config, uplinkName, stream string, choice uplink.Choice) error {
	if err := checkChoice(c, uplinkName, stream, choice); err != nil {
		return err
	}
	path := choicePath(c.Gateway.StateDir, stream, uplinkName)
	if err := os.WriteFile(path, []byte(string(choice)+"\n"), 0o644); err != nil { //nolint:gosec // the gateway's user must be able to read what root wrote
		return fmt.Errorf("leave the choice: %w (has the gateway run with this config?)", err)
	}
	return nil
}

// takeChoice returns what an operator has chosen, once.
func takeChoice(stateDir, stream, uplinkName string, log *slog.Logger) uplink.Choice {
	path := choicePath(stateDir, stream, uplinkName)
	text, err := os.ReadFile(path)
	if err == nil {
		err = os.Remove(path) // or it would be followed again the next time
	}
	switch {
	case errors.Is(err, os.ErrNotExist):
		return ""
	case err != nil:
		log.Warn("the operator's choice cannot be taken", "err", err)
		return ""
	}
	return uplink.Choice(strings.TrimSpace(string(text)))
}
