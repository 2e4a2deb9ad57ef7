package redis

import "strings"

// WithoutDedup makes the driver append whatever it is given: the negative control of the tests.
func (c *Config) WithoutDedup() {
	c.script = strings.Replace(appendText, "last_epoch == epoch", "false", 1)
	if c.script == appendText {
		panic("the script has changed: there is nothing to leave out")
	}
}
