package control

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"edgegateway/device"
)

const (
	startPatience   = 30 * time.Second // for a device or an uplink to come up before it counts as a problem
	lossMemory      = 10 * time.Minute // how long lost messages stay a problem after the last one
	backlogPatience = time.Minute      // age from which a growing backlog is a problem
	nearlyFull      = 24 * time.Hour   // forecast from which a lane is a problem
)

// lossKey names a counter of lost messages.
type lossKey struct{ what, name string }

// loss is what the Monitor knows of such a counter: when it last grew.
type loss struct {
	count uint64
	grew  time.Time
}

// problems lists what needs a person. Within a severity the order is that of the damage: lost data first.
func (m *Monitor) problems(now time.Time, s *Status) []Problem {
	var list []Problem
	for i := range s.Lanes {
		list = m.laneProblems(list, now, s, &s.Lanes[i])
	}
	for i := range s.Streams {
		list = m.refusals(list, now, &s.Streams[i])
	}
	for i := range s.Uplinks {
		list = m.uplinkProblems(list, now, s, &s.Uplinks[i])
	}
	list = removedProblems(list, s.Removed)
	list = credentialProblems(list, now, s.Credentials)
	for i := range s.Devices {
		list = deviceProblems(list, now, &s.Devices[i])
	}
	for i := range s.Streams {
		list = m.growing(list, now, s, &s.Streams[i])
	}
	list = flashProblems(list, &s.Flash)
	if s.Time.Year() < 2026 {
		list = append(list, Problem{
			Warning, "gateway",
			"The clock has not been set: it says " + s.Time.Format("2 January 2006") + ".",
			"Readings are stored in their true order, but carry a wrong time until the clock is set. Check the network's time server.",
		})
	}
	slices.SortStableFunc(list, func(a, b Problem) int { return a.Severity.rank() - b.Severity.rank() })
	return list
}

// rank orders severities, the worst first.
func (s Severity) rank() int {
	if s == Error {
		return 0
	}
	return 1
}

func (m *Monitor) laneProblems(list []Problem, now time.Time, s *Status, l *Lane) []Problem {
	where := "lane " + l.Name
	for _, d := range l.Doubts {
		list = append(list, Problem{Warning, where, d.Text, d.Hint})
	}
	switch l.State {
	case LaneStopped:
		list = append(list, Problem{
			Error, where, sentence("The log has stopped, and nothing is stored or acknowledged in this lane", l.Error),
			"Check the disk, then restart the gateway. What was confirmed to a sender before is not affected.",
		})
	case LaneFull:
		text := fmt.Sprintf("The log is full: %s of %s are in use.", BytesText(bytesOf(l.Bytes)), BytesText(bytesOf(l.MaxBytes)))
		if l.Error != "" {
			text = sentence("The disk is full", l.Error)
		}
		list = append(list, Problem{
			Error, where, text,
			"Room comes back as soon as the uplinks confirm records. If they do so already, make disk space or raise max_bytes.",
		})
	case LaneOK:
		if l.FullIn > 0 && l.FullIn <= nearlyFull {
			list = append(list, Problem{
				Warning, where,
				"The log will be full in about " + DurationText(l.FullIn) + " if it goes on growing like this.",
				"Bring the uplink that is behind back before then, or raise max_bytes.",
			})
		}
	}
	if n, ok := m.lost(lossKey{"dropped", l.Name}, l.Dropped, now, s.Started); ok {
		list = append(list, Problem{
			Error, where, CountOf(n, "record") + " dropped to make room for newer ones.",
			"They were not delivered to every uplink and are gone. Raise max_bytes or max_age if this must not happen.",
		})
	}
	if l.LettersWaiting > 0 {
		list = append(list, Problem{
			Error, where, CountOf(uint64(l.LettersWaiting), "dead letter") + " cannot be kept: the disk has no room for " + itOrThem(l.LettersWaiting) + ".",
			"Nothing is lost: the records stay in the log until there is room. An uplink with exactly_once waits for that. Make disk space.",
		})
	}
	if n, ok := m.lost(lossKey{"letters", l.Name}, l.LettersLost, now, s.Started); ok {
		list = append(list, Problem{
			Warning, where, CountOf(n, "dead letter") + " gone, because there were too many.",
			"They cannot be sent again. Mend what the far side refuses, and send the others again or purge them.",
		})
	}
	if n, ok := m.lost(lossKey{"refused", l.Name}, l.Refused, now, s.Started); ok {
		list = append(list, Problem{
			Error, where, CountOf(n, "record") + " refused because the log was full.",
			"Raise max_bytes, or bring the uplinks back that are behind.",
		})
	}
	return list
}

func itOrThem(n int) string {
	if n == 1 {
		return "it"
	}
	return "them"
}

func (m *Monitor) refusals(list []Problem, now time.Time, st *Stream) []Problem {
	if st.Full {
		list = append(list, Problem{
			Warning, "stream " + st.Name,
			fmt.Sprintf("It is at its quota: %s of %s wait for its slowest uplink.", BytesText(st.Waiting), BytesText(st.Quota)),
			"Only this stream is held up or loses records. Bring its uplink back, or raise its quota.",
		})
	}
	n, ok := m.lost(lossKey{"stream", st.Name}, st.Refused, now, time.Time{})
	if !ok {
		return list
	}
	return append(list, Problem{
		Error, "stream " + st.Name, CountOf(n, "message") + " not taken since the start.",
		"Lane " + st.Lane + " was full or stopped. MQTT clients get no acknowledgement and send again; readings of a poll are lost.",
	})
}

// lost tells whether the counter grew within lossMemory, and returns it. What it stood at when it was first seen counts as
// news of that moment only when the counter began at the gateway's start, that is when it has no past.
func (m *Monitor) lost(k lossKey, count uint64, now, past time.Time) (uint64, bool) {
	old, seen := m.losses[k]
	grew := old.grew
	if seen && count > old.count || !seen && count > 0 && past.IsZero() {
		grew = now
	}
	m.losses[k] = loss{count, grew}
	return count, !grew.IsZero() && now.Sub(grew) <= lossMemory
}

func (m *Monitor) uplinkProblems(list []Problem, now time.Time, s *Status, u *Uplink) []Problem {
	where, key := "uplink "+u.Name, uplinkKey{u.Name, u.Stream}
	if u.DeadLetters > 0 {
		list = append(list, Problem{
			Warning, where, CountOf(u.DeadLetters, "record") + " of stream " + u.Stream + " refused for good by the far side.",
			"They are kept as dead letters with the reason: edge-gateway deadletters list. Send them again or purge them when the cause is mended.",
		})
	}
	if u.Held > 0 {
		list = append(list, Problem{
			Warning, where, sentence(CountOf(u.Held, "record")+" of stream "+u.Stream+" held back", u.HeldFor),
			"The others go on. These are tried again by themselves.",
		})
	}
	// A failed uplink goes to and fro between waiting and connecting; its error stays until something is confirmed.
	failed := u.State == Waiting || u.State == Connecting && u.Error != ""
	if !failed && u.State != Connecting {
		delete(m.troubles, key)
	}
	switch since, known := m.troubles[key]; {
	case failed:
		if !known {
			since = now
			if !u.Since.IsZero() && u.Since.Before(now) {
				since = u.Since
			}
			m.troubles[key] = since
		}
		text := "Stream " + u.Stream + " has not been delivered for " + DurationText(now.Sub(since))
		list = append(list, Problem{Error, where, sentence(text, u.Error), failedHint(u)})
	case u.State == Connecting && !u.Since.IsZero() && now.Sub(u.Since) > startPatience:
		list = append(list, Problem{Warning, where, "Still connecting after " + DurationText(now.Sub(u.Since)) + ".", waits(u.Backlog)})
	case u.State == Sending && u.Limit != "" && u.Older == 0:
		list = append(list, Problem{
			Warning, where, "Stream " + u.Stream + " " + strings.TrimRight(u.Limit, ".") + ".",
			fmt.Sprintf("%s (%s) wait in the log. Raise the quota, bytes_per_day or the broker's, or send less with deadband or throttle.", CountOf(u.Backlog.Records, "record"), BytesText(u.Backlog.Bytes)),
		})
	case u.State == Paused:
		list = append(list, Problem{
			Warning, where, "Paused by an operator for " + DurationText(now.Sub(u.Since)) + ": stream " + u.Stream + " is not delivered.",
			fmt.Sprintf("%s (%s) wait in the log. To go on: edge-gateway resume %s", CountOf(u.Backlog.Records, "record"), BytesText(u.Backlog.Bytes), u.Name),
		})
	case u.State == Stopped && !laneStopped(s, u.Stream):
		list = append(list, Problem{Error, where, sentence("Stopped: stream "+u.Stream+" is not delivered", u.Error), waits(u.Backlog)})
	}
	return list
}

// failedHint says what a person can do about an uplink that fails.
func failedHint(u *Uplink) string {
	if len(u.Choices) == 0 {
		return waits(u.Backlog)
	}
	commands := make([]string, len(u.Choices))
	for i, c := range u.Choices {
		commands[i] = "edge-gateway choose " + u.Name + " " + u.Stream + " " + c
	}
	return fmt.Sprintf("Nothing is sent until somebody chooses: %s. %s (%s) wait in the log.", strings.Join(commands, ", or "),
		CountOf(u.Backlog.Records, "record"), BytesText(u.Backlog.Bytes))
}

func waits(b Backlog) string {
	if b.Records == 0 {
		return "Nothing waits for it. The gateway goes on trying by itself."
	}
	return fmt.Sprintf("Nothing is lost: %s (%s) wait in the log. The gateway goes on trying by itself.", CountOf(b.Records, "record"), BytesText(b.Bytes))
}

func laneStopped(s *Status, stream string) bool {
	i := slices.IndexFunc(s.Streams, func(st Stream) bool { return st.Name == stream })
	return i >= 0 && slices.ContainsFunc(s.Lanes, func(l Lane) bool {
		return l.Name == s.Streams[i].Lane && l.State == LaneStopped
	})
}

func deviceProblems(list []Problem, now time.Time, d *Device) []Problem {
	where, lasted := "device "+d.Name, ""
	if !d.Since.IsZero() {
		lasted = " for " + DurationText(now.Sub(d.Since))
	}
	switch d.State {
	case device.Up:
	case device.Down:
		list = append(list, Problem{
			Error, where, sentence("Down"+lasted, d.Error),
			"Check its power, cable and address. Its readings carry quality bad until it answers; no old value is passed on as new.",
		})
	case device.Degraded:
		what, cause := degraded(d)
		list = append(list, Problem{
			Warning, where, sentence(what+lasted, cause),
			"The parts that answer go on as usual.",
		})
	case device.Starting:
		if !d.Since.IsZero() && now.Sub(d.Since) > startPatience {
			list = append(list, Problem{Warning, where, "Has not started" + lasted + ".", "If this lasts, look into the gateway's log."})
		}
	}
	return list
}

// degraded names the parts that do not answer, where there are few, and the cause.
func degraded(d *Device) (what, cause string) {
	var silent []string
	cause = d.Error
	for _, p := range d.Parts {
		if p.State == device.Down || p.State == device.Degraded {
			silent = append(silent, p.Name)
			if len(silent) == 1 && p.Error != "" {
				cause = p.Error
			}
		}
	}
	switch n := len(silent); {
	case n == 0:
		return "Part of it has not answered", d.Error
	case n == 1:
		return "Part " + silent[0] + " has not answered", cause
	case n <= 4:
		return "Parts " + strings.Join(silent, ", ") + " have not answered", d.Error
	default:
		return fmt.Sprintf("%d of %d parts have not answered", n, len(d.Parts)), d.Error
	}
}

// growing reports streams that are stored faster than they are delivered although every uplink works.
func (m *Monitor) growing(list []Problem, now time.Time, s *Status, st *Stream) []Problem {
	old := m.before(now, growthWindow)
	elapsed := now.Sub(old.at)
	before := old.streams[st.Name].backlog.Records
	if elapsed < growthWindow/2 || st.Backlog.Age < backlogPatience || st.Backlog.Records <= before {
		return list
	}
	for _, u := range s.Uplinks {
		if u.Stream == st.Name && (u.State != Sending || u.Limit != "") {
			return list // said already, with its cause
		}
	}
	growth := rate(before, st.Backlog.Records, elapsed)
	text := fmt.Sprintf("More is stored than delivered: %s wait, %s more a second.", CountOf(st.Backlog.Records, "record"), figures(growth))
	return append(list, Problem{
		Warning, "stream " + st.Name, text,
		"The far side or the line is slower than the readings. Send less with deadband or throttle, or look for the slow uplink below.",
	})
}

// sentence joins what happened and its cause, and ends with a full stop.
func sentence(what, cause string) string {
	if cause = strings.TrimRight(strings.TrimSpace(cause), "."); cause != "" {
		what += ": " + cause
	}
	return what + "."
}

func bytesOf(n int64) uint64 { return uint64(max(0, n)) }
