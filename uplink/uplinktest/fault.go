package uplinktest

import (
	"strings"
	"testing"
	"time"

	"edgegateway/uplink"
)

// Fault is something that a person must mend, or that the broker will get over.
type Fault struct {
	Name   string
	Driver uplink.Driver
	Want   string // part of the error in plain words
	Config bool   // a person must mend it
	Mend   func() // nil: it stays as it is
}

// RunFaults runs each fault as a subtest: the runner says it in plain words, holds the records and drops none; where the
// fault is mended, all of them arrive.
func RunFaults(t *testing.T, faults []Fault) {
	for _, f := range faults {
		t.Run(f.Name, func(t *testing.T) {
			b := &bench{T: t, log: NewLog()}
			b.append(20)
			r := uplink.New(uplink.RunnerConfig{Driver: f.Driver, Env: env(), Cursor: b.log, Timing: timing})
			stop := b.start(r)
			var s uplink.Status
			for deadline := time.Now().Add(patient); !strings.Contains(s.Error, f.Want); time.Sleep(2 * time.Millisecond) {
				if s = r.Status(); time.Now().After(deadline) {
					t.Fatalf("Status = %+v, want an error with %q", s, f.Want)
				}
			}
			t.Logf("in plain words: %s", s.Error)
			if s.Config != f.Config {
				t.Errorf("Config = %v, want %v: %s", s.Config, f.Config, s.Error)
			}
			if f.Mend != nil {
				f.Mend()
				b.waitSettled()
				stop() // the status counts a confirmation after the log has heard of it
				if s := r.Status(); s.Error != "" || s.Acked != 20 {
					t.Errorf("Status = %+v after it was mended, want 20 acked and no error", s)
				}
			}
			stop()
			if n := len(b.log.Letters()); n > 0 {
				t.Errorf("%d records became dead letters, want none", n)
			}
			for _, m := range b.log.Mistakes() {
				t.Error(m)
			}
		})
	}
}
