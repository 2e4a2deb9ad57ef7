//go:build !race

package e2e_test

// buildFlags make the gateway like the test: without the race detector.
var buildFlags []string
