package webui

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"edgegateway/control"
	"edgegateway/device"
	"edgegateway/pipeline"
)

// Levels colour the page. Each also has an icon and a word beside it, for who does not see the colour.
const (
	levelOK      = "ok"
	levelWarning = "warning"
	levelError   = "error"
	levelIdle    = "idle"
)

// view is the status as the page shows it: texts and levels, no figures to work with.
type view struct {
	Version  string
	Started  moment
	Summary  summary
	Problems []problemView
	Uplinks  []uplinkView
	Streams  []streamView
	Unrouted string // messages that no stream has asked for
	Lanes    []laneView
	Flash    string
	Devices  []deviceView
}

// moment is a time that shows as an age. In fragments that are sent live the text stays empty: the script in the page
// fills it in and lets it grow, and a fragment in which nothing but ages has changed is not sent again.
type moment struct {
	t, now time.Time
}

func (m moment) isSet() bool { return !m.t.IsZero() }

// millis returns the milliseconds since 1970.
func (m moment) millis() string { return strconv.FormatInt(m.t.UnixMilli(), 10) }

// iso returns the time for machines.
func (m moment) iso() string { return m.t.UTC().Format(time.RFC3339) }

func (m moment) age() string { return m.distance(m.now.Sub(m.t)) }

func (m moment) toGo() string { return m.distance(m.t.Sub(m.now)) }

func (m moment) distance(d time.Duration) string {
	if m.now.IsZero() {
		return ""
	}
	return control.DurationText(d)
}

type summary struct {
	Level, Headline, Detail, Tab string
}

type problemView struct {
	Level, Word, Where, Text, Hint string
}

type uplinkView struct {
	Name, Driver, Stream string
	Level, State         string
	Since, LastAck, Next moment
	Error                string
	Rate, Acked          string
	Backlog              backlogView
	DeadLetters, Held    string
	Limit, Quota, Older  string
	Promise              string
}

type streamView struct {
	Name, Lane, Rate, Records, Refused string
	Quota, QuotaLevel                  string
	Backlog                            backlogView
}

type backlogView struct {
	Records, Unit, Bytes, Age string
	None                      bool
}

type laneView struct {
	Name, Level, State, Error      string
	Used, Limit, Percent, Forecast string
	Segments, Epoch, Commits       string
	Dropped, Refused               string
}

type deviceView struct {
	ID                  string
	Name, Driver        string
	Level, State, Error string
	Since               moment
	Parts               []partView
	Values              []valueView
	Hidden              int
}

type partView struct {
	Name, Level, State, Error string
}

type valueView struct {
	Path, Leaf             string
	Value, Unit            string
	Level, Quality, Reason string
	Time                   moment
}

// newView prepares s. A zero now leaves the ages to the script.
func newView(s control.Status, now time.Time) view {
	v := view{Version: s.Version, Started: moment{s.Started, now}, Summary: summarize(&s)}
	for _, p := range s.Problems {
		pv := problemView{levelWarning, "Warning", p.Where, p.Text, p.Hint}
		if p.Severity == control.Error {
			pv.Level, pv.Word = levelError, "Problem"
		}
		v.Problems = append(v.Problems, pv)
	}
	for i := range s.Uplinks {
		v.Uplinks = append(v.Uplinks, viewUplink(&s.Uplinks[i], now))
	}
	for i := range s.Streams {
		v.Streams = append(v.Streams, viewStream(&s.Streams[i]))
	}
	for i := range s.Lanes {
		v.Lanes = append(v.Lanes, viewLane(&s.Lanes[i]))
	}
	if s.Unrouted > 0 {
		v.Unrouted = control.CountOf(s.Unrouted, "message") + " no stream has asked for since the start."
	}
	v.Flash = viewFlash(&s.Flash)
	for i := range s.Devices {
		d := viewDevice(&s.Devices[i], now)
		d.ID = "device-" + strconv.Itoa(i)
		v.Devices = append(v.Devices, d)
	}
	return v
}

func summarize(s *control.Status) summary {
	if s.Time.IsZero() {
		return summary{levelIdle, "Starting", "The first figures come in a moment.", "Starting"}
	}
	problems, warnings := 0, 0
	for _, p := range s.Problems {
		if p.Severity == control.Error {
			problems++
		} else {
			warnings++
		}
	}
	detail := strings.Join(facts(s), " · ")
	tell := func(n int, what string) string { return control.CountOf(uint64(n), what) }
	switch {
	case problems > 0 && warnings > 0:
		return summary{levelError, tell(problems, "problem") + " and " + tell(warnings, "warning") + " need attention", detail, tell(problems, "problem")}
	case problems == 1:
		return summary{levelError, "1 problem needs attention", detail, "1 problem"}
	case problems > 1:
		return summary{levelError, tell(problems, "problem") + " need attention", detail, tell(problems, "problem")}
	case warnings > 0:
		return summary{levelWarning, "Working, with " + tell(warnings, "warning"), detail, tell(warnings, "warning")}
	default:
		return summary{levelOK, "All is well", detail, "All is well"}
	}
}

// facts are what the line under the headline says.
func facts(s *control.Status) []string {
	up, sending, waiting, rate := 0, 0, uint64(0), 0.0
	for _, d := range s.Devices {
		if d.State == device.Up {
			up++
		}
	}
	for _, u := range s.Uplinks {
		if u.State == control.Sending {
			sending++
		}
	}
	for _, st := range s.Streams {
		waiting += st.Backlog.Records
		rate += st.Rate
	}
	var list []string
	if n := len(s.Devices); n > 0 {
		list = append(list, fmt.Sprintf("%d of %s up", up, control.CountOf(uint64(n), "device")))
	}
	if n := len(s.Uplinks); n > 0 {
		list = append(list, fmt.Sprintf("%d of %s delivering", sending, control.CountOf(uint64(n), "uplink")))
	}
	if len(s.Streams) > 0 {
		list = append(list, rateText(rate)+" records/s stored")
		if waiting == 0 {
			list = append(list, "everything confirmed")
		} else {
			list = append(list, control.CountOf(waiting, "record")+" waiting")
		}
	}
	if len(list) == 0 {
		return []string{"Nothing is configured yet"}
	}
	return list
}

func viewUplink(u *control.Uplink, now time.Time) uplinkView {
	v := uplinkView{
		Name: u.Name, Driver: u.Driver, Stream: u.Stream,
		State: string(u.State), Since: moment{u.Since, now}, LastAck: moment{u.LastAck, now},
		Promise: promiseText(u.Delivery, u.Order), Error: u.Error, Rate: rateText(u.Rate), Acked: control.CountText(u.Acked), Backlog: viewBacklog(u.Backlog),
	}
	switch u.State {
	case control.Sending:
		v.Level = levelOK
	case control.Waiting:
		v.Level, v.Next = levelError, moment{u.NextTry, now}
	case control.Connecting:
		v.Level = levelIdle
		if u.Error != "" {
			v.Level = levelError
		}
	case control.Paused:
		v.Level = levelWarning
	default:
		v.Level = levelError
	}
	if u.DeadLetters > 0 {
		v.DeadLetters = control.CountText(u.DeadLetters)
	}
	v.Limit = u.Limit
	if u.Quota > 0 {
		v.Quota = control.BytesText(u.QuotaUsed) + " of " + control.BytesText(u.Quota)
	}
	if u.Older > 0 {
		v.Older = control.CountOf(u.Older, "older record") + ", beside new ones"
	}
	if u.Held > 0 {
		v.Held = control.CountText(u.Held)
	}
	return v
}

// promiseText says in words what is promised of a stream's records: Each record exactly once, in order.
func promiseText(delivery, order string) string {
	if delivery == "" {
		return ""
	}
	text := "Each record " + strings.ReplaceAll(delivery, "_", " ")
	switch order {
	case "key":
		return text + ", in order by key"
	case "none":
		return text + ", in any order"
	}
	return text + ", in order"
}

func viewStream(st *control.Stream) streamView {
	v := streamView{Name: st.Name, Lane: st.Lane, Rate: rateText(st.Rate), Records: control.CountText(st.Records), Backlog: viewBacklog(st.Backlog)}
	if st.Refused > 0 {
		v.Refused = control.CountText(st.Refused)
	}
	if st.Quota > 0 {
		v.Quota = control.BytesText(st.Waiting) + " of " + control.BytesText(st.Quota)
		if st.Full {
			v.QuotaLevel = levelWarning
		}
	}
	return v
}

// viewFlash says in one line what the logs cost the flash memory, or "" where nothing is known yet.
func viewFlash(f *control.Flash) string {
	if f.PerDay <= 0 {
		return ""
	}
	text := "Wear of the flash memory: " + control.BytesText(uint64(f.PerDay)) + " a day, " + control.BytesText(f.Written) + " so far"
	if f.Lasts > 0 {
		text += "; the budget of " + control.BytesText(f.Budget) + " lasts " + control.YearsText(f.Lasts)
	}
	return text + "."
}

func viewBacklog(b control.Backlog) backlogView {
	v := backlogView{
		Records: control.CountText(b.Records), Unit: "records", Bytes: control.BytesText(b.Bytes),
		Age: control.DurationText(b.Age), None: b.Records == 0,
	}
	if b.Records == 1 {
		v.Unit = "record"
	}
	return v
}

func viewLane(l *control.Lane) laneView {
	v := laneView{
		Name: l.Name, Level: levelOK, State: string(l.State), Error: l.Error,
		Used: control.BytesText(uint64(max(0, l.Bytes))), Limit: control.BytesText(uint64(max(0, l.MaxBytes))), Percent: "0",
		Segments: control.CountOf(uint64(max(0, l.Segments)), "segment"), Epoch: strconv.FormatUint(l.Epoch, 10),
		Commits: control.CountText(l.Commits),
	}
	if l.MaxBytes > 0 {
		v.Percent = strconv.FormatFloat(min(100, 100*float64(max(0, l.Bytes))/float64(l.MaxBytes)), 'f', 1, 64)
	}
	if l.Dropped > 0 {
		v.Dropped = control.CountText(l.Dropped)
	}
	if l.Refused > 0 {
		v.Refused = control.CountText(l.Refused)
	}
	switch {
	case l.State != control.LaneOK:
		v.Level = levelError
		v.Forecast = map[control.LaneState]string{control.LaneFull: "Full now", control.LaneStopped: "Stopped: nothing is stored"}[l.State]
	case l.FullIn > 0:
		if l.FullIn <= 24*time.Hour {
			v.Level = levelWarning
		}
		v.Forecast = "Full in about " + control.DurationText(l.FullIn)
	default:
		v.Forecast = "Not growing"
	}
	return v
}

func viewDevice(d *control.Device, now time.Time) deviceView {
	v := deviceView{
		Name: d.Name, Driver: d.Driver, Level: deviceLevel(d.State), State: string(d.State), Error: d.Error,
		Since: moment{d.Since, now}, Hidden: d.Hidden,
	}
	for _, p := range d.Parts {
		v.Parts = append(v.Parts, partView{p.Name, deviceLevel(p.State), string(p.State), p.Error})
	}
	for _, x := range d.Values {
		topic := strings.TrimPrefix(x.Topic, d.Name+"/")
		leaf := strings.LastIndexByte(topic, '/') + 1
		value := valueView{
			Path: topic[:leaf], Leaf: topic[leaf:], Value: x.Value, Unit: x.Unit,
			Level: levelOK, Quality: x.Quality.String(), Reason: x.Reason, Time: moment{x.Time, now},
		}
		switch x.Quality {
		case pipeline.Good:
		case pipeline.Uncertain:
			value.Level = levelWarning
		default:
			value.Level = levelError
		}
		v.Values = append(v.Values, value)
	}
	return v
}

func deviceLevel(s device.State) string {
	switch s {
	case device.Up:
		return levelOK
	case device.Degraded:
		return levelWarning
	case device.Down:
		return levelError
	default:
		return levelIdle
	}
}

// rateText writes a rate so that it does not flicker: no decimals from 10 on.
func rateText(rate float64) string {
	switch {
	case rate >= 9.95:
		return control.CountText(uint64(rate + 0.5))
	case rate == 0:
		return "0"
	default:
		return strconv.FormatFloat(rate, 'f', 1, 64)
	}
}
