// Package rig starts real brokers for tests: on free ports of the loopback, with their data in a temporary directory.
//
// Each has a constructor (Kafka, NATS, Redis) that returns a Server which answers, and ends with the test. A program
// that is missing is installed by test/setup.sh; a server that does not come up fails the test.
package rig
