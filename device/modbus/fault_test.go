package modbus_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"edgegateway/device"
	"edgegateway/device/modbus"
)

// Each fifth request meets the fault; the rest is answered well.
func TestFaultyAnswers(t *testing.T) {
	const timeout = 100 * time.Millisecond
	reset := func(c net.Conn) bool {
		_ = c.(*net.TCPConn).SetLinger(0)
		return false
	}
	edit := func(change func(r request, f []byte) []byte) answer {
		return func(c net.Conn, r request) bool { return say(c, change(r, r.good())) }
	}
	tests := []struct {
		name     string
		fault    answer
		harmless bool // every reading is good
	}{
		{"late answer, just after the timeout", func(c net.Conn, r request) bool {
			time.Sleep(timeout + 50*time.Millisecond)
			say(c, r.wrong())
			return true
		}, false},
		{"late answer with the next one", func(c net.Conn, r request) bool {
			time.AfterFunc(timeout+20*time.Millisecond, func() { say(c, r.wrong()) })
			return true
		}, false},
		{"wrong transaction number, ahead by one", edit(func(r request, _ []byte) []byte {
			r.txn++
			return r.wrong()
		}), false},
		{"old answers before the right one", func(c net.Conn, r request) bool {
			old := r
			old.txn--
			return say(c, append(bytes.Repeat(old.wrong(), 500), r.good()...))
		}, true},
		{"answer given twice", edit(func(r request, f []byte) []byte { return append(f, r.wrong()...) }), true},
		{"next answer given in advance", edit(func(r request, f []byte) []byte {
			r.txn++
			return append(f, r.wrong()...)
		}), true},
		{"answer given again, later", func(c net.Conn, r request) bool {
			ok := say(c, r.good())
			time.Sleep(2 * time.Millisecond)
			return ok && say(c, r.wrong())
		}, true},
		{"another unit's answer", edit(func(r request, _ []byte) []byte {
			r.unit++
			return r.wrong()
		}), false},
		{"wrong function code", edit(func(r request, _ []byte) []byte {
			f := r.wrong()
			f[7] = 6
			return f
		}), false},
		{"wrong byte count", edit(func(_ request, f []byte) []byte {
			f[8]--
			return f
		}), false},
		{"fewer registers", edit(func(r request, _ []byte) []byte {
			r.count--
			return r.wrong()
		}), false},
		{"more registers", edit(func(r request, _ []byte) []byte {
			r.count++
			return r.wrong()
		}), false},
		{"another protocol", edit(func(_ request, f []byte) []byte {
			f[2] = 1
			return f
		}), false},
		{"length 0", edit(func(_ request, f []byte) []byte {
			f[5] = 0
			return f
		}), false},
		{"length 300", edit(func(_ request, f []byte) []byte {
			binary.BigEndian.PutUint16(f[4:], 300)
			return f
		}), false},
		{"garbage before it", edit(func(_ request, f []byte) []byte { return append([]byte{0xff, 0x00, 0x17}, f...) }), false},
		{"garbage behind it", edit(func(_ request, f []byte) []byte { return append(f, 0xff, 0x00, 0x17) }), true},
		{"3000 bytes of noise", edit(func(_ request, _ []byte) []byte { return bytes.Repeat([]byte{0x55, 0xaa, 0x07}, 1000) }), false},
		{"header cut short, then silence", edit(func(_ request, f []byte) []byte { return f[:5] }), false},
		{"body cut short, then silence", edit(func(_ request, f []byte) []byte { return f[:len(f)-1] }), false},
		{"body cut short, then closed", func(c net.Conn, r request) bool {
			say(c, r.wrong()[:11])
			return false
		}, true},
		{"reset", func(c net.Conn, _ request) bool { return reset(c) }, true},
		{"closed", func(net.Conn, request) bool { return false }, true},
		{"closed after the answer", func(c net.Conn, r request) bool {
			say(c, r.good())
			return false
		}, true},
		{"one byte at a time", func(c net.Conn, r request) bool {
			for _, b := range r.good() {
				if !say(c, []byte{b}) {
					return false
				}
				time.Sleep(time.Millisecond)
			}
			return true
		}, true},
		{"silence", func(net.Conn, request) bool { return true }, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, func(c net.Conn, r request) bool {
				if r.n%5 == 0 {
					return tt.fault(c, r)
				}
				return behave(c, r)
			})
			c := config(s.Addr, kettle(row("holding", "uint16", 100, 1, 4)...))
			if !tt.harmless { // where every reading must be good, a slow machine gets more time
				c.Timeout = timeout
			}
			p := start(t, c)
			const topic = "boiler/kettle/p100"
			eventually(t, "20 good readings and the fault three times", func() bool {
				_, good, bad := p.sink.on(topic)
				return len(good) >= 20 && (tt.harmless || len(bad) >= 3) && s.requests.Load() >= 20
			})
			p.stop()
			checkValues(t, p.sink, addresses(c))
			_, _, bad := p.sink.on(topic)
			if tt.harmless && len(bad) > 0 {
				t.Errorf("%d readings are bad (%s), want none", len(bad), bad[0].Reason)
			}
			if n := p.Status().Counters["reconnects_total"]; !tt.harmless && n < 2 {
				t.Errorf("%d reconnects, want one after each fault", n)
			}
		})
	}
}

// The counterpart of the table above, for states that last: never a good value, bad ones at their period with a reason
// that helps, few tries to connect, and an end within 1 s (checked by start).
func TestServerThatNeverAnswersWell(t *testing.T) {
	tests := []struct {
		name   string
		addr   func(t *testing.T) string
		reason string
	}{
		{"nobody listens", refusing, "connection refused"},
		{"backlog is full", blackHole, "no answer within"},
		{"it accepts and says nothing", answering(func(net.Conn, request) bool { return true }), "no answer within 100ms"},
		{"it closes at once", func(t *testing.T) string {
			return serve(t, behave, func(c net.Conn) { c.Close() }).Addr
		}, "server closed the connection"},
		{"it closes on a request", answering(func(net.Conn, request) bool { return false }), "server closed the connection"},
		{"it resets on a request", answering(func(c net.Conn, _ request) bool {
			_ = c.(*net.TCPConn).SetLinger(0)
			return false
		}), "connection reset"},
		{"it is a web server", answering(func(c net.Conn, _ request) bool {
			return say(c, []byte("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"))
		}), "garbled"},
		{"it greets with noise", func(t *testing.T) string {
			return serve(t, behave, func(c net.Conn) {
				for say(c, bytes.Repeat([]byte{0x11}, 1000)) {
					time.Sleep(time.Millisecond)
				}
			}).Addr
		}, ""},
		{"it counts transactions in its own way", answering(func(c net.Conn, r request) bool {
			r.txn++
			return say(c, r.wrong())
		}), "unexpected transaction id"},
		{"it floods", answering(func(c net.Conn, r request) bool {
			r.txn--
			for say(c, bytes.Repeat(r.wrong(), 100)) {
			}
			return false
		}), "unexpected transaction id"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := config(tt.addr(t), kettle(row("holding", "uint16", 100, 1, 2)...))
			c.Timeout = 100 * time.Millisecond
			begin := time.Now()
			p := start(t, c)
			var seen []string
			eventually(t, "30 bad readings, one with the reason", func() bool {
				_, _, bad := p.sink.on("boiler/kettle/p100")
				seen = nil
				for _, m := range bad {
					seen = append(seen, m.Reason)
				}
				return len(bad) >= 30 && strings.Contains(strings.Join(seen, "\n"), tt.reason)
			})
			status := p.Status()
			p.stop()
			checkValues(t, p.sink, addresses(c))
			if _, good, _ := p.sink.on(""); len(good) > 0 {
				t.Errorf("%d readings are good, want none", len(good))
			}
			if status.State != device.Down || status.Error == "" || status.Parts[0].State != device.Down {
				t.Errorf("status is %s %q with unit %v, want down with an error", status.State, status.Error, status.Parts)
			}
			elapsed := time.Since(begin)
			if most := uint64(4 + elapsed/time.Second*2); status.Counters["errors_total"] > most {
				t.Errorf("%d tries failed in %v, want at most %d", status.Counters["errors_total"], elapsed, most)
			}
		})
	}
}

func answering(a answer) func(*testing.T) string {
	return func(t *testing.T) string { return serve(t, a).Addr }
}

func refusing(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// blackHole returns the address of a server whose backlog is full, so that the kernel drops every SYN.
func blackHole(t *testing.T) string {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	addr := fmt.Sprintf("127.0.0.1:%d", name.(*syscall.SockaddrInet4).Port)
	for range 10 {
		c, err := net.DialTimeout("tcp", addr, 200*time.Millisecond)
		if err != nil {
			return addr
		}
		t.Cleanup(func() { c.Close() })
	}
	t.Fatal("the backlog does not fill")
	return ""
}

func TestStopDuringALongRequest(t *testing.T) {
	tests := []struct {
		name string
		addr func(*testing.T) string
	}{
		{"request without an answer", answering(func(net.Conn, request) bool { return true })},
		{"dial into a black hole", blackHole},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := config(tt.addr(t), kettle(holding("p0", "uint16", 0)))
			c.Timeout = time.Minute
			p := start(t, c)
			time.Sleep(100 * time.Millisecond) // let the request or the dial begin
			p.stop()
			stacks := make([]byte, 1<<20)
			stacks = stacks[:runtime.Stack(stacks, true)]
			if bytes.Contains(stacks, []byte("device/modbus.dial")) || bytes.Contains(stacks, []byte("device/modbus.pump")) {
				t.Errorf("goroutines of the device are left behind:\n%s", stacks)
			}
		})
	}
}

func TestExceptionMarksItsBlockAndKeepsTheConnection(t *testing.T) {
	tests := []struct {
		code   byte
		reason string
	}{
		{1, "exception 1"},
		{2, "exception 2"},
		{3, "exception 3"},
		{4, "exception 4"},
		{5, "exception 5"},
		{6, "busy"},
		{7, "exception code (7)"},
		{8, "memory"},
		{12, "exception code (12)"},
		{0x80, "exception code (128)"},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("exception %d", tt.code), func(t *testing.T) {
			t.Parallel()
			s := serve(t, func(c net.Conn, r request) bool {
				if r.addr == 50 {
					return say(c, r.exception(tt.code))
				}
				return behave(c, r)
			})
			c := config(s.Addr, kettle(holding("fine", "uint16", 7), holding("refused", "uint16", 50)))
			p := start(t, c)
			eventually(t, "10 readings of each", func() bool {
				_, good, _ := p.sink.on("boiler/kettle/fine")
				_, _, bad := p.sink.on("boiler/kettle/refused")
				return len(good) >= 10 && len(bad) >= 10
			})
			status := p.Status()
			p.stop()
			checkValues(t, p.sink, addresses(c))
			_, good, bad := p.sink.on("boiler/kettle/refused")
			if len(good) > 0 || !strings.Contains(bad[0].Reason, tt.reason) {
				t.Errorf("%d good, reason %q, want none good and a reason with %q", len(good), bad[0].Reason, tt.reason)
			}
			if _, _, bad := p.sink.on("boiler/kettle/fine"); len(bad) > 0 {
				t.Errorf("%d readings of the other block are bad (%s)", len(bad), bad[0].Reason)
			}
			if n := s.conns.Load(); n != 1 {
				t.Errorf("%d connections, want 1", n)
			}
			if status.State != device.Degraded || status.Counters["exceptions_total"] < 10 {
				t.Errorf("status is %s with %d exceptions, want degraded and 10 or more", status.State, status.Counters["exceptions_total"])
			}
		})
	}
}

func TestRefusedBlockFallsApart(t *testing.T) {
	hole := func(r request, addr int) bool { return r.addr <= addr && addr < r.addr+r.count }
	tests := []struct {
		name    string
		refuse  func(r request) bool
		bad     []string // points that are bad, always
		settled int      // requests a cycle in the end
	}{
		{"one point does not exist", func(r request) bool { return hole(r, 105) }, []string{"p105"}, 3},
		{"the first and the last do not exist", func(r request) bool { return hole(r, 100) || hole(r, 109) }, []string{"p100", "p109"}, 3},
		{"two neighbours do not exist", func(r request) bool { return hole(r, 104) || hole(r, 105) }, []string{"p104", "p105"}, 4},
		{"at most 3 registers at once", func(r request) bool { return r.count > 3 }, nil, 4},
		{"nothing exists", func(request) bool { return true }, []string{"p100", "p105", "p109"}, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var code byte = 2
			if tt.bad == nil {
				code = 3
			}
			s := serve(t, func(c net.Conn, r request) bool {
				if tt.refuse(r) {
					return say(c, r.exception(code))
				}
				return behave(c, r)
			})
			c := config(s.Addr, kettle(row("holding", "uint16", 100, 1, 10)...))
			p := start(t, c)
			count := func() int { all, _, _ := p.sink.on("boiler/kettle/p107"); return len(all) }
			eventually(t, "plan settles", func() bool { return count() >= 8 })
			before, requests := count(), s.requests.Load()
			eventually(t, "20 more cycles", func() bool { return count() >= before+20 })
			each := float64(s.requests.Load()-requests) / float64(count()-before)
			p.stop()
			checkValues(t, p.sink, addresses(c))
			wantBad := map[string]bool{}
			for _, name := range tt.bad {
				wantBad["boiler/kettle/"+name] = true
			}
			for topic := range addresses(c) {
				_, good, bad := p.sink.on(topic)
				switch {
				case wantBad[topic] && len(good) > 0:
					t.Errorf("%s has %d good readings, want none", topic, len(good))
				case !wantBad[topic] && len(bad) > 0 && len(tt.bad) < 3:
					t.Errorf("%s has %d bad readings (%s), want none", topic, len(bad), bad[0].Reason)
				}
			}
			if low, high := float64(tt.settled)*0.75, float64(tt.settled)*1.25; each < low || each > high {
				t.Errorf("%.2f requests a cycle in the end, want %d", each, tt.settled)
			}
			if n := s.conns.Load(); n != 1 {
				t.Errorf("%d connections, want 1", n)
			}
		})
	}
}

func TestPanicInDecoderIsCountedAndPollingGoesOn(t *testing.T) {
	s := serve(t, behave)
	c := config(s.Addr, kettle(row("holding", "uint16", 100, 1, 2)...))
	p := startInto(t, c, &sink{}, modbus.PanicOnce)
	eventually(t, "10 good readings after the panic", func() bool {
		_, good, bad := p.sink.on("boiler/kettle/p100")
		return len(good) >= 10 && len(bad) == 1
	})
	p.stop()
	checkValues(t, p.sink, addresses(c))
	_, _, bad := p.sink.on("boiler/kettle/p100")
	if n := p.Status().Counters["panics_total"]; n != 1 || !strings.Contains(bad[0].Reason, "decoder fell over") {
		t.Errorf("%d panics counted, reason %q, want 1 and the panic's text", n, bad[0].Reason)
	}
}
