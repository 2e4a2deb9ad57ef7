package modbus_test

import (
	"strings"
	"testing"
	"time"

	"edgegateway/device"
	"edgegateway/device/modbus"
	"edgegateway/pipeline"
)

func config(address string, units ...modbus.Unit) modbus.Config {
	return modbus.Config{Address: address, Timeout: 2 * time.Second, Units: units}
}

var (
	_ device.Driver    = modbus.Config{}
	_ pipeline.Checker = modbus.Config{}
)

func TestCheckTakesAGoodConfig(t *testing.T) {
	text := holding("text", "string", 100)
	text.Length = 8
	flag := holding("flag", "bool", 3)
	flag.Bit = 15
	c := config("plc.example:502", kettle(text, flag, holding("last", "uint64", 65532)))
	if problems := c.Check(); len(problems) > 0 {
		t.Errorf("problems = %v, want none", problems)
	}
}

func TestCheck(t *testing.T) {
	point := func(change func(*modbus.Point)) func(*modbus.Config) {
		return func(c *modbus.Config) { change(&c.Units[0].Points[1]) }
	}
	tests := []struct {
		name   string
		change func(*modbus.Config)
		path   string
		text   string // part of it
	}{
		{"address without a port", func(c *modbus.Config) { c.Address = "10.0.0.5" }, "address", "want HOST:PORT"},
		{"address without a host", func(c *modbus.Config) { c.Address = ":502" }, "address", "want HOST:PORT"},
		{"port that is none", func(c *modbus.Config) { c.Address = "plc:70000" }, "address", "1 to 65535"},
		{"no timeout", func(c *modbus.Config) { c.Timeout = 0 }, "timeout", "more than 0"},
		{"no units", func(c *modbus.Config) { c.Units = nil }, "units", "at least one"},
		{"no points", func(c *modbus.Config) { c.Units[0].Points = nil }, "units[0].points", "at least one"},
		{
			"two units of one name", func(c *modbus.Config) {
				u := kettle(holding("a", "int16", 0))
				u.Unit = 2
				c.Units = append(c.Units, u)
			}, "units[1].name", "units[0]'s already",
		},
		{
			"two units of one number", func(c *modbus.Config) {
				u := kettle(holding("a", "int16", 0))
				u.Name = "pump"
				c.Units = append(c.Units, u)
			}, "units[1].unit", "units[0]'s already",
		},
		{"name with a slash", func(c *modbus.Config) { c.Units[0].Name = "a/b" }, "units[0].name", "level of a topic"},
		{"unit number past 255", func(c *modbus.Config) { c.Units[0].Unit = 256 }, "units[0].unit", "0 to 255"},
		{"base 2", func(c *modbus.Config) { c.Units[0].AddressBase = 2 }, "units[0].address_base", "0 or 1"},
		{"126 registers", func(c *modbus.Config) { c.Units[0].MaxRegisters = 126 }, "units[0].max_registers", "1 to 125"},
		{"no bits", func(c *modbus.Config) { c.Units[0].MaxBits = 0 }, "units[0].max_bits", "1 to 2000"},
		{"unknown order", func(c *modbus.Config) { c.Units[0].WordOrder = "ABDC" }, "units[0].word_order", "ABCD, CDAB, BADC or DCBA"},
		{"unknown order of a point", point(func(p *modbus.Point) { p.WordOrder = "big" }), "units[0].points[1].word_order", "ABCD, CDAB, BADC or DCBA"},
		{"two points of one name", point(func(p *modbus.Point) { p.Name = "first" }), "units[0].points[1].name", "units[0].points[0]'s already"},
		{"empty name", point(func(p *modbus.Point) { p.Name = "" }), "units[0].points[1].name", "level of a topic"},
		{"name with a wildcard", point(func(p *modbus.Point) { p.Name = "a+" }), "units[0].points[1].name", "level of a topic"},
		{"no period", point(func(p *modbus.Point) { p.Every = 0 }), "units[0].points[1].every", "more than 0"},
		{"unknown table", point(func(p *modbus.Point) { p.Table = "output" }), "units[0].points[1].table", "holding, input, coil or discrete"},
		{"unknown type", point(func(p *modbus.Point) { p.Type = "int17" }), "units[0].points[1].type", "want bool, int16, uint16"},
		{"number in a table of bits", point(func(p *modbus.Point) { p.Table = "coil" }), "units[0].points[1].type", "want type bool"},
		{"string without a length", point(func(p *modbus.Point) { p.Type = "string" }), "units[0].points[1].length", "needs its length"},
		{
			"string past the limit of a request",
			func(c *modbus.Config) {
				c.Units[0].MaxRegisters = 10
				c.Units[0].Points[1].Type, c.Units[0].Points[1].Length = "string", 11
			}, "units[0].points[1].length", "at most 10",
		},
		{
			"number wider than a request",
			func(c *modbus.Config) { c.Units[0].MaxRegisters, c.Units[0].Points[1].Type = 2, "int64" },
			"units[0].points[1].type", "needs 4 registers",
		},
		{"length of a number", point(func(p *modbus.Point) { p.Length = 2 }), "units[0].points[1].length", "for strings"},
		{"bit of a number", point(func(p *modbus.Point) { p.Bit = 3 }), "units[0].points[1].bit", "want type bool"},
		{"bit 16", point(func(p *modbus.Point) { p.Type, p.Bit = "bool", 16 }), "units[0].points[1].bit", "to 15"},
		{"bit of a coil", point(func(p *modbus.Point) { p.Table, p.Type, p.Bit = "coil", "bool", 0 }), "units[0].points[1].bit", "want no bit"},
		{"address past the table", point(func(p *modbus.Point) { p.Address = 65536 }), "units[0].points[1].address", "0 to 65535"},
		{"negative address", point(func(p *modbus.Point) { p.Address = -1 }), "units[0].points[1].address", "0 to 65535"},
		{
			"address 0 with base 1", func(c *modbus.Config) {
				c.Units[0].AddressBase = 1
				c.Units[0].Points[1].Address = 0
			}, "units[0].points[1].address", "1 to 65536, as address_base is 1",
		},
		{
			"number that ends past the table", point(func(p *modbus.Point) { p.Type, p.Address = "float32", 65535 }),
			"units[0].points[1].address", "want 65534 at most",
		},
		{"scale 0", point(func(p *modbus.Point) { p.Scale = 0 }), "units[0].points[1].scale", "1 for none"},
		{"scale of a bool", point(func(p *modbus.Point) { p.Type, p.Scale = "bool", 10 }), "units[0].points[1].scale", "has no scale"},
		{"offset of a string", point(func(p *modbus.Point) { p.Type, p.Length, p.Offset = "string", 1, 10 }), "units[0].points[1].offset", "has no offset"},
		{"marker that does not fit", point(func(p *modbus.Point) { p.NoValue = []uint64{1, 0x10000} }), "units[0].points[1].no_value[1]", "at most 0xffff"},
		{"marker of a bool", point(func(p *modbus.Point) { p.Type, p.NoValue = "bool", []uint64{1} }), "units[0].points[1].no_value[0]", "no such marker"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := config("10.0.0.5:502", kettle(holding("first", "int16", 10), holding("second", "int16", 12)))
			tt.change(&c)
			problems := c.Check()
			if len(problems) != 1 || problems[0].Path != tt.path || !strings.Contains(problems[0].Text, tt.text) {
				t.Fatalf("problems = %q, want one at %s with %q", problems, tt.path, tt.text)
			}
			if _, err := c.Open(device.Env{Name: "boiler"}); err == nil || !strings.HasPrefix(err.Error(), tt.path+": ") {
				t.Errorf("Open = %v, want an error at %s", err, tt.path)
			}
		})
	}
}
