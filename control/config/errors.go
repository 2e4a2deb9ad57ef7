package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Error is one mistake in a config file.
type Error struct {
	File      string
	Line, Col int    // from 1; 0 where the file as a whole is meant
	Path      string // "devices.boiler.units[0].points[3].type"
	Text      string // what is wrong, and what would be right
}

// Error returns "FILE:LINE:COL: path: text".
func (e Error) Error() string {
	var b strings.Builder
	b.WriteString(e.File)
	if e.Line > 0 {
		fmt.Fprintf(&b, ":%d:%d", e.Line, e.Col)
	}
	if e.Path != "" {
		b.WriteString(": " + e.Path)
	}
	return b.String() + ": " + e.Text
}

// Errors are all mistakes of a file, in the order of the file.
type Errors []Error

// Error returns one line for each mistake.
func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i := range e {
		lines[i] = e[i].Error()
	}
	return strings.Join(lines, "\n")
}

func (e Errors) sorted() Errors {
	slices.SortStableFunc(e, func(a, b Error) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Col, b.Col))
	})
	return e
}

// known says what the choices are, and which of them was probably meant.
func known(got string, choices []string) string {
	best, distance := "", 3
	for _, c := range choices {
		if d := editDistance(strings.ToLower(got), c); d < distance && d < len(c) {
			best, distance = c, d
		}
	}
	if best != "" {
		return fmt.Sprintf("did you mean %q? (known: %s)", best, strings.Join(choices, ", "))
	}
	return "want one of " + strings.Join(choices, ", ")
}

// editDistance is the Levenshtein distance.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			above := row[j+1]
			row[j+1] = min(above+1, row[j]+1)
			if a[i] == b[j] {
				row[j+1] = min(row[j+1], diagonal)
			} else {
				row[j+1] = min(row[j+1], diagonal+1)
			}
			diagonal = above
		}
	}
	return row[len(b)]
}
