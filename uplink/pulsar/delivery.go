package pulsar

import (
	"errors"
	"fmt"
	"strings"

	"edgegateway/uplink"
)

// Keeps implements uplink.Keeper.
func (c *Config) Keeps(p uplink.Promise) error {
	if p.Order != uplink.OrderStrict {
		return errors.New("it sends in the order of the stream only (want order: strict)")
	}
	if p.Delivery == uplink.ExactlyOnce {
		for _, word := range []string{"{gateway}", "{stream}"} {
			if !strings.Contains(c.Topic, word) || !strings.Contains(c.cursorTopic(), word) {
				return fmt.Errorf("the last message of a topic says how far a stream is stored, so each gateway and stream needs topics of its own "+
					"(want %s in topic and cursor_topic)", word)
			}
		}
	}
	return nil
}
