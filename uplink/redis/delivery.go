package redis

import (
	"errors"

	"edgegateway/uplink"
)

// Keeps implements uplink.Keeper. The script moves the far cursor with each record and skips what lies behind it.
func (c *Config) Keeps(p uplink.Promise) error {
	switch {
	case p.Order != uplink.OrderStrict:
		return errors.New("it sends in the order of the stream only (want order: strict)")
	case p.Delivery == uplink.ExactlyOnce && c.As == asLatest:
		return errors.New("as: latest keeps the last record of each topic and no cursor, so what came between cannot be accounted for " +
			"(want effectively_once, or as: stream or list)")
	}
	return nil
}
