package modbus_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"edgegateway/device"
)

func TestMessageSaysWhatWhereAndWhen(t *testing.T) {
	const delay = 60 * time.Millisecond
	s := serve(t, func(c net.Conn, r request) bool {
		time.Sleep(delay)
		return behave(c, r)
	})
	point := holding("temperature", "uint16", 234)
	point.Scale, point.Unit = 0.1, "°C"
	c := config(s.Addr, kettle(point))
	begin := time.Now()
	p := start(t, c)
	eventually(t, "a reading", func() bool { all, _, _ := p.sink.on(""); return len(all) > 0 })
	arrived := time.Now()
	p.stop()
	all, _, _ := p.sink.on("boiler/kettle/temperature")
	m := all[0]
	if m.Source != "boiler" || m.Unit != "°C" || m.Value.Text() != "23.4" || m.Reason != "" {
		t.Errorf("message = %+v, want 23.4 °C from boiler", m)
	}
	if m.Time.Before(begin.Add(delay/2)) || m.Time.After(arrived.Add(-delay/2)) {
		t.Errorf("time is %v after the start and %v before its arrival, want the middle of request and reply (%v each at least)",
			m.Time.Sub(begin), arrived.Sub(m.Time), delay/2)
	}
}

func TestScheduleKeepsItsRate(t *testing.T) {
	tests := []struct {
		name    string
		takes   time.Duration // of the slave for an answer
		skipped bool
	}{
		{"fast slave", 0, false},
		{"slave that takes a third of the period", 15 * time.Millisecond, false},
		{"slave that takes three periods", 150 * time.Millisecond, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			const period = 50 * time.Millisecond
			s := serve(t, func(c net.Conn, r request) bool {
				time.Sleep(tt.takes)
				return behave(c, r)
			})
			c := config(s.Addr, kettle(every(period, holding("p7", "uint16", 7))...))
			begin := time.Now()
			p := start(t, c)
			time.Sleep(30 * period)
			p.stop()
			ticks := float64(time.Since(begin) / period)
			all, _, bad := p.sink.on("")
			skipped := p.Status().Counters["skipped_polls_total"]
			if sum := float64(uint64(len(all)) + skipped); sum < ticks-5 || sum > ticks+2 {
				t.Errorf("%d readings and %d skipped in %v ticks, want all ticks accounted for", len(all), skipped, ticks)
			}
			if len(bad) > 0 {
				t.Errorf("%d readings are bad (%s), want none", len(bad), bad[0].Reason)
			}
			if tt.skipped && (skipped < uint64(ticks)/3 || len(all) > int(ticks)/2) {
				t.Errorf("%d skipped and %d read of %v ticks, want most of them skipped", skipped, len(all), ticks)
			}
		})
	}
}

func TestServerThatClosesIdleConnectionsLosesNothing(t *testing.T) {
	tests := []struct {
		name  string
		serve func(t *testing.T) *slave
	}{
		{"it closes after 20 ms without a request", func(t *testing.T) *slave {
			return serve(t, func(c net.Conn, r request) bool {
				ok := behave(c, r)
				_ = c.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
				return ok
			})
		}},
		{"it closes the moment that the next request comes", func(t *testing.T) *slave {
			return serve(t, func(c net.Conn, r request) bool { return r.onConn == 1 && behave(c, r) })
		}},
		{"it resets the moment that the next request comes", func(t *testing.T) *slave {
			return serve(t, func(c net.Conn, r request) bool {
				if r.onConn == 1 {
					return behave(c, r)
				}
				_ = c.(*net.TCPConn).SetLinger(0)
				return false
			})
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := tt.serve(t)
			c := config(s.Addr, kettle(every(60*time.Millisecond, holding("p7", "uint16", 7))...))
			p := start(t, c)
			eventually(t, "15 readings", func() bool { all, _, _ := p.sink.on(""); return len(all) >= 15 })
			p.stop()
			checkValues(t, p.sink, addresses(c))
			if _, _, bad := p.sink.on(""); len(bad) > 0 {
				t.Errorf("%d readings are bad (%s), want none", len(bad), bad[0].Reason)
			}
			if n := p.Status().Counters["reconnects_total"]; n < 10 {
				t.Errorf("%d reconnects, want one for nearly each reading", n)
			}
		})
	}
}

func TestConnectDelayLetsADeafServerWakeUp(t *testing.T) {
	s := serve(t, behave, func(c net.Conn) { // what comes in the first 100 ms is lost
		_ = c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		for buf := make([]byte, 100); ; {
			if _, err := c.Read(buf); err != nil {
				break
			}
		}
		_ = c.SetReadDeadline(time.Time{})
	})
	c := config(s.Addr, kettle(holding("p7", "uint16", 7)))
	c.ConnectDelay = 200 * time.Millisecond
	p := start(t, c)
	eventually(t, "10 readings", func() bool { all, _, _ := p.sink.on(""); return len(all) >= 10 })
	p.stop()
	if _, _, bad := p.sink.on(""); len(bad) > 0 {
		t.Errorf("%d readings are bad (%s), want none", len(bad), bad[0].Reason)
	}
}

func TestRequestGapIsKept(t *testing.T) {
	const gap = 30 * time.Millisecond
	var mu sync.Mutex
	var last time.Time
	shortest := time.Hour
	s := serve(t, func(c net.Conn, r request) bool {
		mu.Lock()
		defer mu.Unlock()
		if !last.IsZero() {
			shortest = min(shortest, time.Since(last))
		}
		ok := behave(c, r)
		last = time.Now()
		return ok
	})
	c := config(s.Addr, kettle(holding("p7", "uint16", 7), holding("p9", "uint16", 9), holding("p11", "uint16", 11)))
	c.RequestGap = gap
	p := start(t, c)
	eventually(t, "15 readings", func() bool { all, _, _ := p.sink.on(""); return len(all) >= 15 })
	p.stop()
	mu.Lock()
	defer mu.Unlock()
	if shortest < gap-5*time.Millisecond { // the slave's clock is read a little after the answer has left
		t.Errorf("shortest gap between answer and request is %v, want %v", shortest, gap)
	}
}

func TestUnitThatNeverAnswersDoesNotHoldUpTheOthers(t *testing.T) {
	tests := []struct {
		name string
		dead func(c net.Conn, r request) bool
	}{
		{"silence", func(net.Conn, request) bool { return true }},
		{"the server says that it does not answer", func(c net.Conn, r request) bool {
			time.Sleep(80 * time.Millisecond)
			return say(c, r.exception(11))
		}},
		{"garbage", func(c net.Conn, _ request) bool { return say(c, []byte("garbage")) }},
		{"the server hangs up", func(net.Conn, request) bool { return false }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			const period = 50 * time.Millisecond
			var asked sync.Map
			s := serve(t, func(c net.Conn, r request) bool {
				if r.unit == 2 {
					asked.Store(r.n, true)
					return tt.dead(c, r)
				}
				return behave(c, r)
			})
			healthy, dead := kettle(every(period, row("holding", "uint16", 7, 1, 2)...)...), kettle(every(period, holding("p7", "uint16", 7), holding("p9", "uint16", 9))...)
			dead.Name, dead.Unit = "pump", 2
			c := config(s.Addr, healthy, dead)
			c.Timeout = 200 * time.Millisecond
			begin := time.Now()
			p := start(t, c)
			time.Sleep(3 * time.Second)
			status := p.Status()
			p.stop()
			ticks := int(time.Since(begin) / period)
			checkValues(t, p.sink, addresses(c))
			if _, good, _ := p.sink.on("boiler/kettle/p7"); len(good) < ticks/2 {
				t.Errorf("%d good readings of the healthy unit in %d ticks, want half at least", len(good), ticks)
			}
			_, good, bad := p.sink.on("boiler/pump/p7")
			if len(good) > 0 || len(bad) < ticks/2 {
				t.Errorf("dead unit has %d good and %d bad readings in %d ticks, want none and half at least", len(good), len(bad), ticks)
			}
			n := 0
			asked.Range(func(any, any) bool { n++; return true })
			if n < 3 || n > 10 {
				t.Errorf("dead unit was asked %d times in 3 s, want 3 to 10", n)
			}
			if status.State != device.Degraded || status.Parts[0].State != device.Up || status.Parts[1].State != device.Down {
				t.Errorf("status = %+v, want degraded with kettle up and pump down", status)
			}
			if !strings.HasPrefix(status.Error, "unit pump: ") {
				t.Errorf("error is %q, want it to name unit pump", status.Error)
			}
		})
	}
}

func TestDeadLinkDoesNotHoldUpAnother(t *testing.T) {
	const period = 50 * time.Millisecond
	c := config(serve(t, behave).Addr, kettle(every(period, holding("p7", "uint16", 7))...))
	dead := config(blackHole(t), kettle(every(period, holding("p7", "uint16", 7))...))
	dead.Timeout = 100 * time.Millisecond
	begin := time.Now()
	other, p := start(t, dead), start(t, c)
	time.Sleep(40 * period)
	p.stop()
	other.stop()
	ticks := int(time.Since(begin) / period)
	if _, good, bad := p.sink.on(""); len(good) < ticks*8/10 || len(bad) > 0 {
		t.Errorf("%d good and %d bad readings in %d ticks, want nearly all of them good", len(good), len(bad), ticks)
	}
	if _, good, bad := other.sink.on(""); len(good) > 0 || len(bad) < ticks/2 {
		t.Errorf("dead link has %d good and %d bad readings in %d ticks, want bad ones at their period", len(good), len(bad), ticks)
	}
}

func TestReadingsThatAreNotTakenAreCounted(t *testing.T) {
	refusal := errors.New("lane default has stopped: input/output error")
	tests := []struct {
		name   string
		refuse func(s *sink)
	}{
		{"Put refuses", func(s *sink) { s.put = func(context.Context) error { return refusal } }},
		{"the callback reports that they are not stored", func(s *sink) { s.done = refusal }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := &sink{}
			tt.refuse(s)
			c := config(serve(t, behave).Addr, kettle(row("holding", "uint16", 7, 1, 2)...))
			p := startInto(t, c, s, nil)
			eventually(t, "10 refused readings", func() bool { return p.Status().Counters["readings_refused_total"] >= 10 })
			if st := p.Status(); st.State != device.Degraded || !strings.Contains(st.Error, "readings are not stored: lane default has stopped") {
				t.Errorf("status is %s %q, want degraded because readings are not stored", st.State, st.Error)
			}
			s.mu.Lock()
			s.put, s.done = nil, nil
			s.mu.Unlock()
			eventually(t, "up again", func() bool { st := p.Status(); return st.State == device.Up && st.Error == "" })
		})
	}
}

func TestFullLaneSlowsPollingDownWithoutABurst(t *testing.T) {
	const period = 20 * time.Millisecond
	released := make(chan struct{})
	s := &sink{put: func(ctx context.Context) error {
		select {
		case <-released:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}}
	sl := serve(t, behave)
	c := config(sl.Addr, kettle(every(period, holding("p7", "uint16", 7))...))
	p := startInto(t, c, s, nil)
	time.Sleep(500 * time.Millisecond)
	if n := sl.requests.Load(); n != 1 {
		t.Errorf("%d requests while the lane is full, want 1", n)
	}
	close(released)
	eventually(t, "10 readings", func() bool { all, _, _ := s.on(""); return len(all) >= 10 })
	p.stop()
	if n := p.Status().Counters["skipped_polls_total"]; n < 20 {
		t.Errorf("%d ticks skipped, want those of 500 ms (25, less 2 at most)", n)
	}
	all, _, _ := s.on("")
	if d := all[9].Time.Sub(all[1].Time); d < 6*period {
		t.Errorf("readings 2 to 10 took %v, want about %v: skipped ticks are not made up for", d, 8*period)
	}
}

func TestStopWhileTheLaneIsFull(t *testing.T) {
	s := &sink{put: func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	}}
	p := startInto(t, config(serve(t, behave).Addr, kettle(holding("p7", "uint16", 7))), s, nil)
	time.Sleep(50 * time.Millisecond)
	p.stop()
	if n := p.Status().Counters["readings_refused_total"]; n != 0 {
		t.Errorf("%d readings counted as refused at the stop, want 0", n)
	}
}

func TestStatusFollowsTheServer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	c := config(addr, kettle(holding("p7", "uint16", 7)))
	d, err := c.Open(device.Env{Name: "boiler", Sink: &sink{}})
	if err != nil {
		t.Fatal(err)
	}
	if st := d.Status(); st.State != device.Starting || st.Parts[0].Name != "kettle" || st.Parts[0].State != device.Starting {
		t.Errorf("status before the start = %+v, want starting", st)
	}
	p := start(t, c)
	eventually(t, "down", func() bool {
		st := p.Status()
		return st.State == device.Down && strings.Contains(st.Error, "cannot connect to "+addr+": connection refused")
	})
	if l, err = net.Listen("tcp", addr); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	served := make(chan struct{})
	go func() {
		defer close(served)
		if conn, err := l.Accept(); err == nil {
			(&slave{}).talk(conn, behave)
			conn.Close()
		}
	}()
	eventually(t, "up", func() bool { st := p.Status(); return st.State == device.Up && st.Error == "" })
	p.stop()
	<-served
	checkValues(t, p.sink, addresses(c))
}
