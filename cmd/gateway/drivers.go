package main

import (
	"errors"

	"edgegateway/control/config"
)

// drivers are the drivers of this build, by kind and name. Each file with_NAME.go adds one and is left out of a build with
// `-tags no_NAME`; the drivers themselves carry no tags.
var drivers = config.Drivers{"device": {}, "uplink": {}}

// makeHash hashes a password for the config of the local broker. It comes with that driver.
var makeHash = func(string) (string, error) {
	return "", errors.New("this build has no local broker that would need a password hash")
}
