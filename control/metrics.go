package control

import (
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"edgegateway/device"
)

const namespace = "edge_gateway_"

// Collector shows the Monitor's picture to Prometheus. Nothing is counted twice: every figure is one of Status.
type Collector struct {
	status func() Status
}

// NewCollector returns a Collector over status, which is called once for each scrape.
func NewCollector(status func() Status) *Collector { return &Collector{status} }

// Describe implements prometheus.Collector. It describes nothing, which makes the collector an unchecked one: the
// devices' counters are known only to their drivers.
func (c *Collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(out chan<- prometheus.Metric) {
	s := c.status()
	e := exposition{out}
	e.gauge("build_info", "Version of the gateway; the value is always 1.", 1, "version", s.Version, "goversion", runtime.Version())
	e.gauge("start_time_seconds", "Start of the gateway, as seconds since 1970.", unixSeconds(s.Started))
	e.problems(s.Problems)
	for i := range s.Devices {
		e.device(&s.Devices[i])
	}
	for i := range s.Streams {
		e.stream(&s.Streams[i])
	}
	for i := range s.Uplinks {
		e.uplink(&s.Uplinks[i])
		if i == 0 || s.Uplinks[i].Name != s.Uplinks[i-1].Name { // it is shared by the streams
			e.quota(&s.Uplinks[i])
		}
	}
	for i := range s.Lanes {
		e.lane(&s.Lanes[i])
	}
	e.flash(&s.Flash)
	for _, r := range s.Removed {
		e.gauge("removed_uplink_records", "Records that are kept for an uplink that is not in the config any more.", float64(r.Backlog.Records), "uplink", r.Uplink, "stream", r.Stream)
	}
	for _, c := range s.Credentials {
		if !c.Expires.IsZero() {
			e.gauge("credential_expiry_seconds", "Time until a file that the uplink signs in with expires; negative when it has.", c.Expires.Sub(s.Time).Seconds(), "uplink", c.Uplink, "file", c.File)
		}
	}
	e.counter("unrouted_messages_total", "Messages that no stream has asked for since the start.", float64(s.Unrouted))
}

// exposition writes metrics. Labels are given as name, value, name, value and so on.
type exposition struct {
	out chan<- prometheus.Metric
}

func (e exposition) problems(list []Problem) {
	for _, severity := range []Severity{Warning, Error} {
		n := 0
		for _, p := range list {
			if p.Severity == severity {
				n++
			}
		}
		e.gauge("problems", "Problems that need a person, as the page lists them.", float64(n), "severity", string(severity))
	}
}

func (e exposition) device(d *Device) {
	states := []device.State{device.Starting, device.Up, device.Degraded, device.Down}
	emitStates(e, "device_state", "State of the device: 1 for the state that it is in.", states, d.State, "device", d.Name)
	for name, n := range d.Counters {
		if name = metricName(name); strings.HasSuffix(name, "_total") {
			e.counter("device_"+name, "Counter of the device's driver: "+name+".", float64(n), "device", d.Name)
		}
	}
}

func (e exposition) stream(st *Stream) {
	e.counter("stream_records_total", "Records stored since the log began.", float64(st.Records), "stream", st.Name)
	e.gauge("stream_waiting_bytes", "Data that waits for the slowest uplink.", float64(st.Waiting), "stream", st.Name)
	if st.Quota > 0 {
		e.gauge("stream_quota_bytes", "Data that may wait for the slowest uplink (quota).", float64(st.Quota), "stream", st.Name)
	}
	e.counter("stream_dropped_records_total", "Records dropped before each uplink had them, since the log began.", float64(st.Dropped), "stream", st.Name)
	e.counter("stream_refused_records_total", "Records refused by the log since it began: lane or quota full.", float64(st.RefusedEver), "stream", st.Name)
	e.counter("stream_refused_messages_total", "Messages not taken since the start: lane full or stopped.", float64(st.Refused), "stream", st.Name)
}

// flash says nothing of a budget or a rate that is not known: a 0 would be a value.
func (e exposition) flash(f *Flash) {
	e.counter("flash_written_bytes_total", "Bytes that the lanes have cost the flash memory since their logs began, in whole pages of 16 KiB.", float64(f.Written))
	if f.Budget > 0 {
		e.gauge("flash_budget_bytes", "Bytes that the flash memory may be written in its life (flash_budget).", float64(f.Budget))
	}
	if f.PerDay > 0 {
		e.gauge("flash_written_bytes_per_day", "Present rate at which the lanes wear the flash memory.", f.PerDay)
	}
	if f.Lasts > 0 {
		e.gauge("flash_lasts_seconds", "Forecast until flash_budget is used up, at the present rate.", f.Lasts.Seconds())
	}
}

func (e exposition) uplink(u *Uplink) {
	labels := []string{"uplink", u.Name, "stream", u.Stream}
	states := []LinkState{Connecting, Sending, Waiting, Paused, Stopped}
	emitStates(e, "uplink_state", "State of the uplink: 1 for the state that it is in.", states, u.State, labels...)
	e.counter("uplink_acked_records_total", "Records that the far broker confirmed since the start.", float64(u.Acked), labels...)
	e.gauge("uplink_last_ack_timestamp_seconds", "When the far broker last confirmed a record, as seconds since 1970; 0 if never.", unixSeconds(u.LastAck), labels...)
	e.gauge("uplink_dead_letters", "Records refused for good and kept.", float64(u.DeadLetters), labels...)
	e.gauge("uplink_held_records", "Records refused for now, and those that wait behind them, while others go on.", float64(u.Held), labels...)
	e.gauge("uplink_in_doubt_seconds", "For how long the oldest record is on its way of which it is not known whether the far broker has it; 0 for none.",
		u.InDoubt.Seconds(), labels...)
	for _, f := range u.Figures {
		emit := e.gauge
		if f.Counter {
			emit = e.counter
		}
		emit("uplink_"+f.Name, f.Help, f.Value, labels...)
	}
	e.gauge("backlog_records", "Records stored and not yet confirmed.", float64(u.Backlog.Records), labels...)
	e.gauge("backlog_bytes", "Data of the records stored and not yet confirmed, estimated.", float64(u.Backlog.Bytes), labels...)
	e.gauge("backlog_age_seconds", "Age of the oldest record not yet confirmed.", u.Backlog.Age.Seconds(), labels...)
}

func (e exposition) quota(u *Uplink) {
	if u.Quota > 0 {
		e.gauge("uplink_quota_used_bytes", "Payload that the uplink has sent today (UTC).", float64(u.QuotaUsed), "uplink", u.Name)
		e.gauge("uplink_quota_bytes", "Payload that the uplink may send a day (bytes_per_day).", float64(u.Quota), "uplink", u.Name)
	}
}

func (e exposition) lane(l *Lane) {
	states := []LaneState{LaneOK, LaneFull, LaneStopped}
	emitStates(e, "lane_state", "State of the lane: 1 for the state that it is in.", states, l.State, "lane", l.Name)
	e.gauge("lane_bytes", "Size of the lane on disk.", float64(l.Bytes), "lane", l.Name)
	e.gauge("lane_limit_bytes", "Size that the lane may have on disk (max_bytes).", float64(l.MaxBytes), "lane", l.Name)
	e.gauge("lane_full_in_seconds", "Forecast until the lane is full; 0 when it is not growing.", l.FullIn.Seconds(), "lane", l.Name)
	e.gauge("lane_segments", "Segment files of the lane.", float64(l.Segments), "lane", l.Name)
	e.gauge("lane_epoch", "Number of this life of the log.", float64(l.Epoch), "lane", l.Name)
	e.gauge("lane_held_bytes", "Size on disk of what an uplink has not confirmed, and of all that came after it.", float64(l.Held), "lane", l.Name)
	e.gauge("lane_doubts", "Reasons not to trust the medium under the lane, as the page lists them.", float64(len(l.Doubts)), "lane", l.Name)
	e.counter("lane_written_bytes_total", "Bytes handed to the disk since the log began.", float64(l.Written), "lane", l.Name)
	e.counter("lane_flash_bytes_total", "Bytes handed to the disk since the log began, in whole flash pages of 16 KiB.", float64(l.Flash), "lane", l.Name)
	e.counter("lane_commits_total", "Commits written to stable storage.", float64(l.Commits), "lane", l.Name)
	e.counter("lane_dropped_records_total", "Records dropped by drop_oldest and max_age since the log began.", float64(l.Dropped), "lane", l.Name)
	e.counter("lane_dead_letters_lost_total", "Dead letters that went because there were too many, since the log began.", float64(l.LettersLost), "lane", l.Name)
	e.gauge("lane_dead_letters_waiting", "Dead letters for which the full disk has no room yet.", float64(l.LettersWaiting), "lane", l.Name)
	e.counter("lane_refused_records_total", "Records refused by drop_newest since the log began.", float64(l.Refused), "lane", l.Name)
}

func emitStates[S ~string](e exposition, name, help string, states []S, is S, labels ...string) {
	for _, state := range states {
		v := 0.0
		if state == is {
			v = 1
		}
		e.gauge(name, help, v, append(slices.Clip(labels), "state", string(state))...)
	}
}

func (e exposition) gauge(name, help string, v float64, labels ...string) {
	e.emit(prometheus.GaugeValue, name, help, v, labels)
}

func (e exposition) counter(name, help string, v float64, labels ...string) {
	e.emit(prometheus.CounterValue, name, help, v, labels)
}

func (e exposition) emit(kind prometheus.ValueType, name, help string, v float64, labels []string) {
	names, values := make([]string, 0, 3), make([]string, 0, 3)
	for i := 0; i+1 < len(labels); i += 2 {
		names = append(names, labels[i])
		values = append(values, strings.ToValidUTF8(labels[i+1], "\uFFFD"))
	}
	desc := prometheus.NewDesc(namespace+name, help, names, nil)
	e.out <- prometheus.MustNewConstMetric(desc, kind, v, values...)
}

// metricName makes a driver's counter name fit for Prometheus.
func metricName(name string) string {
	return strings.Map(func(r rune) rune {
		if r == '_' || 'a' <= r && r <= 'z' || '0' <= r && r <= '9' {
			return r
		}
		return '_'
	}, strings.ToLower(name))
}

func unixSeconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1000
}
