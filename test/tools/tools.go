//go:build tools

// Package tools pins the programs that tests run and that must not reach the product's go.mod.
package tools

import _ "github.com/nats-io/nats-server/v2"
