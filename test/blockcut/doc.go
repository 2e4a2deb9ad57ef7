// Package blockcut cuts the power below ext4: it has no code but its tests, which `make powercut-block` runs, and the block
// device in blockdev.
package blockcut
