package kafka

import (
	"errors"

	"edgegateway/uplink"
)

// Keeps implements uplink.Keeper. Kafka tells a repeat only within one life of a producer; across a crash of the gateway it
// takes transactions with a cursor topic.
func (c *Config) Keeps(p uplink.Promise) error {
	switch {
	case p.Delivery == uplink.EffectivelyOnce:
		return errors.New("the broker does not know a record by its id, so one that was in doubt at a crash arrives again " +
			"(want exactly_once, or at_least_once; the header record-id tells a repeat)")
	case p.Delivery == uplink.ExactlyOnce && uplink.NewTemplate(c.Topic, uplink.Env{}, legalName).ByMessage():
		return errors.New("at its start it looks for transactions that a crash of a broker left open, and so must know all topics " +
			"(want a topic without {topic}, {source} and {key}, or at_least_once)")
	}
	return nil // in any order: what one topic does not take for now is held, and the other topics go on
}

// InFlight implements uplink.Roomy. While what was sent is confirmed, the next records are read and encoded.
func (*Config) InFlight(p uplink.Promise) (records, bytes int) {
	if p.Delivery != uplink.ExactlyOnce {
		return 2 * flightRecords, 2 * flightBytes
	}
	return transactionRecords + aheadRecords + clientRecords, transactionBytes
}
