package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"text/tabwriter"
	"time"

	"edgegateway/control"
)

// statusInfo is how the gateway does, as the command status shows it.
type statusInfo struct {
	Gateway  string        `json:"gateway"`
	Version  string        `json:"version"`
	Started  time.Time     `json:"started"`
	Uplinks  []uplinkInfo  `json:"uplinks"`
	Problems []problemInfo `json:"problems"`
}

// uplinkInfo is one uplink of one stream.
type uplinkInfo struct {
	Uplink       string    `json:"uplink"`
	Stream       string    `json:"stream"`
	Driver       string    `json:"driver"`
	Delivery     string    `json:"delivery"`
	Order        string    `json:"order"`
	State        string    `json:"state"` // connecting, sending, waiting, paused or stopped
	Since        time.Time `json:"since"`
	Records      uint64    `json:"backlog_records"`
	Bytes        uint64    `json:"backlog_bytes"`
	AgeSeconds   float64   `json:"backlog_age_seconds"`
	Acked        uint64    `json:"acked"` // since the start
	DeadLetters  uint64    `json:"dead_letters"`
	Held         uint64    `json:"held"`
	HeldFor      string    `json:"held_for,omitempty"`
	Limit        string    `json:"limit,omitempty"`
	Error        string    `json:"error,omitempty"`
	NextTry      time.Time `json:"next_try,omitzero"`
	Choices      []string  `json:"choices,omitempty"` // of which an operator is to choose one
	LastAck      time.Time `json:"last_ack,omitzero"`
	QuotaUsed    uint64    `json:"quota_used_bytes,omitempty"`
	Quota        uint64    `json:"quota_bytes,omitempty"`
	OlderRecords uint64    `json:"backfill_records,omitempty"`
}

// problemInfo is what needs a person.
type problemInfo struct {
	Severity string `json:"severity"` // error or warning
	Where    string `json:"where"`
	Text     string `json:"text"`
	Hint     string `json:"hint,omitempty"`
}

func (g *gateway) statusInfo() statusInfo {
	s := g.monitor.Status()
	info := statusInfo{Gateway: s.Gateway, Version: s.Version, Started: s.Started, Uplinks: []uplinkInfo{}, Problems: []problemInfo{}}
	for i := range s.Uplinks {
		u := &s.Uplinks[i]
		info.Uplinks = append(info.Uplinks, uplinkInfo{
			Uplink: u.Name, Stream: u.Stream, Driver: u.Driver, Delivery: u.Delivery, Order: u.Order, State: string(u.State), Since: u.Since,
			Records: u.Backlog.Records, Bytes: u.Backlog.Bytes, AgeSeconds: u.Backlog.Age.Seconds(), Acked: u.Acked, DeadLetters: u.DeadLetters,
			Held: u.Held, HeldFor: u.HeldFor, Limit: u.Limit, Error: u.Error, NextTry: u.NextTry, Choices: u.Choices, LastAck: u.LastAck,
			QuotaUsed: u.QuotaUsed, Quota: u.Quota, OlderRecords: u.Older,
		})
	}
	for _, p := range s.Problems {
		info.Problems = append(info.Problems, problemInfo{string(p.Severity), p.Where, p.Text, p.Hint})
	}
	return info
}

// errProblems says that status has shown something that needs a person.
var errProblems = errors.New("something needs a person, see above")

func (o *operator) status(ctx context.Context, asJSON bool) error {
	var info statusInfo
	if err := o.ask(ctx, http.MethodGet, "/v1/status", nil, &info); err != nil {
		return err
	}
	if asJSON {
		return printJSON(o.stdout, info)
	}
	t := tabwriter.NewWriter(o.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "UPLINK\tSTREAM\tSTATE\tSINCE\tWAITING\tOLDEST\tDEAD LETTERS")
	failed := false
	for i := range info.Uplinks {
		u := &info.Uplinks[i]
		oldest := "-"
		if u.AgeSeconds > 0 {
			oldest = control.DurationText(time.Duration(u.AgeSeconds * float64(time.Second)))
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%d (%s)\t%s\t%d\n",
			u.Uplink, u.Stream, u.State, timeText(u.Since), u.Records, control.BytesText(u.Bytes), oldest, u.DeadLetters)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, p := range info.Problems {
		fmt.Fprintf(o.stdout, "%s: %s: %s\n    %s\n", p.Severity, p.Where, p.Text, p.Hint)
		failed = failed || p.Severity == string(control.Error)
	}
	if failed {
		return errProblems
	}
	return nil
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
