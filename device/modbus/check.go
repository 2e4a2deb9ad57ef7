package modbus

import (
	"fmt"
	"math"
	"net"
	"strconv"
	"strings"

	"edgegateway/pipeline"
)

// Check finds what the tags of the fields cannot say. It implements pipeline.Checker.
func (c Config) Check() []pipeline.Problem {
	var p problems
	if text := checkAddress(c.Address); text != "" {
		p.add("address", "%s", text)
	}
	if c.Timeout <= 0 {
		p.add("timeout", "a timeout of %s lets no answer arrive (want more than 0, such as 1s)", c.Timeout)
	}
	if len(c.Units) == 0 {
		p.add("units", "no units (want at least one)")
	}
	names, numbers := map[string]int{}, map[int]int{}
	for i, u := range c.Units {
		path := fmt.Sprintf("units[%d]", i)
		p.checkName(path, "units", u.Name, i, names)
		if first, taken := numbers[u.Unit]; taken {
			p.add(path+".unit", "unit number %d is units[%d]'s already (want another number, or the points moved there)", u.Unit, first)
		} else {
			numbers[u.Unit] = i
		}
		p.checkUnit(path, u)
	}
	return p.list
}

func checkAddress(address string) string {
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" {
		return fmt.Sprintf("%q is not an address (want HOST:PORT, such as 10.0.0.5:502)", address)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Sprintf("port %q of %q is not a port (want 1 to 65535, usually 502)", port, address)
	}
	return ""
}

// problems collects what is wrong with a config.
type problems struct {
	list []pipeline.Problem
}

func (p *problems) add(path, format string, args ...any) {
	p.list = append(p.list, pipeline.Problem{Path: path, Text: fmt.Sprintf(format, args...)})
}

// checkName checks a name that becomes one level of a topic, and that no earlier entry of the list has it.
func (p *problems) checkName(path, list, name string, i int, seen map[string]int) {
	if err := pipeline.CheckTopic(name); err != nil || strings.Contains(name, "/") {
		p.add(path+".name", "%q cannot be a level of a topic (want a name without \"/\", \"+\" and \"#\")", name)
		return
	}
	if first, taken := seen[name]; taken {
		p.add(path+".name", "name %q is %s[%d]'s already (want a name of its own)", name, list, first)
		return
	}
	seen[name] = i
}

func (p *problems) checkUnit(path string, u Unit) {
	if u.Unit < 0 || u.Unit > 255 {
		p.add(path+".unit", "unit number %d is out of range (want 0 to 255)", u.Unit)
	}
	if u.AddressBase != 0 && u.AddressBase != 1 {
		p.add(path+".address_base", "address base %d is unknown (want 0 or 1, as the device's manual counts)", u.AddressBase)
	}
	if u.MaxRegisters < 1 || u.MaxRegisters > maxRegisters {
		p.add(path+".max_registers", "%d registers in one request are out of range (want 1 to %d)", u.MaxRegisters, maxRegisters)
	}
	if u.MaxBits < 1 || u.MaxBits > maxBits {
		p.add(path+".max_bits", "%d bits in one request are out of range (want 1 to %d)", u.MaxBits, maxBits)
	}
	p.checkOrder(path, u.WordOrder)
	if len(u.Points) == 0 {
		p.add(path+".points", "no points (want at least one)")
	}
	names := map[string]int{}
	for i, pt := range u.Points {
		at := fmt.Sprintf("%s.points[%d]", path, i)
		p.checkName(at, path+".points", pt.Name, i, names)
		p.checkPoint(at, u, pt)
	}
}

func (p *problems) checkOrder(path, name string) {
	if _, known := orders[name]; !known {
		p.add(path+".word_order", "unknown order %q (want ABCD, CDAB, BADC or DCBA)", name)
	}
}

func (p *problems) checkPoint(path string, u Unit, pt Point) {
	if pt.WordOrder != "" {
		p.checkOrder(path, pt.WordOrder)
	}
	if pt.Every <= 0 {
		p.add(path+".every", "a period of %s is none (want more than 0, such as 1s)", pt.Every)
	}
	t, knownTable := tables[pt.Table]
	if !knownTable {
		p.add(path+".table", "unknown table %q (want holding, input, coil or discrete)", pt.Table)
	}
	width, knownType := typeWidths[pt.Type]
	if !knownType {
		p.add(path+".type", "unknown type %q (want %s)", pt.Type, typeNames)
	}
	if !knownTable || !knownType {
		return
	}
	p.checkKind(path, pt, t.isBits())
	if pt.Type == "string" {
		width = p.checkLength(path, u, pt)
	} else if width > u.MaxRegisters && u.MaxRegisters > 0 {
		p.add(path+".type", "%s needs %d registers, more than max_registers %d allows in one request (want a higher max_registers)",
			pt.Type, width, u.MaxRegisters)
	}
	p.checkRange(path, u, pt, width)
	p.checkNumbers(path, pt, width)
}

// checkKind checks what goes together: type with table, and bit and length with type.
func (p *problems) checkKind(path string, pt Point, bits bool) {
	if bits && pt.Type != "bool" {
		p.add(path+".type", "a point of table %s is a single bit, not %s (want type bool, or table holding or input)", pt.Table, pt.Type)
	}
	if pt.Type != "string" && pt.Length != 0 {
		p.add(path+".length", "%s has a fixed length (want no length; it is for strings)", pt.Type)
	}
	switch {
	case pt.Bit < -1 || pt.Bit > 15:
		p.add(path+".bit", "a register has no bit %d (want 0, the lowest, to 15)", pt.Bit)
	case pt.Bit >= 0 && bits:
		p.add(path+".bit", "a point of table %s is a bit already (want no bit)", pt.Table)
	case pt.Bit >= 0 && pt.Type != "bool":
		p.add(path+".bit", "a bit of a register is a bool, not %s (want type bool, or no bit)", pt.Type)
	}
}

func (p *problems) checkLength(path string, u Unit, pt Point) (width int) {
	switch {
	case pt.Length < 1:
		p.add(path+".length", "a string needs its length in registers (want 1 to %d; a register holds two characters)", u.MaxRegisters)
	case pt.Length > u.MaxRegisters:
		p.add(path+".length", "%d registers are more than max_registers allows in one request (want at most %d)", pt.Length, u.MaxRegisters)
	default:
		return pt.Length
	}
	return 1
}

func (p *problems) checkRange(path string, u Unit, pt Point, width int) {
	first, last := u.AddressBase, u.AddressBase+0xffff
	switch {
	case pt.Address < first || pt.Address > last:
		p.add(path+".address", "address %d is out of range (want %d to %d, as address_base is %d)", pt.Address, first, last, u.AddressBase)
	case pt.Address+width-1 > last:
		p.add(path+".address", "%s at %d ends at %d, past the last address %d (want %d at most)",
			pt.Type, pt.Address, pt.Address+width-1, last, last-width+1)
	}
}

// checkNumbers checks scale, offset and the markers for no value.
func (p *problems) checkNumbers(path string, pt Point, width int) {
	number := pt.Type != "bool" && pt.Type != "string"
	switch {
	case !number && pt.Scale != 1 && pt.Scale != 0:
		p.add(path+".scale", "a %s has no scale (want none, or a type that is a number)", pt.Type)
	case number && (pt.Scale == 0 || math.IsNaN(pt.Scale) || math.IsInf(pt.Scale, 0)):
		p.add(path+".scale", "a scale of %g loses the value (want another number, 1 for none)", pt.Scale)
	}
	switch {
	case !number && pt.Offset != 0:
		p.add(path+".offset", "a %s has no offset (want none, or a type that is a number)", pt.Type)
	case math.IsNaN(pt.Offset) || math.IsInf(pt.Offset, 0):
		p.add(path+".offset", "an offset of %g loses the value (want another number, 0 for none)", pt.Offset)
	}
	for i, marker := range pt.NoValue {
		switch {
		case !number:
			p.add(fmt.Sprintf("%s.no_value[%d]", path, i), "a %s has no such marker (want none, or a type that is a number)", pt.Type)
		case width < 4 && marker>>(16*width) != 0:
			p.add(fmt.Sprintf("%s.no_value[%d]", path, i), "%#x does not fit into %s (want at most %#x)", marker, pt.Type, uint64(1)<<(16*width)-1)
		}
	}
}
