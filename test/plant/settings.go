package main

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/crypto/bcrypt"
)

const (
	runDir     = ".run"
	configFile = runDir + "/gateway.yaml"
)

// settings are what the parts agree on. They are made at the first run and kept.
type settings struct {
	Page, MQTT, Modbus, NATS int    // ports on 127.0.0.1
	Password                 string // of the MQTT users demo and line1
}

func (*settings) address(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }

func loadSettings() (*settings, error) {
	text, err := os.ReadFile(runDir + "/plant.json")
	if err != nil {
		return nil, fmt.Errorf("%w (run `make run` first)", err)
	}
	s := &settings{}
	return s, json.Unmarshal(text, s)
}

// makeSettings returns the settings of an earlier run, or makes them and the gateway's config. The config is written once and
// belongs to whoever edits it then.
func makeSettings() (*settings, error) {
	s, err := loadSettings()
	if err == nil || !errors.Is(err, os.ErrNotExist) {
		return s, err
	}
	if err := os.MkdirAll(runDir, 0o750); err != nil {
		return nil, err
	}
	s = &settings{Page: freePort(8080), MQTT: freePort(1883), Modbus: freePort(1502), NATS: freePort(4222), Password: rand.Text()[:12]}
	hash, err := bcrypt.GenerateFromPassword([]byte(s.Password), bcrypt.DefaultCost)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(configFile, fmt.Appendf(nil, configText, s.Page, s.Modbus, s.MQTT, hash, hash, s.NATS), 0o600); err != nil {
		return nil, err
	}
	text, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	return s, os.WriteFile(runDir+"/plant.json", text, 0o600)
}

// freePort returns the port itself if nobody listens there, and otherwise any free one.
func freePort(port int) int {
	for _, p := range []int{port, 0} {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", p))
		if err == nil {
			_ = l.Close()
			return l.Addr().(*net.TCPAddr).Port
		}
	}
	return port
}

const configText = `# The gateway of "make run". Change it as you like; it is written only when it is missing.
gateway:
  id: demo
  state_dir: .run/state

page:
  listen: 127.0.0.1:%d

devices:
  boiler:
    driver: modbus
    address: 127.0.0.1:%d
    units:
      - name: kettle
        unit: 1
        points:
          - {name: set_point, table: holding, address: 0, type: float32, unit: "°C", every: 5s}
          - {name: water, table: holding, address: 2, type: float32, unit: "°C", every: 1s}
          - {name: gas, table: holding, address: 10, type: uint32, scale: 0.01, unit: "m³", every: 5s}
          - {name: pressure, table: input, address: 0, type: uint16, scale: 0.01, unit: bar, every: 1s}
          - {name: outside, table: input, address: 1, type: int16, scale: 0.1, unit: "°C", every: 5s}
          - {name: burner, table: discrete, address: 0, type: bool, every: 1s}
      - name: pump
        unit: 2
        points:
          - {name: speed, table: holding, address: 0, type: uint16, unit: rpm, every: 1s}
          - {name: flow, table: holding, address: 1, type: uint16, scale: 0.1, unit: l/min, every: 1s}
          - {name: running, table: coil, address: 0, type: bool, every: 1s}
  broker:
    driver: mqtt
    listen: 127.0.0.1:%d
    users:
      line1: {password_hash: "%s", publish: ["line1/#"]}
      demo: {password_hash: "%s", publish: ["#"], subscribe: ["#"]}

streams:
  telemetry:
    from: [boiler, broker]
    processors:
      - deadband: {topics: ["boiler/kettle/set_point", "boiler/pump/running"], max_silence: 1m}
    uplinks: [far]

uplinks:
  far:
    driver: nats
    servers: ["nats://127.0.0.1:%d"]
    stream: PLANT
    subject: plant.{gateway}.{stream}
`
