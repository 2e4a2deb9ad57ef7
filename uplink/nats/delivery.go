package nats

import (
	"errors"

	"edgegateway/uplink"
)

// Keeps implements uplink.Keeper. The stream recognizes a repeat by its message id within its duplicate window, which must be
// longer than the gateway can be without it.
func (*Config) Keeps(p uplink.Promise) error {
	if p.Order != uplink.OrderStrict {
		return errors.New("it sends in the order of the stream only (want order: strict)")
	}
	if p.Delivery == uplink.EffectivelyOnce {
		return nil
	}
	return errors.New("that needs the cursor in the stream in one atomic batch with the data, which this driver does not write (want effectively_once)")
}
