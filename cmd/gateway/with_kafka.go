//go:build !no_kafka

package main

import "edgegateway/uplink/kafka"

func init() { drivers["uplink"]["kafka"] = func() any { return &kafka.Config{} } }
