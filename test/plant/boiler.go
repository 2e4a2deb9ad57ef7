package main

import (
	"context"
	"io"
	"log"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/simonvetter/modbus"
)

// boiler is a heating plant as a Modbus slave shows it. Unit 1 is the kettle, unit 2 its pump.
//
//	unit 1  holding 0–1   float32  set point, °C           input 0   uint16  pressure, 0.01 bar
//	        holding 2–3   float32  water temperature, °C   input 1   int16   outside temperature, 0.1 °C
//	        holding 10–11 uint32   gas meter, 0.01 m³      discrete 0        burner on
//	unit 2  holding 0     uint16   speed, rpm              coil 0            running
//	        holding 1     uint16   flow, 0.1 l/min
type boiler struct {
	mu      sync.Mutex // guards the rest
	water   float64
	outside float64
	burner  bool
	gas     float64
	seconds float64
}

const setPoint = 72.0

// run lets the time of the plant pass: the burner heats with hysteresis, the building cools.
func (b *boiler) run(ctx context.Context) {
	const step = 100 * time.Millisecond
	tick := time.NewTicker(step)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			b.advance(step.Seconds())
		}
	}
}

func (b *boiler) advance(seconds float64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.seconds += seconds
	b.outside = 4 + 3*math.Sin(b.seconds/300) + rand.Float64()*0.1
	switch {
	case b.water < setPoint-3:
		b.burner = true
	case b.water > setPoint+1:
		b.burner = false
	}
	if b.burner {
		b.water += 0.55 * seconds
		b.gas += 0.4 * seconds
	}
	b.water -= (b.water - b.outside) * 0.003 * seconds
	b.water += (rand.Float64() - 0.5) * 0.05
}

func (b *boiler) registers(unit uint8, input bool) map[uint16]uint16 {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case unit == 1 && !input:
		set, water := math.Float32bits(setPoint), math.Float32bits(float32(b.water))
		gas := uint32(b.gas)
		return map[uint16]uint16{
			0: uint16(set >> 16), 1: uint16(set), 2: uint16(water >> 16), 3: uint16(water), 10: uint16(gas >> 16), 11: uint16(gas),
		}
	case unit == 1:
		return map[uint16]uint16{0: uint16(150 + b.water/2), 1: uint16(int16(b.outside * 10))}
	case unit == 2 && !input && b.burner:
		return map[uint16]uint16{0: uint16(1440 + rand.IntN(20)), 1: uint16(183 + rand.IntN(5))}
	case unit == 2 && !input:
		return map[uint16]uint16{0: uint16(720 + rand.IntN(10)), 1: uint16(90 + rand.IntN(3))}
	default:
		return nil
	}
}

func (b *boiler) read(unit uint8, input bool, address, quantity uint16) ([]uint16, error) {
	registers := b.registers(unit, input)
	if registers == nil {
		return nil, modbus.ErrGWTargetFailedToRespond
	}
	values := make([]uint16, quantity)
	for i := range values {
		v, ok := registers[address+uint16(i)]
		if !ok {
			return nil, modbus.ErrIllegalDataAddress
		}
		values[i] = v
	}
	return values, nil
}

// HandleHoldingRegisters implements modbus.RequestHandler.
func (b *boiler) HandleHoldingRegisters(r *modbus.HoldingRegistersRequest) ([]uint16, error) {
	if r.IsWrite {
		return nil, modbus.ErrIllegalFunction
	}
	return b.read(r.UnitId, false, r.Addr, r.Quantity)
}

// HandleInputRegisters implements modbus.RequestHandler.
func (b *boiler) HandleInputRegisters(r *modbus.InputRegistersRequest) ([]uint16, error) {
	return b.read(r.UnitId, true, r.Addr, r.Quantity)
}

// HandleCoils implements modbus.RequestHandler.
func (b *boiler) HandleCoils(r *modbus.CoilsRequest) ([]bool, error) {
	if r.IsWrite {
		return nil, modbus.ErrIllegalFunction
	}
	if r.UnitId != 2 || r.Addr != 0 || r.Quantity != 1 {
		return nil, modbus.ErrIllegalDataAddress
	}
	return []bool{true}, nil
}

// HandleDiscreteInputs implements modbus.RequestHandler.
func (b *boiler) HandleDiscreteInputs(r *modbus.DiscreteInputsRequest) ([]bool, error) {
	if r.UnitId != 1 || r.Addr != 0 || r.Quantity != 1 {
		return nil, modbus.ErrIllegalDataAddress
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return []bool{b.burner}, nil
}

// serveBoiler serves the boiler on a Modbus TCP address until stop is called.
func serveBoiler(b *boiler, address string) (stop func() error, err error) {
	server, err := modbus.NewServer(&modbus.ServerConfiguration{
		URL: "tcp://" + address, Timeout: time.Minute, MaxClients: 5, Logger: log.New(io.Discard, "", 0),
	}, b)
	if err != nil {
		return nil, err
	}
	return server.Stop, server.Start()
}
