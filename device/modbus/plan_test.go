package modbus_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"edgegateway/device/modbus"
)

const fast = 20 * time.Millisecond

// kettle returns a unit with the defaults of the config.
func kettle(points ...modbus.Point) modbus.Unit {
	return modbus.Unit{Name: "kettle", Unit: 1, WordOrder: "ABCD", MaxRegisters: 125, MaxBits: 2000, Points: points}
}

// row returns n points of a type at addresses without holes.
func row(table, kind string, address, width, n int) []modbus.Point {
	var points []modbus.Point
	for i := range n {
		p := holding(fmt.Sprintf("p%d", address+i*width), kind, address+i*width)
		p.Table = table
		points = append(points, p)
	}
	return points
}

func every(period time.Duration, points ...modbus.Point) []modbus.Point {
	for i := range points {
		points[i].Every = period
	}
	return points
}

func TestPlan(t *testing.T) {
	tests := []struct {
		name   string
		points []modbus.Point
		change func(*modbus.Unit)
		want   []modbus.Request
	}{
		{"one point is one request", row("holding", "int16", 7, 1, 1), nil, []modbus.Request{{"holding", 7, 1, 1}}},
		{"neighbours share a request", row("holding", "float32", 10, 2, 3), nil, []modbus.Request{{"holding", 10, 6, 3}}},
		{"order in the config does not matter", slices.Concat(row("input", "int16", 3, 1, 1), row("input", "int16", 2, 1, 1)), nil, []modbus.Request{{"input", 2, 2, 2}}},
		{
			"a hole divides", slices.Concat(row("holding", "int16", 0, 1, 2), row("holding", "int16", 3, 1, 1)), nil,
			[]modbus.Request{{"holding", 0, 2, 2}, {"holding", 3, 1, 1}},
		},
		{
			"tables are apart", slices.Concat(row("holding", "int16", 0, 1, 1), row("input", "int16", 1, 1, 1), row("coil", "bool", 0, 1, 1), row("discrete", "bool", 1, 1, 1)), nil,
			[]modbus.Request{{"holding", 0, 1, 1}, {"input", 1, 1, 1}, {"coil", 0, 1, 1}, {"discrete", 1, 1, 1}},
		},
		{
			"periods are apart", slices.Concat(row("holding", "int16", 0, 1, 1), every(time.Hour, row("holding", "int16", 1, 1, 1)...)), nil,
			[]modbus.Request{{"holding", 0, 1, 1}, {"holding", 1, 1, 1}},
		},
		{"125 registers are one request", row("holding", "int16", 0, 1, 125), nil, []modbus.Request{{"holding", 0, 125, 125}}},
		{
			"the 126th starts a new one", row("holding", "int16", 0, 1, 126), nil,
			[]modbus.Request{{"holding", 0, 125, 125}, {"holding", 125, 1, 1}},
		},
		{
			"no number is split at the limit", row("holding", "float32", 1, 2, 70), nil,
			[]modbus.Request{{"holding", 1, 124, 62}, {"holding", 125, 16, 8}},
		},
		{
			"no 64-bit number is split at a limit of 10", row("holding", "int64", 0, 4, 5), func(u *modbus.Unit) { u.MaxRegisters = 10 },
			[]modbus.Request{{"holding", 0, 8, 2}, {"holding", 8, 8, 2}, {"holding", 16, 4, 1}},
		},
		{
			"2001 coils are two requests", row("coil", "bool", 0, 1, 2001), nil,
			[]modbus.Request{{"coil", 0, 2000, 2000}, {"coil", 2000, 1, 1}},
		},
		{"the last register can be read", row("holding", "int16", 65535, 1, 1), nil, []modbus.Request{{"holding", 65535, 1, 1}}},
		{"base 1 is taken off", row("holding", "int16", 1, 1, 2), func(u *modbus.Unit) { u.AddressBase = 1 }, []modbus.Request{{"holding", 0, 2, 2}}},
		{
			"points may overlap", slices.Concat(row("holding", "uint32", 4, 2, 1), row("holding", "uint16", 4, 1, 3)), nil,
			[]modbus.Request{{"holding", 4, 3, 4}},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			u := kettle(tt.points...)
			if tt.change != nil {
				tt.change(&u)
			}
			if got := modbus.Plan(u); !slices.Equal(got, tt.want) {
				t.Errorf("Plan = %v, want %v", got, tt.want)
			}
		})
	}
}
