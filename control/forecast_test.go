package control_test

import (
	"testing"
	"time"

	"edgegateway/control"
)

func TestLaneThatIsDrainedIsNotForecastWhateverItsFilesDo(t *testing.T) {
	s := watch(t, 1500, func(second int) control.Status {
		s := healthy(second)
		l := &s.Lanes[0]
		l.Bytes = int64(second%400) * 40_000 // a segment fills and goes, again and again
		l.Held = int64(second % 3 * 1000)
		return s
	})
	if got := s.Lanes[0].FullIn; got > 0 && got < 30*24*time.Hour {
		t.Errorf("FullIn = %v for a lane that is drained", got)
	}
	wantProblems(t, s.Problems)
}

func TestForecastFollowsTheLastTenMinutes(t *testing.T) {
	s := watch(t, 3000, func(second int) control.Status {
		s := healthy(second)
		l := &s.Lanes[0]
		l.Held = int64(min(second, 2000)) * 100_000 // it grew fast, and then by a hundredth
		if second > 2000 {
			l.Held += int64(second-2000) * 1000
		}
		l.Bytes, l.MaxBytes = 0, 36_000_000
		return s
	})
	if got := s.Lanes[0].FullIn; got != 10*time.Hour {
		t.Errorf("FullIn = %v, want 10h: 36 MB at 1 kB/s", got)
	}
	wantProblems(t, s.Problems, "warning lane default: The log will be full in about 10 h")
}

func TestDiskWithLessRoomThanTheLaneIsFullFirst(t *testing.T) {
	s := watch(t, 120, func(second int) control.Status {
		s := healthy(second)
		l := &s.Lanes[0]
		l.Held, l.MaxBytes, l.Bytes, l.Room = int64(second*1000), 1<<40, 0, 7_200_000
		return s
	})
	if got := s.Lanes[0].FullIn; got != 2*time.Hour {
		t.Errorf("FullIn = %v, want 2h: 7.2 MB on the disk at 1 kB/s", got)
	}
}

func TestFlashBudgetIsForecastFromAnHourOn(t *testing.T) {
	wear := func(budget uint64) func(int) control.Status {
		return func(second int) control.Status {
			s := healthy(second)
			s.Flash = control.Flash{Budget: budget, Years: 5}
			s.Lanes = append(s.Lanes, s.Lanes[0])
			s.Lanes[1].Name = "alarms"
			s.Lanes[0].Flash = 1_000_000_000 + uint64(second)*30_000
			s.Lanes[1].Flash = 1_000_000_000 + uint64(second)*10_000
			return s
		}
	}
	if f := watch(t, 3500, wear(10e12)).Flash; f.PerDay != 0 || f.Lasts != 0 || f.Written == 0 {
		t.Errorf("before an hour has passed: %+v", f)
	}
	const perDay = 40_000 * 86400.0
	s := watch(t, 3700, wear(10e12))
	if f := s.Flash; f.PerDay != perDay || f.Written != 2_000_000_000+3700*40_000 {
		t.Errorf("after an hour %+v, want %v a day", f, perDay)
	}
	want := time.Duration((10e12 - 2e9 - 3700*40e3) / 40e3 * 1e9)
	if f := s.Flash; f.Lasts < want-time.Second || f.Lasts > want+time.Second {
		t.Errorf("the budget lasts %v, want %v", f.Lasts, want)
	}
	wantProblems(t, s.Problems)
	wantProblems(t, watch(t, 3700, wear(5e12)).Problems,
		"warning gateway: At this rate the flash budget of 5.00 TB lasts 3.96 years: 2.15 GB are used, 3.46 GB a day come to it.")
	wantProblems(t, watch(t, 3700, wear(2e9)).Problems,
		"warning gateway: The flash budget of 2.00 GB is used up: 2.15 GB were written.")
}

func TestNewLogBeginsTheWearAnew(t *testing.T) {
	s := watch(t, 8000, func(second int) control.Status {
		s := healthy(second)
		s.Lanes[0].Flash = 5e12 + uint64(second)*1e6
		if second >= 4000 {
			s.Lanes[0].Flash = uint64(second-4000) * 1000
		}
		return s
	})
	if got := s.Flash.PerDay; got != 86_400_000 {
		t.Errorf("%v a day, want that of the new log alone", got)
	}
}

func TestQuotasAndDoubtsAreProblemsInPlainWords(t *testing.T) {
	s := watch(t, 5, func(second int) control.Status {
		s := healthy(second)
		s.Streams[0].Waiting, s.Streams[0].Quota, s.Streams[0].Full = 63_900_000, 64_000_000, true
		s.Lanes[0].Doubts = []control.Doubt{{Kind: "tmpfs", Text: "The log lies in memory.", Hint: "Move it."}}
		return s
	})
	wantProblems(t, s.Problems,
		"warning lane default: The log lies in memory.",
		"warning stream plant: It is at its quota: 63.9 MB of 64.0 MB wait for its slowest uplink.")
}

func TestYearsText(t *testing.T) {
	const year = 8766 * time.Hour
	for d, want := range map[time.Duration]string{
		200 * year: "more than 100 years", 12*year + year/2: "12.5 years", year: "1.00 years", year / 2: "6 months", 12 * 24 * time.Hour: "12 d",
	} {
		if got := control.YearsText(d); got != want {
			t.Errorf("YearsText(%v) = %q, want %q", d, got, want)
		}
	}
}
