package modbus_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"edgegateway/device"
	"edgegateway/device/modbus"
	"edgegateway/pipeline"
	"edgegateway/test/rig"
)

// want is what a point must read.
type want struct {
	topic, text string
}

// typesUnit returns a unit of pymodbus with every type of number in one order, the points that read it, and the values.
func typesUnit(number int, name, order string, base int) (items []rig.PymodbusItem, u modbus.Unit, wants []want) {
	u = kettle()
	u.Name, u.Unit, u.WordOrder, u.AddressBase = name, number, order, base
	add := func(table, kind string, address, length int, value any, text string) {
		items = append(items, rig.PymodbusItem{Table: table, Address: address, Type: kind, Value: value, Order: order})
		p := holding(fmt.Sprintf("%s_%s_%d", table, kind, address), kind, address+base)
		p.Table, p.Length = table, length
		u.Points = append(u.Points, p)
		wants = append(wants, want{"boiler/" + name + "/" + p.Name, text})
	}
	for i, table := range []string{"holding", "input"} {
		at := 100 * i
		add(table, "int16", at, 0, -13, "-13")
		add(table, "uint16", at+1, 0, 65523, "65523")
		add(table, "int32", at+2, 0, -70000, "-70000")
		add(table, "uint32", at+4, 0, uint32(4000000000), "4000000000")
		add(table, "int64", at+6, 0, int64(-5000000000000000000), "-5000000000000000000")
		add(table, "uint64", at+10, 0, uint64(18000000000000000000), "18000000000000000000")
		add(table, "float32", at+14, 0, 239.1, "239.1")
		add(table, "float64", at+16, 0, math.Pi, "3.141592653589793")
		add(table, "string", at+20, 4, "VNSE3-0", "VNSE3-0")
	}
	return items, u, wants
}

func TestPymodbusGivesEveryTypeInEveryOrder(t *testing.T) {
	t.Parallel()
	units := map[int][]rig.PymodbusItem{}
	c := modbus.Config{Timeout: 2 * time.Second}
	var wants []want
	for i, order := range []string{"ABCD", "CDAB", "BADC", "DCBA"} {
		items, u, w := typesUnit(i+1, "unit"+order, order, i%2)
		units[i+1], c.Units, wants = items, append(c.Units, u), append(wants, w...)
	}
	// Unit 9 has bits, in tables of their own and in a register.
	units[9] = []rig.PymodbusItem{
		{Table: "coil", Address: 3, Type: "bool", Value: []bool{true, false, true}},
		{Table: "discrete", Address: 0, Type: "bool", Value: []bool{false, true}},
		{Table: "holding", Address: 0, Type: "uint16", Value: 0x8001},
	}
	bits := kettle(row("coil", "bool", 3, 1, 3)...)
	bits.Name, bits.Unit = "bits", 9
	for i, bit := range []int{0, 7, 15} {
		p := holding(fmt.Sprintf("bit%d", bit), "bool", 0)
		p.Bit = bit
		bits.Points = append(bits.Points, p)
		wants = append(wants, want{fmt.Sprintf("boiler/bits/bit%d", bit), []string{"true", "false", "true"}[i]})
	}
	for i := range 2 {
		p := holding(fmt.Sprintf("d%d", i), "bool", i)
		p.Table = "discrete"
		bits.Points = append(bits.Points, p)
		wants = append(wants, want{fmt.Sprintf("boiler/bits/d%d", i), []string{"false", "true"}[i]})
	}
	for i, text := range []string{"true", "false", "true"} {
		wants = append(wants, want{fmt.Sprintf("boiler/bits/p%d", 3+i), text})
	}
	c.Units = append(c.Units, bits)
	for i := range c.Units {
		every(100*time.Millisecond, c.Units[i].Points...)
	}

	c.Address = rig.Pymodbus(t, units).Addr
	p := start(t, c)
	eventually(t, "three readings of everything", func() bool {
		for _, w := range wants {
			if all, _, _ := p.sink.on(w.topic); len(all) < 3 {
				return false
			}
		}
		return true
	})
	p.stop()
	for _, w := range wants {
		all, _, _ := p.sink.on(w.topic)
		for _, m := range all {
			if m.Quality != pipeline.Good || m.Value.Text() != w.text {
				t.Errorf("%s = %q, %s %s, want %q", w.topic, m.Value.Text(), m.Quality, m.Reason, w.text)
				break
			}
		}
	}
	if status := p.Status(); status.State != device.Up || status.Counters["errors_total"] != 0 || status.Counters["exceptions_total"] != 0 {
		t.Errorf("status = %+v, want up without errors", status)
	}
}

func TestPymodbusHoleAndMissingUnitAreBadAlone(t *testing.T) {
	t.Parallel()
	items := map[int][]rig.PymodbusItem{1: {
		{Table: "holding", Address: 10, Type: "uint16", Value: []uint16{10, 11}},
		{Table: "holding", Address: 13, Type: "uint16", Value: []uint16{13}},
	}}
	missing := kettle(holding("p10", "uint16", 10))
	missing.Name, missing.Unit = "missing", 7
	c := config(rig.Pymodbus(t, items).Addr, kettle(row("holding", "uint16", 10, 1, 4)...), missing)
	c.Timeout = 2 * time.Second
	p := start(t, c)
	eventually(t, "10 readings of everything", func() bool {
		for topic := range addresses(c) {
			if all, _, _ := p.sink.on(topic); len(all) < 10 {
				return false
			}
		}
		return true
	})
	p.stop()
	checkValues(t, p.sink, addresses(c))
	for topic, reason := range map[string]string{"boiler/kettle/p12": "exception 2", "boiler/missing/p10": "exception 4"} {
		_, good, bad := p.sink.on(topic)
		if len(good) > 0 || len(bad) == 0 || !strings.Contains(bad[0].Reason, reason) {
			t.Errorf("%s has %d good and %d bad readings, want bad ones only, with %s", topic, len(good), len(bad), reason)
		}
	}
	for _, name := range []string{"p10", "p11", "p13"} {
		if _, _, bad := p.sink.on("boiler/kettle/" + name); len(bad) > 0 {
			t.Errorf("%s has %d bad readings (%s), want none", name, len(bad), bad[0].Reason)
		}
	}
}

func TestPymodbusKilledAndStartedAgain(t *testing.T) {
	t.Parallel()
	s := rig.Pymodbus(t, map[int][]rig.PymodbusItem{1: {{Table: "holding", Address: 10, Type: "uint16", Value: []uint16{10, 11}}}})
	c := config(s.Addr, kettle(row("holding", "uint16", 10, 1, 2)...))
	c.Timeout = time.Second
	p := start(t, c)
	good := func() int { _, good, _ := p.sink.on("boiler/kettle/p10"); return len(good) }
	bad := func() int { _, _, bad := p.sink.on("boiler/kettle/p10"); return len(bad) }
	for round := range 2 {
		before := good()
		eventually(t, "10 good readings", func() bool { return good() >= before+10 })
		if round == 0 {
			s.Kill9()
		} else {
			s.Pause() // it stands still with its connection open
		}
		badBefore := bad()
		eventually(t, "10 bad readings", func() bool { return bad() >= badBefore+10 })
		still := good()
		eventually(t, "10 more bad readings", func() bool { return bad() >= badBefore+20 })
		if now := good(); now != still {
			t.Errorf("%d good readings of a server that is down", now-still)
		}
		if round == 0 {
			s.Start()
		} else {
			s.Resume()
		}
	}
	before := good()
	eventually(t, "10 good readings at the end", func() bool { return good() >= before+10 })
	p.stop()
	checkValues(t, p.sink, addresses(c))
	if n := p.Status().Counters["reconnects_total"]; n < 2 {
		t.Errorf("%d reconnects, want 2 at least", n)
	}
}
