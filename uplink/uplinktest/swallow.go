package uplinktest

import (
	"sync/atomic"

	"github.com/Shopify/toxiproxy/v2/toxics"
)

// swallow is toxiproxy's timeout without an end, and counts: the suite has to know that there was a reply to be lost.
type swallow struct {
	toxics.TimeoutToxic `json:"-"`

	bytes atomic.Int64
}

// Pipe implements toxics.Toxic.
func (s *swallow) Pipe(stub *toxics.ToxicStub) {
	for {
		select {
		case <-stub.Interrupt:
			return
		case c := <-stub.Input:
			if c == nil {
				stub.Close()
				return
			}
			s.bytes.Add(int64(len(c.Data)))
		}
	}
}
