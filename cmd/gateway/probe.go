package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"time"

	"edgegateway/uplink"
)

// probeTimeout bounds a probe, so that somebody at the keyboard gets an answer.
const probeTimeout = 30 * time.Second

// probeStep is a step of a probe as JSON.
type probeStep struct {
	Stream string `json:"stream"`
	Step   string `json:"step"`
	OK     bool   `json:"ok"`
	Note   string `json:"note,omitempty"`
	Error  string `json:"error,omitempty"`
}

// errProbe says that a probe has found something; what it is was printed.
var errProbe = errors.New("the uplink does not work as it is")

// probe tries an uplink out as the config file has it and prints each step. The gateway may run or not: nothing of it is used,
// and nothing that it does is disturbed.
func probe(ctx context.Context, file, uplinkName, stream string, asJSON bool, w io.Writer) error {
	c, err := loadConfig(file)
	if err != nil {
		return err
	}
	component, ok := c.Uplinks[uplinkName]
	if !ok {
		return fmt.Errorf("there is no uplink %q (%s)", uplinkName, have(c.Uplinks))
	}
	prober, ok := component.Settings.(uplink.Prober)
	if !ok {
		return fmt.Errorf("uplink %s: the driver %s cannot be tried out", uplinkName, component.Driver)
	}
	var streams []string
	for _, name := range slices.Sorted(maps.Keys(c.Streams)) {
		if s := c.Streams[name]; slices.Contains(s.Uplinks, uplinkName) && (stream == "" || stream == name) {
			streams = append(streams, name)
		}
	}
	switch {
	case len(streams) == 0 && stream != "":
		return fmt.Errorf("no stream %q goes to uplink %s", stream, uplinkName)
	case len(streams) == 0:
		return fmt.Errorf("no stream goes to uplink %s, so there is no place to look for", uplinkName)
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	failed := false
	for _, name := range streams {
		s := c.Streams[name]
		if len(streams) > 1 && !asJSON {
			fmt.Fprintf(w, "stream %s\n", name)
		}
		prober.Probe(ctx, uplink.Env{
			Gateway: c.Gateway.ID, Stream: name, Uplink: uplinkName, Promise: s.promise(), Log: slog.New(slog.DiscardHandler),
		}, func(step uplink.Step) {
			failed = failed || step.Err != nil
			switch {
			case asJSON:
				printed := probeStep{Stream: name, Step: step.Name, OK: step.Err == nil, Note: step.Note}
				if step.Err != nil {
					printed.Error = step.Err.Error()
				}
				_ = json.NewEncoder(w).Encode(printed) // the exit code tells the outcome anyway
			case step.Err != nil:
				fmt.Fprintf(w, "FAIL %s: %v\n", step.Name, step.Err)
			case step.Note != "":
				fmt.Fprintf(w, "ok   %s: %s\n", step.Name, step.Note)
			default:
				fmt.Fprintf(w, "ok   %s\n", step.Name)
			}
		})
	}
	if failed {
		return errProbe
	}
	return nil
}
