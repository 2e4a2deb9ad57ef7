//go:build !no_mqtt

package main

import "edgegateway/device/mqtt"

func init() {
	drivers["device"]["mqtt"] = func() any { return &mqtt.Config{} }
	makeHash = mqtt.HashPassword
}
