//go:build race

package e2e_test

import "edgegateway/test/e2e"

// buildFlags make the gateway like the test: with the race detector.
var buildFlags = []string{"-race"}

// stopWithin is what such a gateway may take to stop on a machine that other tests keep busy.
const stopWithin = 4 * e2e.StopLimit
