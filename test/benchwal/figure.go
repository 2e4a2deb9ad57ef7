package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// figure is one result: a ratio of ours to a reference, and what was asked for.
type figure struct {
	name            string
	ours, reference float64
	unit            string
	goal            goal
	ratio           float64 // the median of the rounds' ratios, which is not ours / reference exactly
}

// goal is a bound on a ratio. The zero value asks for nothing.
type goal struct {
	sign  rune // '≥' or '≤'
	bound float64
}

func atLeast(x float64) goal { return goal{'≥', x} }
func atMost(x float64) goal  { return goal{'≤', x} }

func (g goal) String() string {
	if g.sign == 0 {
		return ""
	}
	return string(g.sign) + " " + strings.TrimPrefix(strconv.FormatFloat(g.bound, 'f', -1, 64), "0")
}

func (f figure) missed() bool {
	switch f.goal.sign {
	case '≥':
		return f.ratio < f.goal.bound
	case '≤':
		return f.ratio > f.goal.bound
	}
	return false
}

func (f figure) String() string {
	s := fmt.Sprintf("bench %s ratio %s (ours %s %s, reference %s %s)",
		f.name, short(f.ratio), short(f.ours), f.unit, short(f.reference), f.unit)
	if f.goal.sign != 0 {
		s += " (goal " + f.goal.String() + ")"
	}
	return s
}

// report prints a figure and keeps it for the table.
func (b *bench) report(f figure) {
	if f.ratio == 0 && f.reference != 0 {
		f.ratio = f.ours / f.reference
	}
	b.figures = append(b.figures, f)
	fmt.Fprintln(b.out, f)
}

// note says something that belongs to the figures but is none.
func (b *bench) note(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	b.notes = append(b.notes, text)
	fmt.Fprintln(b.log, "  "+text)
}

// progress tells whoever waits what is going on.
func (b *bench) progress(format string, args ...any) { fmt.Fprintf(b.log, format+"\n", args...) }

// short writes a number with three digits that count.
func short(x float64) string {
	switch {
	case x >= 100 || x <= -100 || x == 0:
		return strconv.FormatFloat(x, 'f', 0, 64)
	case x < 0.0001:
		return strconv.FormatFloat(x, 'g', 2, 64)
	}
	return strconv.FormatFloat(x, 'g', 3, 64)
}

// median of values, which it leaves as they are; 0 without any.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	v := slices.Sorted(slices.Values(values))
	if n := len(v); n%2 == 0 {
		return (v[n/2-1] + v[n/2]) / 2
	}
	return v[len(v)/2]
}
