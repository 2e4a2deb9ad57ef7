package main

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"edgegateway/control"
	"edgegateway/device"
	"edgegateway/pipeline"
	"edgegateway/uplink"
	"edgegateway/wal"
)

// gather takes a picture of all parts.
func (g *gateway) gather() control.Status {
	s := control.Status{Gateway: g.config.Gateway.ID, Version: version(), Time: time.Now(), Started: g.started}
	for _, d := range g.devices {
		s.Devices = append(s.Devices, g.deviceStatus(d))
	}
	s.Flash = control.Flash{Budget: uint64(g.config.Gateway.FlashBudget), Years: g.config.Gateway.FlashYears}
	stats := make(map[string]wal.Stats, len(g.lanes))
	for _, l := range g.lanes {
		lane, st := laneStatus(l)
		s.Lanes = append(s.Lanes, lane)
		stats[l.name] = st
	}
	backlogs := make(map[string]control.Backlog)
	for _, k := range g.again {
		// It is there once somebody has sent dead letters again, and runs where that is not all done.
		if k.runs() != nil {
			u := k.status()
			u.QuotaUsed, u.Quota = g.limits[k.uplink].Quota()
			s.Uplinks = append(s.Uplinks, u)
		}
	}
	s.Unrouted, s.Credentials = g.pipeline.Unrouted(), g.secrets.list()
	for _, l := range g.lanes {
		if log, _ := l.opened(); log != nil {
			for _, c := range g.removedCursors(log) {
				s.Removed = append(s.Removed, control.Removed{
					Uplink: c.Uplink, Stream: c.Stream, Lane: l.name, Backlog: control.Backlog{Records: c.Lag.Records, Bytes: c.Lag.Bytes},
				})
			}
		}
	}
	for _, k := range g.links {
		u := k.status()
		u.QuotaUsed, u.Quota = g.limits[k.uplink].Quota()
		s.Uplinks = append(s.Uplinks, u)
		if b := backlogs[k.stream]; u.Backlog.Records >= b.Records {
			backlogs[k.stream] = u.Backlog
		}
	}
	slices.SortFunc(s.Uplinks, func(a, b control.Uplink) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Stream, b.Stream))
	})
	for name, c := range g.config.Streams {
		stream := control.Stream{Name: name, Lane: c.Lane, Backlog: backlogs[name], Refused: g.pipeline.Refused(name)}
		for _, st := range stats[c.Lane].Streams {
			if st.Name == name {
				stream.Records = st.Records
				stream.Waiting, stream.Quota, stream.Full = st.Waiting, uint64(st.Quota), st.Full
				stream.Dropped, stream.RefusedEver = st.Dropped, st.Refused
			}
		}
		s.Streams = append(s.Streams, stream)
	}
	slices.SortFunc(s.Streams, func(a, b control.Stream) int { return strings.Compare(a.Name, b.Name) })
	return s
}

func (g *gateway) deviceStatus(d *deviceRun) control.Device {
	s := control.Device{Name: d.name, Driver: d.driver}
	d.mu.Lock()
	running, err, since, panics := d.running, d.err, d.since, d.panics
	d.mu.Unlock()
	switch {
	case running != nil:
		s.Status = running.Status()
	case err != nil:
		s.Status = device.Status{State: device.Down, Since: since, Error: err.Error()}
	default:
		s.Status = device.Status{State: device.Starting, Since: since}
	}
	if panics > 0 {
		if s.Counters == nil {
			s.Counters = map[string]uint64{}
		}
		s.Counters["panics_total"] = panics
	}
	newest, more := g.pipeline.Newest(d.name)
	if more {
		s.Hidden = 1
	}
	for i := range newest {
		s.Values = append(s.Values, lastValue(&newest[i]))
	}
	slices.SortFunc(s.Values, func(a, b control.LastValue) int { return strings.Compare(a.Topic, b.Topic) })
	return s
}

func lastValue(m *pipeline.Message) control.LastValue {
	return control.LastValue{
		Topic: m.Topic, Value: valueText(m.Value), Unit: m.Unit, Quality: m.Quality, Reason: m.Reason, Time: m.Time,
	}
}

// valueText writes a value as a person reads it. A float has the digits that a sensor may really have measured; all the others
// are in the record.
func valueText(v pipeline.Value) string {
	if number, ok := v.Number(); ok && v.Kind() == pipeline.KindFloat {
		return strconv.FormatFloat(number, 'g', 6, 64)
	}
	return shorten(v.Text())
}

// shorten makes a payload fit for a line on the page.
func shorten(s string) string {
	const most = 64
	if !utf8.ValidString(s) {
		return "(binary)"
	}
	if utf8.RuneCountInString(s) <= most {
		return s
	}
	return string([]rune(s)[:most-1]) + "…"
}

func laneStatus(l *laneRun) (control.Lane, wal.Stats) {
	s := control.Lane{Name: l.name, State: control.LaneOK, MaxBytes: int64(l.config.MaxBytes)}
	for _, d := range l.doubts(time.Now()) {
		s.Doubts = append(s.Doubts, control.Doubt{Kind: d.Kind, Text: d.Text, Hint: d.Hint})
	}
	s.Room = -1
	if free, err := wal.Free(l.dir); err == nil {
		s.Room = free
	}
	log, err := l.opened()
	if log == nil {
		s.State = control.LaneStopped
		if err != nil {
			s.Error = err.Error()
		}
		return s, wal.Stats{}
	}
	st := log.Stats()
	s.State = laneStates[st.State]
	if st.Err != nil {
		s.Error = st.Err.Error()
	}
	s.Epoch, s.Bytes, s.Segments, s.Commits, s.Refused = st.Epoch, st.Bytes, st.Segments, st.Commits, st.Refused
	s.Written, s.Flash, s.Held, s.LettersLost, s.LettersWaiting = st.WrittenEver, st.FlashEver, st.Held, st.DeadLettersLost, st.LettersWaiting
	for _, stream := range st.Streams {
		s.Dropped += stream.Dropped
	}
	return s, st
}

func (k *linkRun) status() control.Uplink {
	s := control.Uplink{
		Name: k.uplink, Driver: k.driver, Stream: k.stream,
		Delivery: string(cmp.Or(k.promise.Delivery, uplink.AtLeastOnce)), Order: string(cmp.Or(k.promise.Order, uplink.OrderStrict)),
	}
	k.mu.Lock()
	cursor, runner := k.cursor, k.runner
	k.mu.Unlock()
	if runner == nil {
		s.State, s.Error = control.Stopped, "its lane is not open"
		return s
	}
	st := runner.Status()
	s.State = linkStates[st.State]
	s.Since, s.Error, s.NextTry, s.LastAck, s.Acked = st.Since, st.Error, st.NextTry, st.LastAck, st.Acked
	for _, c := range st.Choices {
		s.Choices = append(s.Choices, string(c))
	}
	s.Held, s.HeldFor = uint64(max(st.Held, 0)), st.HeldFor
	lag, older := lag(runner, cursor)
	s.Limit, s.Older = st.Limit, older
	for _, f := range k.figures.List() {
		s.Figures = append(s.Figures, control.Figure{Name: f.Name, Help: f.Help, Counter: f.IsCounter(), Value: f.Value})
	}
	if !st.InDoubt.IsZero() {
		s.InDoubt = max(time.Since(st.InDoubt), 0)
	}
	s.Backlog = control.Backlog{Records: lag.Records, Bytes: lag.Bytes}
	if lag.Records > 0 && !lag.Oldest.IsZero() {
		s.Backlog.Age = max(time.Since(lag.Oldest), 0)
	}
	s.DeadLetters = k.lane.deadLetters(k.uplink, k.stream)
	return s
}

var laneStates = map[wal.State]control.LaneState{
	wal.StateOK: control.LaneOK, wal.StateFull: control.LaneFull, wal.StateStopped: control.LaneStopped,
}

var linkStates = map[uplink.State]control.LinkState{
	uplink.Connecting: control.Connecting, uplink.Sending: control.Sending,
	uplink.Waiting: control.Waiting, uplink.Stopped: control.Stopped, uplink.Paused: control.Paused,
}
