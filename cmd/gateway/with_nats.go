//go:build !no_nats

package main

import "edgegateway/uplink/nats"

func init() { drivers["uplink"]["nats"] = func() any { return &nats.Config{} } }
