package kafka

import (
	"errors"

	"edgegateway/uplink"
)

// Keeps implements uplink.Keeper. Kafka tells a repeat only within one life of a producer; across a crash of the gateway it
// takes transactions with a cursor topic, which this driver does not use.
func (*Config) Keeps(uplink.Delivery) error {
	return errors.New("a record that was in doubt at a crash arrives again (want at_least_once; its record-id header is the same)")
}
