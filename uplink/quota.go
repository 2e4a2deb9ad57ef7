package uplink

import (
	"fmt"
	"strings"
	"time"

	"edgegateway/pipeline"
)

// quota counts what goes in a day, by UTC. Its count is durable before it is used, in steps of a 64th of the whole: after a crash
// up to a step is lost for the day, and none is given twice.
//
// The day never goes back. Where the clock stands before the day that is counted, because one of the two was wrong, a new day
// begins after 24 hours of work; a clock that goes forward begins one, once.
type quota struct {
	limit    int64 // never changes
	day      int64 // since 1970
	used     int64
	backlog  int64         // of it by backlogs beside new records; since the start or the day's begin
	reserved int64         // that is used as far as the file says
	worked   time.Duration // in the day, before:
	since    time.Duration // on the monotonic clock
}

const quotaSteps = 64

func dayOf(wall time.Time) int64 { return wall.Unix() / 86400 }

func (q *quota) roll(wall time.Time, mono time.Duration) {
	today := dayOf(wall)
	if today > q.day || today < q.day && q.workedAt(mono) >= 24*time.Hour {
		q.day, q.used, q.backlog, q.reserved, q.worked, q.since = today, 0, 0, 0, 0, mono
	}
}

func (q *quota) workedAt(mono time.Duration) time.Duration { return q.worked + mono - q.since }

// fits returns how many of a load fit into what is left of the day, and otherwise what it waits for. A record that is larger
// than the whole quota goes as the first of a day.
func (q *quota) fits(w load, wall time.Time, mono time.Duration) (int, verdict) {
	if q.limit == 0 {
		return len(w.sizes), verdict{}
	}
	q.roll(wall, mono)
	left := q.limit - q.used
	room := left
	if w.backlog {
		// New records of the rest of the day must not find it used up.
		begun := wall.Sub(wall.UTC().Truncate(24 * time.Hour))
		fair := int64(float64(q.limit)*begun.Hours()/24) - q.used
		room = min(left, max(fair, q.limit/10-q.backlog))
	}
	if w.whole {
		w.sizes = []int{total(w.sizes)}
	}
	n, sum := 0, int64(0)
	for n < len(w.sizes) && sum+int64(w.sizes[n]) <= room {
		sum += int64(w.sizes[n])
		n++
	}
	first := int64(w.sizes[0])
	switch {
	case n > 0:
		return n, verdict{}
	case q.used == 0, w.backlog && q.backlog < q.limit/10 && first <= left:
		return 1, verdict{}
	}
	tomorrow := wall.UTC().Truncate(24 * time.Hour).Add(24 * time.Hour).Sub(wall)
	v := verdict{
		wait:   min(tomorrow, 30*time.Second), // the clock may be set meanwhile
		reason: fmt.Sprintf("waits for tomorrow (0:00 UTC): daily quota of %v is used up", pipeline.Size(q.limit)),
	}
	if w.backlog && first <= left {
		v.reason = fmt.Sprintf("holds the backlog back: the rest of the daily quota of %v is kept for new records", pipeline.Size(q.limit))
	}
	return 0, v
}

// reserve is what must be durable before more is used: so many bytes of a day.
type reserve struct{ day, bytes int64 }

// lacks returns what must be reserved before so much more is used; nothing where it is.
func (q *quota) lacks(sum int) reserve {
	need := q.used + int64(sum)
	if q.limit == 0 || need <= q.reserved {
		return reserve{}
	}
	step := max(1, q.limit/quotaSteps)
	return reserve{q.day, max(need, min((need/step+1)*step, q.limit))}
}

func (q *quota) pay(sum int, backlog bool) {
	q.used += int64(sum)
	if backlog {
		q.backlog += int64(sum)
	}
}

// text is what stands in the file: the day, the bytes that are used of it, and the seconds worked in it.
func (q *quota) text(r reserve, mono time.Duration) []byte {
	day := time.Unix(r.day*86400, 0).UTC().Format(time.DateOnly)
	return fmt.Appendf(nil, "%s %d %d\n", day, r.bytes, int64(q.workedAt(mono).Seconds()))
}

func (q *quota) load(text []byte) error {
	var date string
	var used, seconds int64
	if _, err := fmt.Sscanf(strings.TrimSpace(string(text)), "%s %d %d", &date, &used, &seconds); err != nil {
		return fmt.Errorf("%q: want a date, bytes and seconds: %w", text, err)
	}
	day, err := time.Parse(time.DateOnly, date)
	if err != nil {
		return err
	}
	if used < 0 || seconds < 0 {
		return fmt.Errorf("%q: want no negative numbers", text)
	}
	q.day, q.used, q.worked = dayOf(day), used, time.Duration(min(seconds, 1e6))*time.Second
	return nil
}
