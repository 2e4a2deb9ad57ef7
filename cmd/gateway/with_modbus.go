//go:build !no_modbus

package main

import "edgegateway/device/modbus"

func init() { drivers["device"]["modbus"] = func() any { return &modbus.Config{} } }
