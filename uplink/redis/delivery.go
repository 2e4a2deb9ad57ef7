package redis

import (
	"errors"

	"edgegateway/uplink"
)

// Keeps implements uplink.Keeper. The script moves the far cursor with each entry and skips what lies behind it.
func (*Config) Keeps(d uplink.Delivery) error {
	if d == uplink.EffectivelyOnce {
		return nil
	}
	return errors.New("that needs the gateway to begin at the far cursor and to fence an older instance, which this driver does not do (want effectively_once)")
}
