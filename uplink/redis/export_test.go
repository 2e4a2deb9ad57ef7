package redis

import (
	"strings"
	"time"
)

// WithoutDedup makes the driver append whatever it is given: the negative control of the tests.
func (c *Config) WithoutDedup() {
	c.script = strings.Replace(appendText, "last_epoch == epoch", "false", 1)
	if c.script == appendText {
		panic("the script has changed: there is nothing to leave out")
	}
}

// AskSentinelsEvery has sessions ask more often than usual.
func (c *Config) AskSentinelsEvery(d time.Duration) *Config {
	c.sentinelEvery = d
	return c
}
