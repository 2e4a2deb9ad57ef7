package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"edgegateway/wal"
)

// cell is one load under which all logs are compared.
type cell struct {
	producers int
	kind      string
	goal      goal // of ours against the reference
}

func (c cell) String() string { return fmt.Sprintf("%d-%s", c.producers, c.kind) }

func cells() []cell {
	return []cell{
		{1, incompressible, atLeast(.45)},
		{64, incompressible, atLeast(.45)},
		{1024, incompressible, atLeast(.75)},
		{1024, telemetry, atLeast(.95)},
	}
}

// row is what one log has reached in a cell.
type row struct {
	name, how string
	rates     []float64 // records/s, of each round
	ratios    []float64 // to the turn of the reference before it
	total     turn
}

func (r *row) flushesPerRecord() float64 { return float64(r.total.flushes) / float64(r.total.records) }

func (r *row) amplification() float64 {
	return float64(r.total.bytes) / float64(r.total.records*payloadBytes)
}

// cellResult is a cell with a row for each log; the first one is the reference.
type cellResult struct {
	cell
	rows []row
}

// measureRates has all logs take turns under each load.
func (b *bench) measureRates(ctx context.Context) error {
	for _, c := range cells() {
		b.progress("rates: %d producers, %s", c.producers, c.kind)
		result, err := b.compare(ctx, c, b.contenders())
		if err != nil {
			return fmt.Errorf("%s: %w", c, err)
		}
		b.rates = append(b.rates, *result)
		b.reportRates(result)
	}
	return nil
}

// contenders are the reference, our log, with compression off too, and the peers.
func (b *bench) contenders() []contender {
	all := []contender{rawLog(b.form.raw)}
	all = append(all, b.ourLog("ours", options("")), b.ourLog("ours-none", options(wal.CodecNone)))
	return append(all, peers()...)
}

// compare opens all logs and has them take turns, each of them right behind one of the reference, the first log.
func (b *bench) compare(ctx context.Context, c cell, all []contender) (result *cellResult, err error) {
	p := newPayloads(c.kind)
	result = &cellResult{cell: c}
	subjects := make([]subject, 0, len(all))
	defer func() {
		for _, s := range subjects {
			err = errors.Join(err, s.close())
		}
		err = errors.Join(err, b.empty())
	}()
	for _, k := range all {
		dir, err := b.newDir("rate")
		if err != nil {
			return nil, err
		}
		s, err := k.open(dir)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", k.name, err)
		}
		subjects = append(subjects, s)
		result.rows = append(result.rows, row{name: k.name, how: k.how})
	}
	one := func(i int) (turn, error) {
		if err := ctx.Err(); err != nil {
			return turn{}, err
		}
		t, err := takeTurn(b.disk, subjects[i], p, c.producers, b.form.turn)
		if err != nil {
			err = fmt.Errorf("%s: %w", all[i].name, err)
		}
		return t, err
	}
	for round := -1; round < b.form.rounds; round++ { // the first one warms up
		for i := 1; i < len(all); i++ {
			reference, err := one(0)
			if err != nil {
				return nil, err
			}
			t, err := one(i)
			if err != nil {
				return nil, err
			}
			if round >= 0 {
				result.rows[0].take(reference, reference.rate())
				result.rows[i].take(t, reference.rate())
			}
		}
	}
	return result, nil
}

func (r *row) take(t turn, reference float64) {
	r.rates = append(r.rates, t.rate())
	r.ratios = append(r.ratios, t.rate()/reference)
	r.total.records += t.records
	r.total.elapsed += t.elapsed
	r.total.add(t.counts)
}

// reportRates prints a line for each log. The goal is one for ours with its defaults.
func (b *bench) reportRates(r *cellResult) {
	for _, row := range r.rows[1:] {
		f := figure{
			name: fmt.Sprintf("rate-%s-%s", r.cell, word(row.name)), unit: "records/s",
			ours: median(row.rates), reference: median(r.rows[0].rates), ratio: median(row.ratios),
		}
		if row.name == "ours" {
			f.goal = r.goal
		}
		b.report(f)
	}
}

// word makes a name of one word of it.
func word(s string) string {
	out := []rune(s)
	for i, r := range out {
		if r == ' ' || r == '/' {
			out[i] = '-'
		}
	}
	return string(out)
}

// empty removes what the measurements have left on the device.
func (b *bench) empty() error {
	entries, err := os.ReadDir(b.disk.dir)
	for _, e := range entries {
		if e.Name() != "lost+found" {
			err = errors.Join(err, os.RemoveAll(b.disk.dir+"/"+e.Name()))
		}
	}
	return err
}
