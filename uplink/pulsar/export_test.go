package pulsar

import "edgegateway/uplink"

// WithoutReadBack makes exactly_once begin where the log stands: the negative control of the tests.
func (c *Config) WithoutReadBack() { c.faulty.noReadBack = true }

// WithoutDedup makes effectively_once name its producer anew in each session, so that the broker knows no repeats: the other one.
func (c *Config) WithoutDedup() { c.faulty.noDedup = true }

// WaitClosed waits until all that the sessions left behind has ended.
func (c *Config) WaitClosed() { c.links.Wait() }

// TopicOf returns the topic of a stream.
func (c *Config) TopicOf(env uplink.Env) string { return topicOf(c.Topic, env) }

// Cuts returns how many batches the library has closed that the session does not know of yet.
func Cuts(s uplink.Session) int {
	switch s := s.(type) {
	case lettersFirst:
		return len(s.cuts)
	case *exactSession:
		return len(s.cuts)
	default:
		return len(s.(*session).cuts)
	}
}
