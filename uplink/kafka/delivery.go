package kafka

import (
	"errors"

	"edgegateway/uplink"
)

// Keeps implements uplink.Keeper. Kafka tells a repeat only within one life of a producer; across a crash of the gateway it
// takes transactions with a cursor topic, and those give exactly_once.
func (*Config) Keeps(p uplink.Promise) error {
	switch {
	case p.Delivery == uplink.ExactlyOnce && p.Order == uplink.OrderStrict:
		return nil
	case p.Delivery == uplink.EffectivelyOnce:
		return errors.New("the broker does not know a record by its id, so one that was in doubt at a crash arrives again " +
			"(want exactly_once, which keeps the cursor there in a transaction; or at_least_once)")
	}
	return errors.New("it sends in the order of the stream only (want order: strict)")
}

// InFlight implements uplink.Roomy. A transaction is as large as the backlog allows, and the next one is read and encoded
// while it is committed.
func (*Config) InFlight(p uplink.Promise) (records, bytes int) {
	if p.Delivery != uplink.ExactlyOnce {
		return 0, 0
	}
	return transactionRecords + transactionRecords/2, transactionBytes
}
