package modbus

import (
	"fmt"
	"log/slog"
	"time"

	"edgegateway/device"
)

// Config is the section of a Modbus TCP device: one connection with the units that are reached through it. Several
// devices have several connections, and none of them waits for another.
type Config struct {
	Address      string        `yaml:"address" required:"true" doc:"Host and port of the Modbus TCP server, such as 10.0.0.5:502."`
	Timeout      time.Duration `yaml:"timeout" default:"1s" min:"10ms" max:"1m" doc:"Longest wait for the answer to one request, and for a connection."`
	RequestGap   time.Duration `yaml:"request_gap" default:"0s" min:"0s" max:"1m" doc:"Pause between an answer and the next request, for servers that need one."`
	ConnectDelay time.Duration `yaml:"connect_delay" default:"0s" min:"0s" max:"1m" doc:"Pause between connecting and the first request, for servers that are deaf at first."`
	Units        []Unit        `yaml:"units" required:"true" min:"1" doc:"What answers on this connection, each with its own unit number."`
}

// Unit is what answers to one unit number, with its points.
type Unit struct {
	Name         string  `yaml:"name" required:"true" doc:"Second level of the topic DEVICE/UNIT/POINT."`
	Unit         int     `yaml:"unit" default:"1" min:"0" max:"255" doc:"Unit number (slave address); servers that are a single device often take any."`
	AddressBase  int     `yaml:"address_base" default:"0" min:"0" max:"1" doc:"Number that the device's manual gives to the first register of a table: 0 or 1."`
	WordOrder    string  `yaml:"word_order" default:"ABCD" enum:"ABCD|CDAB|BADC|DCBA" doc:"Order of the bytes of a number: ABCD high byte first, CDAB low word first, BADC bytes of each word swapped, DCBA low byte first."`
	MaxRegisters int     `yaml:"max_registers" default:"125" min:"1" max:"125" doc:"Most registers that one request may ask this unit for."`
	MaxBits      int     `yaml:"max_bits" default:"2000" min:"1" max:"2000" doc:"Most coils or discrete inputs that one request may ask this unit for."`
	Points       []Point `yaml:"points" required:"true" min:"1" doc:"What is read from this unit."`
}

// Point is one value of a unit.
type Point struct {
	Name      string        `yaml:"name" required:"true" doc:"Third level of the topic DEVICE/UNIT/POINT."`
	Table     string        `yaml:"table" required:"true" enum:"holding|input|coil|discrete" doc:"Table that the point lies in."`
	Address   int           `yaml:"address" required:"true" min:"0" max:"65536" doc:"Number of the first register or bit within its table, counted from address_base; without a leading 4 or 3 for the table."`
	Type      string        `yaml:"type" required:"true" enum:"bool|int16|uint16|int32|uint32|int64|uint64|float32|float64|string" doc:"What the registers hold."`
	Length    int           `yaml:"length" default:"0" min:"0" max:"125" doc:"Number of registers of a string."`
	Bit       int           `yaml:"bit" default:"-1" min:"-1" max:"15" doc:"Bit of a register for type bool, 0 the lowest; -1 for any bit, so that every register but 0 is true."`
	WordOrder string        `yaml:"word_order" enum:"ABCD|CDAB|BADC|DCBA" doc:"Order of the bytes where it differs from the unit's."`
	Scale     float64       `yaml:"scale" default:"1" doc:"Factor from the raw number to the value."`
	Offset    float64       `yaml:"offset" default:"0" doc:"Added after scaling."`
	Unit      string        `yaml:"unit" doc:"Unit of measurement, such as °C."`
	Every     time.Duration `yaml:"every" default:"1s" min:"10ms" max:"24h" doc:"Period of reading."`
	NoValue   []uint64      `yaml:"no_value" doc:"Raw numbers by which the device says that it has no value, as unsigned numbers of the type's width, such as 0x8000."`
}

// Open makes the device. It implements device.Driver.
func (c Config) Open(env device.Env) (device.Device, error) {
	if problems := c.Check(); len(problems) > 0 {
		return nil, fmt.Errorf("%s: %s", problems[0].Path, problems[0].Text)
	}
	if env.Log == nil {
		env.Log = slog.New(slog.DiscardHandler)
	}
	return newLink(c, env), nil
}
