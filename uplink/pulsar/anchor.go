package pulsar

import (
	"time"

	"github.com/apache/pulsar-client-go/pulsar"

	"edgegateway/uplink"
)

// anchorEvery is how often the anchor follows what is stored.
const anchorEvery = 20 * time.Second

// dropAnchor takes a subscription that holds the topic's last message: the broker removes what every subscription has
// acknowledged, where nothing else is to be retained, and the last message says how far the stream is stored. Nothing is
// received from it.
func (s *exactSession) dropAnchor() error {
	name := "edge-gateway-" + s.env.Gateway + "-" + s.env.Stream
	anchor, err := s.client.Subscribe(pulsar.ConsumerOptions{
		Topic: s.topic, SubscriptionName: name, Type: pulsar.Failover, EnableZeroQueueConsumer: true,
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest, MaxReconnectToBroker: new(uint),
	})
	if err != nil && says(err, "SubscriptionNotFound", "Subscription does not exist", "auto subscription creation") {
		return uplink.Config(s.noAnchor(name))
	}
	if err != nil {
		return err
	}
	s.anchor, s.moved = anchor, time.Now()
	return nil
}

// moveAnchor lets go of what lies before the last message.
func (s *exactSession) moveAnchor() {
	s.flying.Lock()
	defer s.flying.Unlock()
	if s.before == nil || time.Since(s.moved) < anchorEvery {
		return
	}
	s.moved = time.Now()
	_ = s.anchor.AckIDCumulative(s.before) // the next one does as well
}
