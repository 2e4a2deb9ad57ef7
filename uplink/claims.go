package uplink

import (
	"crypto/rand"
	"sync"
)

// Claims is what this life of the gateway knows of its fences, for drivers whose far side keeps NUMBER and holder of one. It
// outlives the sessions, so that an instance which has lost a fence to another one does not take it back at its next try: the
// two would fence each other for ever. A Runner has its own, so a restart begins a new instance, which is the newer one then. A
// nil one remembers nothing; the zero value is ready.
type Claims struct {
	mu       sync.Mutex        // guards the fields below
	instance string            // a new one with each start
	held     map[string]uint64 // number of the last claim, by fence
}

// Of returns the name of this instance and the number under which it held a fence last; 0 where it never did.
func (c *Claims) Of(fence string) (instance string, held uint64) {
	if c == nil {
		return rand.Text(), 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.instance == "" {
		c.instance, c.held = rand.Text(), map[string]uint64{}
	}
	return c.instance, c.held[fence]
}

// Hold notes that this instance has taken a fence under a number, which is larger than that of the holder before.
func (c *Claims) Hold(fence string, number uint64) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held[fence] = number
}

// Lost reports whether a fence that was held under a number is another instance's now. One with an older number, or none, is
// what a far side has that has lost writes: it may be taken again.
func (c *Claims) Lost(fence, holder string, number uint64) bool {
	instance, held := c.Of(fence)
	return held > 0 && number >= held && holder != instance
}
