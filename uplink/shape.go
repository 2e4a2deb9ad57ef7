package uplink

import (
	"errors"
	"fmt"
	"time"

	"edgegateway/pipeline"
	"edgegateway/wal"
)

// leastPerDay is more than any record has.
const leastPerDay pipeline.Size = 1 << 20

// CheckPolicy finds what the tags of a Policy cannot tell. path is where it stands in the driver's section.
func CheckPolicy(path string, p *Policy) []pipeline.Problem {
	var problems []pipeline.Problem
	if _, err := p.From(); err != nil {
		problems = append(problems, pipeline.Problem{Path: path + ".start", Text: err.Error()})
	}
	if p.BytesPerDay > 0 && p.BytesPerDay < leastPerDay {
		text := fmt.Sprintf("%v cannot be a daily quota (want at least %v, or 0B for none)", p.BytesPerDay, leastPerDay)
		problems = append(problems, pipeline.Problem{Path: path + ".bytes_per_day", Text: text})
	}
	return problems
}

// From returns where a stream begins that is new to the uplink.
func (p *Policy) From() (wal.Start, error) {
	switch p.Start {
	case "", "oldest":
		return wal.Oldest, nil
	case "newest":
		return wal.Newest, nil
	}
	at, err := time.Parse(time.RFC3339, p.Start)
	if err != nil {
		return nil, fmt.Errorf("%q is no place to start (want oldest, newest, or a time with its zone such as 2026-11-30T12:00:00Z)", p.Start)
	}
	return wal.Since(at), nil
}

// IsLiveFirst reports whether new records go out beside a backlog.
func (p *Policy) IsLiveFirst() bool { return p.Backfill == "live_first" }

// CheckOrder says why streams of an order cannot be sent by this policy; nil if they can.
func (p *Policy) CheckOrder(o Order) error {
	if p.IsLiveFirst() && o != OrderNone {
		return errors.New("backfill: live_first sends new records past the backlog (want order: none for the stream, or backfill: in_order)")
	}
	return nil
}
