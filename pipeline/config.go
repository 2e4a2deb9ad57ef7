package pipeline

import (
	"fmt"
	"strconv"
	"strings"
)

// The types below are what drivers declare their config with, beside Go's own. Each field of a driver's config says in
// its tags what the config file may hold; the decoder, `edge-gateway schema` and the reference in docs follow from
// them, so a fact stands in one place:
//
//	yaml:"poll_every"      key in the file; "-" for none
//	doc:"…"                one sentence for the person who writes the file
//	default:"1s"           value where the key is missing, written as in the file
//	required:"true"        the key must be there
//	enum:"holding|input"   the only values, for strings
//	min:"1" max:"125"      range, for numbers, durations and sizes; number of entries for lists

// Problem is one mistake in a config that only the driver can see. Its Check method returns all of them.
type Problem struct {
	// Path leads from the driver's section to the spot: "units[2].points[0].address".
	Path string
	// Text says what is wrong and what would be right: `unknown type "int17" (want int16, uint16, …)`.
	Text string
}

// Checker is implemented by configs with rules that tags cannot say. Check is called after a decode without errors.
type Checker interface {
	Check() []Problem
}

// Size is a number of bytes. In the config it is written with a binary unit: 512KiB, 64MiB, 2GiB, or as a plain number.
type Size int64

var sizeUnits = []struct {
	name  string
	bytes int64
}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}}

// ParseSize reads a size as it stands in the config.
func ParseSize(s string) (Size, error) {
	text, factor := s, int64(1)
	for _, u := range sizeUnits {
		if number, ok := strings.CutSuffix(s, u.name); ok {
			text, factor = strings.TrimSpace(number), u.bytes
			break
		}
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n > (1<<62)/factor {
		return 0, fmt.Errorf("%q is not a size (want a number with a unit, such as 512KiB, 64MiB or 2GiB)", s)
	}
	return Size(n * factor), nil
}

// String returns the size with the largest unit that divides it: "64MiB".
func (s Size) String() string {
	for _, u := range sizeUnits {
		if int64(s) >= u.bytes && int64(s)%u.bytes == 0 {
			return strconv.FormatInt(int64(s)/u.bytes, 10) + u.name
		}
	}
	return strconv.FormatInt(int64(s), 10) + "B"
}
