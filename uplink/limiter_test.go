package uplink_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"edgegateway/pipeline"
	"edgegateway/uplink"
	"edgegateway/uplink/uplinktest"
)

// taken are the bytes and records that a stream has sent by a Limiter.
type taken struct {
	mu             sync.Mutex // guards the fields below
	records, bytes int
	largest        int
}

// takes has a stream send records of a size as fast as it may, in batches of ten, until ctx ends.
func (k *taken) takes(ctx context.Context, l *uplink.Limiter, backlog bool, size int) {
	sizes := []int{size, size, size, size, size, size, size, size, size, size}
	for ctx.Err() == nil {
		n := l.Wait(ctx, backlog, sizes...)
		k.mu.Lock()
		k.records, k.bytes, k.largest = k.records+n, k.bytes+n*size, max(k.largest, n)
		k.mu.Unlock()
	}
}

func (k *taken) now() (records, bytes int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.records, k.bytes
}

func near(got, want, percent int) bool { return 100*max(got-want, want-got) <= percent*want }

func TestStreamsShareTheRatesOfTheirUplink(t *testing.T) {
	for _, row := range []struct {
		name   string
		policy uplink.Policy
		size   int
		want   int // records in 100 s, of all streams
	}{
		{"records", uplink.Policy{RecordsPerSecond: 100}, 500, 100 * 100},
		{"less than a batch", uplink.Policy{RecordsPerSecond: 3}, 500, 3 * 100},
		{"bytes", uplink.Policy{BytesPerSecond: 10_000}, 500, 20 * 100},
		{"the narrower of both", uplink.Policy{RecordsPerSecond: 100, BytesPerSecond: 10_000}, 500, 20 * 100},
		{"records larger than a second's worth", uplink.Policy{BytesPerSecond: 10_000}, 25_000, 40},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := uplink.NewLimiter(uplink.LimiterConfig{Policy: row.policy})
				ctx, cancel := context.WithCancel(t.Context())
				var streams [3]taken
				var all sync.WaitGroup
				for i := range streams {
					all.Go(func() { streams[i].takes(ctx, l, false, row.size) })
				}
				time.Sleep(100 * time.Second)
				cancel()
				all.Wait()
				sum := 0
				for i := range streams {
					n, _ := streams[i].now()
					sum += n
				}
				if !near(sum, row.want, 6) {
					t.Errorf("%d records in 100 s, want about %d", sum, row.want)
				}
			})
		})
	}
}

func TestABacklogGetsWhatNewRecordsLeaveAndAtLeastATenth(t *testing.T) {
	for _, row := range []struct {
		name      string
		live      int // records a second that come in
		wantLive  int // in 100 s
		wantOlder int
	}{
		{"new records leave most", 100, 100 * 100, 900 * 100},
		{"new records want more than there is", 5000, 900 * 100, 100 * 100},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := uplink.NewLimiter(uplink.LimiterConfig{Policy: uplink.Policy{RecordsPerSecond: 1000}})
				ctx, cancel := context.WithCancel(t.Context())
				var live, older taken
				var all sync.WaitGroup
				all.Go(func() { older.takes(ctx, l, true, 100) })
				all.Go(func() {
					for begin, sent := time.Now(), 0; ctx.Err() == nil; {
						due := min(100, int(time.Since(begin).Seconds()*float64(row.live))-sent)
						if due <= 0 {
							time.Sleep(5 * time.Millisecond)
							continue
						}
						n := l.Wait(ctx, false, make([]int, due)...)
						sent += n
						live.mu.Lock()
						live.records += n
						live.mu.Unlock()
					}
				})
				time.Sleep(100 * time.Second)
				cancel()
				all.Wait()
				if n, _ := live.now(); !near(n, row.wantLive, 12) {
					t.Errorf("%d new records in 100 s, want about %d", n, row.wantLive)
				}
				if n, _ := older.now(); !near(n, row.wantOlder, 12) {
					t.Errorf("%d older records in 100 s, want about %d", n, row.wantOlder)
				}
			})
		})
	}
}

// clock is one that tests set.
type clock struct {
	wall time.Time
	mono time.Duration
}

func (c *clock) now() (time.Time, time.Duration) { return c.wall, c.mono }

func (c *clock) pass(d time.Duration) { c.wall, c.mono = c.wall.Add(d), c.mono+d }

const (
	perDay   = 64 << 20
	aStep    = perDay / 64
	sizeOf   = 100 << 10
	fitInDay = perDay / sizeOf
)

var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// metered is a Limiter with a daily quota whose count is kept in saved.
func metered(c *clock, saved *[]byte) *uplink.Limiter {
	l := uplink.NewLimiter(uplink.LimiterConfig{
		Policy: uplink.Policy{BytesPerDay: perDay}, Saved: *saved,
		Save: func(b []byte) error { *saved = b; return nil },
	})
	l.SetClock(c.now)
	return l
}

// spend sends as many records as go, at most n.
func spend(l *uplink.Limiter, backlog bool, n int) (sent int, reason string) {
	for sent < n {
		var k int
		if k, reason = l.Try(backlog, sizeOf); k == 0 {
			break
		}
		sent += k
	}
	return sent, reason
}

func TestDailyQuotaOutlivesStopsAndCrashes(t *testing.T) {
	var saved []byte
	c := &clock{wall: noon}
	l := metered(c, &saved)
	sent, _ := spend(l, false, 100)
	l.Close()
	l = metered(c, &saved) // a clean stop costs nothing
	if used, limit := l.Quota(); used != 100*sizeOf || limit != perDay {
		t.Errorf("Quota = %d of %d after a stop, want %d of %d", used, limit, 100*sizeOf, perDay)
	}
	crashes := 0
	for range 20 {
		n, _ := spend(l, false, 17)
		sent += n
		l = metered(c, &saved) // a crash: what is not in the file is forgotten
		crashes++
	}
	n, reason := spend(l, false, 10_000)
	sent += n
	if sent > fitInDay || sent < fitInDay-crashes*(aStep/sizeOf+1)-1 {
		t.Errorf("%d records sent with %d crashes, want at most %d, and at most a step less for each crash", sent, crashes, fitInDay)
	}
	if want := "waits for tomorrow (0:00 UTC): daily quota of 64MiB is used up"; reason != want {
		t.Errorf("it says %q, want %q", reason, want)
	}
	t.Logf("%d of %d records sent with %d crashes", sent, fitInDay, crashes)

	c.pass(12 * time.Hour) // tomorrow
	if n, _ := spend(l, false, 10_000); n != fitInDay {
		t.Errorf("%d records on the next day, want %d", n, fitInDay)
	}
}

func TestClockThatJumpsGivesNoDayTwice(t *testing.T) {
	var saved []byte
	c := &clock{wall: noon}
	l := metered(c, &saved)
	all := func(want int, when string) {
		t.Helper()
		if n, _ := spend(l, false, 10_000); n != want {
			t.Errorf("%d records %s, want %d", n, when, want)
		}
	}
	all(fitInDay, "on the first day")
	c.wall = noon.Add(-72 * time.Hour)
	all(0, "after the clock went back three days")
	c.wall = noon.Add(-24*time.Hour + 13*time.Hour)
	all(0, "at midnight of a day that was before")
	c.wall = noon.AddDate(3, 0, 0)
	all(fitInDay, "after it went forward three years")
	c.wall = noon.Add(24 * time.Hour)
	all(0, "back on the day after the first one")
	l.Close()
	l = metered(c, &saved)
	all(0, "after a restart")
	c.pass(23 * time.Hour)
	all(0, "after 23 hours")
	l.Close()
	l = metered(c, &saved)
	c.pass(time.Hour + time.Second)
	all(fitInDay, "after 24 hours of work")
	c.pass(24 * time.Hour)
	all(fitInDay, "on the next day, by the clock")
}

func TestQuotaThatCannotBeReadOrStored(t *testing.T) {
	saved := []byte("2026-11-")
	c := &clock{wall: time.Now()}
	l := metered(c, &saved)
	if n, _ := spend(l, false, 5); n != 0 {
		t.Errorf("%d records although nobody knows what was used, want 0", n)
	}
	c.pass(24 * time.Hour)
	if n, _ := spend(l, false, 5); n != 5 {
		t.Errorf("%d records on the next day, want 5", n)
	}
	var lines lockedBuffer
	full := uplink.NewLimiter(uplink.LimiterConfig{
		Policy: uplink.Policy{BytesPerDay: perDay}, Log: textLog(&lines),
		Save: func([]byte) error { return errors.New("no space left on device") },
	})
	if n, _ := spend(full, false, 10_000); n != fitInDay {
		t.Errorf("%d records while the count cannot be stored, want %d", n, fitInDay)
	}
	if n := strings.Count(lines.buf.String(), "no space left"); n != 1 {
		t.Errorf("it is said %d times, want once", n)
	}
}

func TestRecordLargerThanTheQuotaGoesAsTheFirstOfADay(t *testing.T) {
	var saved []byte
	c := &clock{wall: noon}
	l := metered(c, &saved)
	if n, _ := l.Try(false, 2*perDay, 10); n != 1 {
		t.Fatalf("%d went, want the large one", n)
	}
	if n, _ := l.Try(false, 10); n != 0 {
		t.Error("another one went on the same day")
	}
	c.pass(24 * time.Hour)
	if n, _ := l.Try(false, 10, perDay); n != 1 {
		t.Errorf("%d went on the next day, want the first one only", n)
	}
}

func TestBacklogLeavesTheDaysQuotaToNewRecords(t *testing.T) {
	var saved []byte
	c := &clock{wall: noon.Add(-12 * time.Hour)}
	l := metered(c, &saved)
	n, reason := spend(l, true, 10_000)
	if !near(n, fitInDay/10, 2) || !strings.Contains(reason, "kept for new records") {
		t.Errorf("%d records of the backlog at midnight (%s), want a tenth of %d", n, reason, fitInDay)
	}
	c.pass(12 * time.Hour)
	more, _ := spend(l, true, 10_000)
	if !near(n+more, fitInDay/2, 2) {
		t.Errorf("%d records of the backlog until noon, want half of %d", n+more, fitInDay)
	}
	if live, _ := spend(l, false, 10_000); !near(live, fitInDay/2, 2) {
		t.Errorf("%d new records, want the other half of %d", live, fitInDay)
	}
}

// TestRunnersAreHeldToTheRate: what is sent again counts again, and a pause for the quota is no stall.
func TestRunnersAreHeldToTheRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, err := pipeline.Decode(pipeline.Encode(nil, &sample))
		if err != nil {
			t.Fatal(err)
		}
		size := len(pipeline.AppendJSON(nil, pipeline.RecordID{Gateway: "gw1", Stream: "line", Epoch: 3, Seq: 100}, &m))
		f := &far{send: ackAll}
		log := uplinktest.NewLog()
		for range 1000 {
			log.Append(sample)
		}
		l := uplink.NewLimiter(uplink.LimiterConfig{Policy: uplink.Policy{BytesPerSecond: pipeline.Size(10 * size), BytesPerDay: pipeline.Size(500 * size)}})
		r := uplink.New(uplink.RunnerConfig{Driver: f, Cursor: log, Limiter: l, Env: uplink.Env{Gateway: "gw1", Stream: "line", Epoch: 3, Uplink: "far"}})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		sleep(30 * time.Second)
		if n := log.Settled(); !near(n, 310, 5) {
			t.Errorf("%d records after 30 s, want about 310", n)
		}
		sleep(5 * time.Minute)
		if n, s := log.Settled(), r.Status(); !near(n, 500, 2) || !strings.HasPrefix(s.Limit, "waits for tomorrow") || s.State != uplink.Sending || f.count() != 1 {
			t.Errorf("%d records with a quota for 500, status %+v, %d sessions", n, s, f.count())
		}
		sleep(24 * time.Hour)
		if n, s := log.Settled(), r.Status(); !near(n, 1000, 2) || f.count() != 1 {
			t.Errorf("%d records on the next day, status %+v, %d sessions", n, s, f.count())
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		for _, m := range log.Mistakes() {
			t.Error(m)
		}
	})
}
