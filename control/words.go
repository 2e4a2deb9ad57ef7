package control

import (
	"fmt"
	"strconv"
	"time"
)

// DurationText says d for a person, with at most two units: "4 s", "12 min", "3 h 20 min", "5 d".
func DurationText(d time.Duration) string {
	switch d = d.Round(time.Second); {
	case d < time.Minute:
		return fmt.Sprintf("%d s", max(0, int64(d/time.Second)))
	case d < time.Hour:
		return fmt.Sprintf("%d min", int64(d/time.Minute))
	case d < 10*time.Hour && d%time.Hour >= time.Minute:
		return fmt.Sprintf("%d h %d min", int64(d/time.Hour), int64(d%time.Hour/time.Minute))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", int64(d/time.Hour))
	default:
		return fmt.Sprintf("%d d", int64(d/(24*time.Hour)))
	}
}

// YearsText says a long time for a person: "7.2 years", "5 months", "12 d".
func YearsText(d time.Duration) string {
	const year = 8766 * time.Hour
	switch {
	case d >= 100*year:
		return "more than 100 years"
	case d >= year:
		return figures(float64(d)/float64(year)) + " years"
	case d >= year/6:
		return fmt.Sprintf("%d months", int64(d/(year/12)))
	default:
		return DurationText(d)
	}
}

// BytesText says n for a person, with three figures: "0 B", "812 kB", "14.2 MB", "1.05 GB".
func BytesText(n uint64) string {
	if n < 1000 {
		return strconv.FormatUint(n, 10) + " B"
	}
	v, units := float64(n)/1000, "kMGTPE"
	for v >= 999.5 && len(units) > 1 {
		v, units = v/1000, units[1:]
	}
	return figures(v) + " " + units[:1] + "B"
}

// figures writes v with three significant figures, without an exponent.
func figures(v float64) string {
	switch {
	case v >= 99.95:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 9.995:
		return strconv.FormatFloat(v, 'f', 1, 64)
	default:
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
}

// CountText writes n with its thousands apart: "1,204,332".
func CountText(n uint64) string {
	s := strconv.FormatUint(n, 10)
	out := make([]byte, 0, len(s)+len(s)/3)
	for i := range len(s) {
		if i > 0 && (len(s)-i)%3 == 0 {
			out = append(out, ',')
		}
		out = append(out, s[i])
	}
	return string(out)
}

// CountOf writes n and the word for what is counted, in its singular or plural: "1 record", "1,204 records".
func CountOf(n uint64, singular string) string {
	if n == 1 {
		return "1 " + singular
	}
	return CountText(n) + " " + singular + "s"
}
