package control_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"edgegateway/control"
	"edgegateway/device"
)

// watch runs a Monitor in a bubble over figures that gather makes from the seconds gone by, for that many seconds, and
// returns its last picture.
func watch(t *testing.T, seconds int, gather func(second int) control.Status) control.Status {
	t.Helper()
	var last control.Status
	synctest.Test(t, func(t *testing.T) {
		start := time.Now().Add(30 * 365 * 24 * time.Hour) // the bubble begins in 2000, before any gateway
		second := 0
		m := control.NewMonitor(func() control.Status {
			s := gather(second)
			s.Time = start.Add(time.Duration(second) * time.Second)
			second++
			return s
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- m.Run(ctx) }()
		time.Sleep(time.Duration(seconds)*time.Second + time.Millisecond)
		synctest.Wait()
		last = m.Status()
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run = %v, want nil", err)
		}
	})
	return last
}

func healthy(second int) control.Status {
	n := uint64(1000 + 50*second)
	return control.Status{
		Devices: []control.Device{{Name: "boiler", Status: device.Status{State: device.Up}}},
		Streams: []control.Stream{{Name: "plant", Lane: "default", Records: n}},
		Uplinks: []control.Uplink{{Name: "cloud", Stream: "plant", State: control.Sending, Acked: n - 1000}},
		Lanes:   []control.Lane{{Name: "default", State: control.LaneOK, Bytes: 16 << 20, MaxBytes: 1 << 30, Room: -1}},
	}
}

func TestRatesAreThoseOfTheLastTenSeconds(t *testing.T) {
	s := watch(t, 30, func(second int) control.Status {
		s := healthy(second)
		if second < 15 { // a burst that has passed
			s.Streams[0].Records = uint64(1000 * second)
		} else {
			s.Streams[0].Records = uint64(15000 + 20*second)
		}
		return s
	})
	if got := s.Streams[0].Rate; got != 20 {
		t.Errorf("rate of the stream = %v, want 20", got)
	}
	if got := s.Uplinks[0].Rate; got != 50 {
		t.Errorf("rate of the uplink = %v, want 50", got)
	}
	if len(s.Problems) != 0 {
		t.Errorf("problems of a healthy gateway: %+v", s.Problems)
	}
}

func TestCounterThatBeginsAnewHasNoRate(t *testing.T) {
	s := watch(t, 5, func(second int) control.Status {
		s := healthy(second)
		s.Uplinks[0].Acked = uint64(100 - second)
		return s
	})
	if got := s.Uplinks[0].Rate; got != 0 {
		t.Errorf("rate = %v, want 0", got)
	}
}

func TestLaneIsForecastFromTheGrowthOfWhatItHolds(t *testing.T) {
	s := watch(t, 90, func(second int) control.Status {
		s := healthy(second)
		s.Streams[0].Backlog = control.Backlog{Records: uint64(10 * second), Bytes: uint64(1000 * second), Age: time.Duration(second) * time.Second}
		s.Lanes[0].Bytes, s.Lanes[0].MaxBytes, s.Lanes[0].Room = 6_400_000, 10_000_000, -1
		s.Lanes[0].Held = int64(1000 * second)
		return s
	})
	if got := s.Lanes[0].FullIn; got != time.Hour {
		t.Errorf("FullIn = %v, want 1h: 3.6 MB of room at 1 kB/s", got)
	}
	wantProblems(t, s.Problems,
		"warning lane default: The log will be full in about 1 h",
		"warning stream plant: More is stored than delivered: 900 records wait, 10.0 more a second.")
}

func TestProblemsAreSaidInPlainWordsWorstFirst(t *testing.T) {
	s := watch(t, 40, func(second int) control.Status {
		s := healthy(second)
		since := time.Now().Add(-5 * time.Minute)
		s.Devices = []control.Device{
			{Name: "boiler", Status: device.Status{State: device.Down, Since: since, Error: "connection refused"}},
			{Name: "pumps", Status: device.Status{State: device.Degraded, Parts: []device.Part{{Name: "unit 2", State: device.Up}, {Name: "unit 3", State: device.Down}}}},
		}
		// Between two tries the uplink is connecting; that does not hide the problem and does not begin it anew.
		u := &s.Uplinks[0]
		u.State, u.Since, u.Error = control.Waiting, time.Now(), "no route to broker.example:9092."
		if second%2 == 1 {
			u.State = control.Connecting
		}
		u.Backlog = control.Backlog{Records: 1204, Bytes: 310_000}
		u.DeadLetters = 3
		s.Streams[0].Refused = 7
		s.Lanes[0].State, s.Lanes[0].Bytes = control.LaneFull, 1<<30
		s.Lanes = append(s.Lanes, control.Lane{Name: "alarms", State: control.LaneStopped, Error: "write 0001.db: input/output error"})
		return s
	})
	wantProblems(t, s.Problems,
		"error lane default: The log is full: 1.07 GB of 1.07 GB",
		"error lane alarms: The log has stopped, and nothing is stored or acknowledged in this lane: write 0001.db: input/output error.",
		"error stream plant: 7 messages not taken",
		"error uplink cloud: Stream plant has not been delivered for 40 s: no route to broker.example:9092.",
		"error device boiler: Down for 5 min: connection refused.",
		"warning uplink cloud: 3 records of stream plant refused for good",
		"warning device pumps: Part unit 3 has not answered.")
	if got, want := s.Problems[3].Hint, "Nothing is lost: 1,204 records (310 kB) wait"; !strings.HasPrefix(got, want) {
		t.Errorf("hint = %q, want it to begin with %q", got, want)
	}
}

func TestAChoiceAndAFullDiskAreSaidWithWhatToDo(t *testing.T) {
	s := watch(t, 40, func(second int) control.Status {
		s := healthy(second)
		u := &s.Uplinks[0]
		u.State, u.Error, u.Choices = control.Waiting, "an old copy of the disk was put back", []string{"restart", "resume"}
		u.Backlog = control.Backlog{Records: 12, Bytes: 3000}
		s.Lanes[0].State, s.Lanes[0].Error, s.Lanes[0].LettersWaiting = control.LaneFull, "write 1.seg: no space left on device", 2
		return s
	})
	wantProblems(t, s.Problems,
		"error lane default: The disk is full: write 1.seg: no space left on device.",
		"error lane default: 2 dead letters cannot be kept: the disk has no room for them.",
		"error uplink cloud: Stream plant has not been delivered for 40 s: an old copy of the disk was put back.")
	const want = "Nothing is sent until somebody chooses: edge-gateway choose cloud plant restart, or edge-gateway choose cloud plant resume. 12 records (3.00 kB) wait in the log."
	if got := s.Problems[len(s.Problems)-1].Hint; got != want {
		t.Errorf("hint = %q, want %q", got, want)
	}
}

func TestProblemsPass(t *testing.T) {
	tests := map[string]struct {
		seconds int
		gather  func(int) control.Status
		want    []string
	}{
		"drops of an earlier life of the gateway are no news": {10, func(second int) control.Status {
			s := healthy(second)
			s.Started = time.Now()
			s.Lanes[0].Dropped = 500
			return s
		}, nil},
		"drops are told while they are fresh": {60, func(second int) control.Status {
			s := healthy(second)
			s.Started = time.Now()
			s.Lanes[0].Dropped = 500 + uint64(min(second, 5))
			return s
		}, []string{"error lane default: 505 records dropped"}},
		"drops are forgotten after ten minutes": {700, func(second int) control.Status {
			s := healthy(second)
			s.Started = time.Now()
			s.Lanes[0].Dropped = 500 + uint64(min(second, 5))
			return s
		}, nil},
		"an uplink that came back is no problem": {20, func(second int) control.Status {
			s := healthy(second)
			if second < 10 {
				s.Uplinks[0].State = control.Waiting
			}
			return s
		}, nil},
		"a short start is no problem": {20, func(second int) control.Status {
			s := healthy(second)
			s.Uplinks[0].State, s.Uplinks[0].Since = control.Connecting, time.Now().Add(-time.Duration(second)*time.Second)
			return s
		}, nil},
		"a long start is": {45, func(second int) control.Status {
			s := healthy(second)
			s.Uplinks[0].State, s.Uplinks[0].Since = control.Connecting, time.Now().Add(-time.Duration(second)*time.Second)
			return s
		}, []string{"warning uplink cloud: Still connecting after 45 s."}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			wantProblems(t, watch(t, tt.seconds, tt.gather).Problems, tt.want...)
		})
	}
}

func TestClockThatWasNeverSetIsAProblem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // the bubble's clock begins in the year 2000
		m := control.NewMonitor(func() control.Status { return healthy(0) })
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		changed := m.Changed()
		go func() { ended <- m.Run(ctx) }()
		<-changed
		wantProblems(t, m.Status().Problems, "warning gateway: The clock has not been set")
		cancel()
		<-ended
	})
}

func TestChangedIsClosedWithEachPicture(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := control.NewMonitor(func() control.Status { return healthy(0) })
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- m.Run(ctx) }()
		start := time.Now()
		for range 5 {
			changed := m.Changed()
			<-changed
			if m.Status().Time.IsZero() {
				t.Error("woken without a picture")
			}
		}
		if got := time.Since(start); got > 5*time.Second {
			t.Errorf("five pictures took %v, want one a second", got)
		}
		cancel()
		<-ended
	})
}

func wantProblems(t *testing.T, got []control.Problem, want ...string) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%d problems, want %d: %+v", len(got), len(want), got)
		return
	}
	for i, p := range got {
		if line := string(p.Severity) + " " + p.Where + ": " + p.Text; !strings.HasPrefix(line, want[i]) {
			t.Errorf("problem %d = %q, want it to begin with %q", i, line, want[i])
		}
	}
}

func TestTextsForPeople(t *testing.T) {
	for got, want := range map[string]string{
		control.DurationText(-time.Second):      "0 s",
		control.DurationText(59 * time.Second):  "59 s",
		control.DurationText(61 * time.Second):  "1 min",
		control.DurationText(200 * time.Minute): "3 h 20 min",
		control.DurationText(3 * time.Hour):     "3 h",
		control.DurationText(30 * time.Hour):    "30 h",
		control.DurationText(80 * time.Hour):    "3 d",
		control.BytesText(999):                  "999 B",
		control.BytesText(1000):                 "1.00 kB",
		control.BytesText(999_700):              "1.00 MB",
		control.BytesText(310_400):              "310 kB",
		control.BytesText(14_230_000):           "14.2 MB",
		control.BytesText(1 << 63):              "9.22 EB",
		control.CountText(0):                    "0",
		control.CountText(999):                  "999",
		control.CountText(1_204_332):            "1,204,332",
		control.CountOf(1, "record"):            "1 record",
		control.CountOf(0, "record"):            "0 records",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
