package kafka

import (
	"errors"

	"edgegateway/uplink"
)

// Keeps implements uplink.Keeper. Kafka tells a repeat only within one life of a producer; across a crash of the gateway it
// takes transactions with a cursor topic, which this driver does not use.
func (*Config) Keeps(p uplink.Promise) error {
	if p.Delivery == uplink.AtLeastOnce {
		return errors.New("it sends in the order of the stream only (want order: strict)")
	}
	return errors.New("a record that was in doubt at a crash arrives again (want at_least_once; its record-id header is the same)")
}
