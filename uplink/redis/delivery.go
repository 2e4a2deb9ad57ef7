package redis

import (
	"errors"

	"edgegateway/uplink"
)

// Keeps implements uplink.Keeper. The script moves the far cursor with each record and skips what lies behind it; a hash has no
// cursor, and takes no record that is older than its own.
func (c *Config) Keeps(p uplink.Promise) error {
	switch {
	case p.Order != uplink.OrderStrict && c.As != asLatest:
		return errors.New("the cursor beside the key only grows, so a record that comes late would be taken for a repeat and lost " +
			"(want order: strict, or as: latest)")
	case p.Delivery == uplink.ExactlyOnce && c.As == asLatest:
		return errors.New("as: latest keeps the last record of each topic and no cursor, so what came between cannot be accounted for " +
			"(want effectively_once, or as: stream or list)")
	}
	return nil
}

// InFlight implements uplink.Roomy: while one script runs, the next records are read and encoded.
func (c *Config) InFlight(uplink.Promise) (records, bytes int) {
	return 8 * scriptRecords, 4 * scriptBytes
}
