package rig

import (
	"bytes"
	"encoding/json"
	"net"
	"os/exec"
	"path/filepath"
	"strconv"
)

// PymodbusItem is what lies at an address of a unit of the simulated slave.
type PymodbusItem struct {
	Table   string `json:"table"` // holding, input, coil or discrete
	Address int    `json:"address"`
	Type    string `json:"type"` // as in the config of a point
	// Value is a number, a string, a bool, or a list of bools or uint16 for addresses in a row.
	Value any    `json:"value"`
	Order string `json:"order,omitempty"` // ABCD where empty
}

// Pymodbus starts a Modbus TCP slave made of pymodbus: registers are encoded, requests decoded and replies framed by a
// library that is none of ours. It has the units of the map, by unit number, and refuses every register that no item
// covers with exception 2, and a unit that is not there with exception 4.
func Pymodbus(tb TB, units map[int][]PymodbusItem) *Server {
	tb.Helper()
	python := filepath.Join(Setup(tb, "python"), "python", "bin", "python")
	script := filepath.Join(Root(tb), "test", "rig", "pymodbus_slave.py")
	port := FreePort(tb)
	config, err := json.Marshal(map[string]any{"port": port, "units": units})
	if err != nil {
		tb.Fatalf("items of the pymodbus slave: %v", err)
	}
	s := &Server{tb: tb, name: "pymodbus", dir: tb.TempDir(), Addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(port))}
	s.command = func() *exec.Cmd {
		cmd := exec.Command(python, script)
		cmd.Stdin = bytes.NewReader(config)
		return cmd
	}
	// Read one holding register of unit 1: any reply that echoes the transaction will do, a refusal as well.
	s.ready = tcpAnswers(s.Addr, "\x00\x01\x00\x00\x00\x06\x01\x03\x00\x00\x00\x01", "\x00\x01\x00\x00\x00")
	return s.begin()
}
