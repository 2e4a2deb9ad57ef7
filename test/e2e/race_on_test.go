//go:build race

package e2e_test

// buildFlags make the gateway like the test: with the race detector.
var buildFlags = []string{"-race"}
