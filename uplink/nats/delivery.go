package nats

import (
	"fmt"
	"strings"

	"edgegateway/uplink"
)

// Keeps implements uplink.Keeper. With effectively_once the stream recognizes a repeat by its message id within its duplicate
// window, in whatever order it comes. With exactly_once the cursor is a message in the stream, stored in one step with the data.
func (c *Config) Keeps(p uplink.Promise) error {
	if p.Delivery != uplink.ExactlyOnce {
		return nil
	}
	for _, word := range []string{"{gateway}", "{stream}"} {
		if !strings.Contains(c.cursorSubject(), word) {
			return fmt.Errorf("each gateway and stream needs a cursor of its own, and all would have %s (want %s in cursor_subject)", c.cursorSubject(), word)
		}
	}
	return nil
}

// InFlight implements uplink.Roomy. Each record is confirmed by itself, so many are on their way to keep the line busy. With
// exactly_once one batch commits, one is on its way, and room for a third is what the log is read into.
func (c *Config) InFlight(p uplink.Promise) (records, bytes int) {
	if p.Delivery == uplink.ExactlyOnce {
		return 3 * c.batch(), 3 * maxBatchBytes
	}
	return maxPending * 3 / 4, 0
}
