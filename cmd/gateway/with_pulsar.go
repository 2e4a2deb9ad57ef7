//go:build !no_pulsar && !mipsle

package main

import "edgegateway/uplink/pulsar"

func init() { drivers["uplink"]["pulsar"] = func() any { return &pulsar.Config{} } }
