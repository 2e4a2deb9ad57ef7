package uplinktest

import (
	"crypto/rand"
	"os"
	"testing"
	"time"

	"edgegateway/pipeline"
	"edgegateway/uplink"
)

func inOrder(_ *testing.T, b *bench) {
	b.timing = uplink.Timing{} // a broker on a busy machine may take its time, and is not to be taken for a dead one
	r, stop := b.runner()
	b.append(5000)
	b.waitSettled()
	b.append(10) // after a pause without records
	b.waitSettled()
	stop()
	b.check(0)
	if s := r.Status(); s.State != uplink.Stopped || s.Acked != 5010 || s.InFlight != 0 || s.Error != "" || s.LastAck.IsZero() {
		b.Errorf("Status = %+v, want stopped, 5010 acked, none in flight, no error", s)
	}
}

func refused(t *testing.T, b *bench) {
	b.append(40)
	b.log.Append(b.suite.Refused()) // 41
	b.append(20)
	b.log.AppendData([]byte("not a message")) // 62
	b.append(20)
	b.log.Append(b.suite.Refused()) // 83
	b.append(300)
	r, stop := b.runner()
	b.waitSettled()
	stop()
	b.check(b.log.Again())
	letters := map[uint64]string{}
	for _, l := range b.log.Letters() {
		letters[l.Seq] = l.Reason
		t.Logf("dead letter %d: %s", l.Seq, l.Reason)
	}
	if len(letters) != 3 || letters[41] == "" || letters[62] == "" || letters[83] == "" {
		t.Errorf("dead letters %v, want 41, 62 and 83 with a reason each", letters)
	}
	if got := r.Status().Dropped; got != 3 {
		t.Errorf("Status.Dropped = %d, want 3", got)
	}
}

// tooLarge sends records over whatever bound there may be, alone and among others.
func tooLarge(t *testing.T, b *bench) {
	image := make([]byte, 3<<20)
	_, _ = rand.Read(image) // some drivers compress before they ask whether it fits
	huge := pipeline.Message{Topic: "boiler/image", Key: "boiler", Value: pipeline.Bytes(image)}
	b.log.Append(huge) // 1
	b.append(30)
	b.log.Append(huge) // 32
	_, stop := b.runner()
	b.waitSettled()
	b.append(30)
	b.waitSettled()
	stop()
	for _, l := range b.log.Letters() {
		t.Logf("dead letter %d: %s", l.Seq, l.Reason)
	}
	if dead := b.dead(); len(dead) != 2 || !dead[1] || !dead[32] {
		t.Errorf("dead letters %v, want 1 and 32", dead)
	}
	b.check(b.log.Again())
}

func closeInFlight(t *testing.T, b *bench) {
	wait := b.appendSteadily(3000, time.Millisecond)
	for i := range 6 {
		_, stop := b.runner()
		time.Sleep(time.Duration(150+70*i) * time.Millisecond)
		stop()
	}
	_, stop := b.runner()
	wait()
	b.waitSettled()
	stop()
	t.Logf("%d records were given out a second time", b.log.Again())
	b.check(b.log.Again())
}

func standsStill(t *testing.T, b *bench) {
	r, stop := b.runner()
	b.append(100)
	b.waitSettled()
	b.server.Pause()
	b.append(300)
	failed := waitState(r, uplink.Waiting)
	time.Sleep(long(0, 30*time.Second))
	b.server.Resume()
	if !failed {
		t.Errorf("Status = %+v with a broker that stands still, want waiting", r.Status())
	}
	b.waitSettled()
	stop()
	b.check(b.log.Again())
}

func downAtStart(t *testing.T, b *bench) {
	b.server.Stop()
	b.append(500)
	r, stop := b.runner()
	if !waitState(r, uplink.Waiting) {
		t.Errorf("Status = %+v with a broker that is down, want waiting", r.Status())
	}
	s := r.Status()
	t.Logf("in plain words: %s", s.Error)
	if s.Error == "" || s.Config {
		t.Errorf("Status = %+v, want an error that is nobody's to mend", s)
	}
	b.server.Start()
	b.waitSettled()
	stop()
	if s := r.Status(); s.Error != "" {
		t.Errorf("Error = %q after a confirmation, want none", s.Error)
	}
	b.check(b.log.Again())
}

func stopped(_ *testing.T, b *bench)      { b.interrupted(b.server.Stop) }
func brokerKilled(_ *testing.T, b *bench) { b.interrupted(b.server.Kill9) }

func (b *bench) interrupted(interrupt func()) {
	_, stop := b.runner()
	wait := b.appendSteadily(4000, 500*time.Microsecond)
	times := b.suite.Interruptions
	if times == 0 {
		times = 2
	}
	for range times {
		time.Sleep(500 * time.Millisecond)
		interrupt()
		time.Sleep(300 * time.Millisecond)
		b.server.Start()
	}
	wait()
	b.waitSettled()
	stop()
	b.Logf("%d records were sent a second time", b.log.Again())
	b.check(b.log.Again())
}

// waitState waits until a runner is in a state and returns false if that does not happen.
func waitState(r *uplink.Runner, want uplink.State) bool {
	return waitStatus(r, func(s uplink.Status) bool { return s.State == want })
}

func waitStatus(r *uplink.Runner, is func(uplink.Status) bool) bool {
	for deadline := time.Now().Add(patient); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if is(r.Status()) {
			return true
		}
	}
	return false
}

// long picks between what make test does and what UPLINK_LONG=1 asks for.
func long[T any](short, long T) T {
	if os.Getenv("UPLINK_LONG") != "" {
		return long
	}
	return short
}
