package pulsar

// WithoutReadBack makes exactly_once begin where the log stands: the negative control of the tests.
func (c *Config) WithoutReadBack() { c.faulty.noReadBack = true }

// WaitClosed waits until all that the sessions left behind has ended.
func (c *Config) WaitClosed() { c.links.Wait() }
