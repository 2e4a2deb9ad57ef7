package uplink

import (
	"errors"
	"fmt"
)

// Delivery is what is promised of a stream's records at the far side (DESIGN.md 3.1, 3.4, 3.5).
type Delivery string

// The deliveries, from the weakest to the strongest.
const (
	AtLeastOnce     Delivery = "at_least_once"    // none lost; doubled only where a crash or a lost reply left one in doubt
	EffectivelyOnce Delivery = "effectively_once" // the far side recognizes a repeat by its record id
	ExactlyOnce     Delivery = "exactly_once"     // the cursor is stored at the far side in the same step as the data
)

// Order says what waits while a record is held (DESIGN.md 3.8).
type Order string

// The orders, from the strictest to the loosest.
const (
	OrderStrict Order = "strict" // the whole stream
	OrderKey    Order = "key"    // the records of the same key
	OrderNone   Order = "none"   // nothing
)

// Promise is what a stream asks of an uplink. The zero value asks for at_least_once and strict.
type Promise struct {
	Delivery Delivery
	Order    Order
}

// Promises lists all combinations there are, the weakest first.
func Promises() []Promise {
	var all []Promise
	for _, d := range []Delivery{AtLeastOnce, EffectivelyOnce, ExactlyOnce} {
		for _, o := range []Order{OrderStrict, OrderKey, OrderNone} {
			all = append(all, Promise{d, o})
		}
	}
	return all
}

// Keeper is implemented by drivers that can promise more than at_least_once in strict order.
type Keeper interface {
	// Keeps returns nil when the driver, as configured, keeps p, and otherwise says why it cannot and what would be right.
	Keeps(p Promise) error
}

// CheckPromise says why a driver cannot keep p; nil if it can. The same answers are the table in docs/uplinks.md.
func CheckPromise(driver Driver, p Promise) error {
	if p.Delivery == "" {
		p.Delivery = AtLeastOnce
	}
	if p.Order == "" {
		p.Order = OrderStrict
	}
	if p.Delivery == ExactlyOnce && p.Order != OrderStrict {
		return errors.New("the far cursor says that everything up to it is there, so nothing may pass a held record (want order: strict)")
	}
	if p == (Promise{AtLeastOnce, OrderStrict}) {
		return nil
	}
	if k, ok := driver.(Keeper); ok {
		return k.Keeps(p)
	}
	if p.Delivery != AtLeastOnce {
		return errors.New("the far side cannot tell a repeat (want at_least_once; the record id travels along, so consumers can)")
	}
	return fmt.Errorf("it sends in the order of the stream only (want order: %s)", OrderStrict)
}
