package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// lanes are logs side by side on one disk, among which producers are spread.
type lanes struct {
	logs []subject
	next atomic.Int64
}

func (s *lanes) append(p []byte, until time.Time) error {
	return s.logs[int(s.next.Add(1))%len(s.logs)].append(p, until)
}

func (s *lanes) close() error {
	var errs []error
	for _, l := range s.logs {
		errs = append(errs, l.close())
	}
	return errors.Join(errs...)
}

func (b *bench) openLanes(n int) contender {
	return contender{name: fmt.Sprintf("lanes-%d", n), open: func(dir string) (subject, error) {
		s := &lanes{}
		o := options("")
		o.SegmentBytes = 4 * mib // that of small lanes
		for i := range n {
			l, err := b.ourLog("", o).open(fmt.Sprintf("%s/%d", dir, i))
			if err != nil {
				return nil, errors.Join(err, s.close())
			}
			s.logs = append(s.logs, l)
		}
		return s, nil
	}}
}

// measureLanes compares several lanes with a single one under the same 64 producers.
func (b *bench) measureLanes(ctx context.Context) error {
	b.progress("lanes: 64 producers on 1, 2, 4 and 8 lanes")
	all := []contender{b.openLanes(1), b.openLanes(2), b.openLanes(4), b.openLanes(8)}
	r, err := b.compare(ctx, cell{64, incompressible, goal{}}, all)
	if err != nil {
		return err
	}
	one := &r.rows[0]
	for i := range r.rows[1:] {
		row := &r.rows[i+1]
		b.report(figure{
			name: row.name + "-rate", ours: median(row.rates), reference: median(one.rates), unit: "records/s", ratio: median(row.ratios),
		})
		if !b.disk.counted() {
			continue
		}
		b.report(figure{
			name: row.name + "-flushes", ours: 1000 * row.flushesPerRecord(), reference: 1000 * one.flushesPerRecord(),
			unit: "per 1000 records",
		})
		b.report(figure{name: row.name + "-written", ours: row.amplification(), reference: one.amplification(), unit: "B per B"})
	}
	return nil
}
