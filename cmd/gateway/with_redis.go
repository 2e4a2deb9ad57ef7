//go:build !no_redis

package main

import "edgegateway/uplink/redis"

func init() { drivers["uplink"]["redis"] = func() any { return &redis.Config{} } }
