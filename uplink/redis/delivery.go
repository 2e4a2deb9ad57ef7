package redis

import (
	"errors"

	"edgegateway/uplink"
)

// Keeps implements uplink.Keeper. The script moves the far cursor with each entry and skips what lies behind it.
func (*Config) Keeps(p uplink.Promise) error {
	if p.Order != uplink.OrderStrict {
		return errors.New("it sends in the order of the stream only (want order: strict)")
	}
	if p.Delivery == uplink.EffectivelyOnce {
		return nil
	}
	return errors.New("that needs the gateway to begin at the far cursor and to fence an older instance, which this driver does not do (want effectively_once)")
}
