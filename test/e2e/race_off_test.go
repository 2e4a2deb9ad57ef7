//go:build !race

package e2e_test

import "edgegateway/test/e2e"

// buildFlags make the gateway like the test: without the race detector.
var buildFlags []string

// stopWithin is what the gateway may take to stop.
const stopWithin = e2e.StopLimit
