package uplink

import "errors"

// Delivery is what is promised of a stream's records at the far side (DESIGN.md 3.1, 3.4, 3.5).
type Delivery string

// The deliveries, from the weakest to the strongest.
const (
	AtLeastOnce     Delivery = "at_least_once"    // none lost; doubled only where a crash or a lost reply left one in doubt
	EffectivelyOnce Delivery = "effectively_once" // the far side recognizes a repeat by its record id
	ExactlyOnce     Delivery = "exactly_once"     // the cursor is stored at the far side in the same step as the data
)

// Keeper is implemented by drivers that can promise more than AtLeastOnce.
type Keeper interface {
	// Keeps returns nil when the driver, as configured, keeps d, and otherwise says why it cannot and what would be right.
	Keeps(d Delivery) error
}

// CheckDelivery says why a driver cannot keep d; nil if it can.
func CheckDelivery(driver Driver, d Delivery) error {
	if d == AtLeastOnce {
		return nil
	}
	k, ok := driver.(Keeper)
	if !ok {
		return errors.New("the far side cannot tell a repeat (want at_least_once; the record id travels along, so consumers can)")
	}
	return k.Keeps(d)
}
