package uplink

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"edgegateway/pipeline"
	"edgegateway/wal"
)

// LimiterConfig is what a Limiter is made of.
type LimiterConfig struct {
	Policy Policy
	// Saved is what Save was given last, in the life of this process or an earlier one; nil where it never was. Save makes
	// it durable. Without Save the daily quota begins anew with each start.
	Saved []byte
	Save  func([]byte) error
	Log   *slog.Logger
}

// Limiter bounds what all streams of one uplink send together: in a second, and in a day. A nil Limiter bounds nothing.
//
// Records are paid for just before they are handed to the session, each time: what is sent again counts again. A record that is
// larger than all that may be sent in a second goes when a second's worth is there, and the following ones wait for longer.
//
// A backlog beside new records (backfill: live_first) gets what those leave, and at least a tenth.
type Limiter struct {
	log   *slog.Logger
	save  func([]byte) error
	clock func() (wall time.Time, mono time.Duration)

	mu      sync.Mutex // guards the fields below
	rates   rates      // for all
	tenth   rates      // for backlogs, whatever the others do
	waiting int        // streams whose new records wait for a rate
	quota   quota

	saving sync.Mutex // one at a time writes the quota
	failed bool       // the last try to write did; guarded by saving
}

// NewLimiter returns the Limiter of an uplink, nil where its policy bounds nothing.
func NewLimiter(cfg LimiterConfig) *Limiter {
	p := cfg.Policy
	if p.RecordsPerSecond == 0 && p.BytesPerSecond == 0 && p.BytesPerDay == 0 {
		return nil
	}
	began := time.Now()
	l := &Limiter{
		log: cfg.Log, save: cfg.Save, quota: quota{limit: int64(p.BytesPerDay)},
		clock: func() (time.Time, time.Duration) { now := time.Now(); return now, now.Sub(began) },
	}
	if l.log == nil {
		l.log = slog.New(slog.DiscardHandler)
	}
	l.rates = newRates(float64(p.RecordsPerSecond), float64(p.BytesPerSecond))
	l.tenth = newRates(float64(p.RecordsPerSecond)/10, float64(p.BytesPerSecond)/10)
	if l.quota.limit > 0 && len(cfg.Saved) > 0 {
		if err := l.quota.load(cfg.Saved); err != nil {
			// What was used today is not known, so none is left: a metered link must not cost more for a bad file.
			l.log.Error("what is used of the daily quota cannot be read, the day counts as used up", "err", err)
			wall, _ := l.clock()
			l.quota.day, l.quota.used = dayOf(wall), l.quota.limit
		}
		l.quota.reserved = l.quota.used
	}
	return l
}

// Quota returns how much payload was sent today, and the bound of it; 0 without one.
func (l *Limiter) Quota() (used, limit uint64) {
	if l == nil || l.quota.limit == 0 {
		return 0, 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.quota.roll(l.clock())
	return uint64(l.quota.used), uint64(l.quota.limit)
}

// Close makes durable what was sent today. Nothing may be sent any more.
func (l *Limiter) Close() {
	if l == nil || l.quota.limit == 0 {
		return
	}
	l.mu.Lock()
	wall, mono := l.clock()
	l.quota.roll(wall, mono)
	l.quota.reserved = 0
	r := reserve{l.quota.day, l.quota.used}
	l.mu.Unlock()
	l.write(r)
}

// load is what wants to go: records with their sizes, the first ones of which may go alone unless it is all or nothing.
type load struct {
	sizes   []int
	whole   bool
	backlog bool
}

// wait waits until some of a load may go, pays for them and returns how many; none where ctx ends. It calls tell with the reason
// why it waits for long, and with none when it does not any more.
func (l *Limiter) wait(ctx context.Context, w load, tell func(string)) int {
	counted := false // among those that wait
	defer func() {
		if counted {
			l.mu.Lock()
			l.waiting--
			l.mu.Unlock()
		}
	}()
	for ctx.Err() == nil {
		l.mu.Lock()
		v := l.decide(w)
		if v.n == 0 && !counted && !w.backlog && v.reason == "" {
			l.waiting++
			counted = true
		}
		l.mu.Unlock()
		tell(v.reason)
		switch {
		case v.reserve != (reserve{}):
			l.write(v.reserve) // and look again
			continue
		case v.n > 0:
			return v.n
		}
		timer := time.NewTimer(v.wait)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
	return 0
}

// verdict is what becomes of a load: n records go, or first something is written, or it waits.
type verdict struct {
	n       int
	reserve reserve
	wait    time.Duration
	reason  string // of a long wait
}

// decide is called with the mutex locked.
func (l *Limiter) decide(w load) verdict {
	wall, mono := l.clock()
	l.rates.fill(mono)
	l.tenth.fill(mono)
	n, v := l.quota.fits(w, wall, mono)
	if n == 0 {
		return v
	}
	if w.whole {
		n = len(w.sizes)
	}
	w.sizes = w.sizes[:n]
	from := &l.rates
	n, wait := l.rates.take(w)
	if w.backlog {
		tenth, sooner := l.tenth.take(w)
		switch {
		case tenth > 0:
			n, from = tenth, &l.tenth
		case l.waiting > 0:
			n, wait = 0, sooner
		default:
			wait = min(wait, sooner)
		}
	}
	if n == 0 {
		return verdict{wait: max(wait, time.Millisecond)}
	}
	sum := total(w.sizes[:n])
	if r := l.quota.lacks(sum); r != (reserve{}) {
		return verdict{reserve: r}
	}
	l.rates.pay(n, sum)
	if from == &l.tenth {
		l.tenth.pay(n, sum)
	}
	l.quota.pay(sum, w.backlog)
	return verdict{n: n}
}

func total(sizes []int) (sum int) {
	for _, s := range sizes {
		sum += s
	}
	return sum
}

// write makes the count of the day durable, and only then lets it be used. Where that fails the count in memory must do: an uplink
// that stopped for it would keep a full disk full.
func (l *Limiter) write(r reserve) {
	l.saving.Lock()
	defer l.saving.Unlock()
	l.mu.Lock()
	_, mono := l.clock()
	text := l.quota.text(r, mono)
	over := l.quota.day != r.day || l.quota.reserved >= r.bytes && r.bytes > 0
	l.mu.Unlock()
	if over {
		return // another stream was first
	}
	if l.save != nil {
		err := l.save(text)
		if err != nil && !l.failed {
			l.log.Error("what is used of the daily quota cannot be stored, a crash would forget it", "err", err)
		}
		l.failed = err != nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.quota.day == r.day {
		l.quota.reserved = max(l.quota.reserved, r.bytes)
	}
}

// rates are the bounds of what goes in a second, each with what may go now.
type rates struct {
	at             time.Duration
	records, bytes bucket
}

// bucket fills at its rate, up to a second's worth; below zero something is owed. A rate of 0 means no bound.
type bucket struct{ rate, most, has float64 }

func newRates(records, bytes float64) rates {
	full := func(rate float64) bucket { return bucket{rate, max(1, rate), max(1, rate)} }
	return rates{records: full(records), bytes: full(bytes)}
}

func (r *rates) fill(now time.Duration) {
	d := (now - r.at).Seconds()
	r.at = now
	for _, b := range []*bucket{&r.records, &r.bytes} {
		b.has = min(b.most, b.has+d*b.rate)
	}
}

// take returns how many of a load may go now, or how long to wait until a good part may: a quarter of a second's worth, so that
// batches stay batches.
func (r *rates) take(w load) (n int, wait time.Duration) {
	first, sum := w.sizes[0], total(w.sizes)
	count := 1
	if w.whole {
		first, count = sum, len(w.sizes)
	}
	wait = max(r.records.until(count, len(w.sizes)), r.bytes.until(first, sum))
	if wait > 0 {
		return 0, wait
	}
	if w.whole {
		return len(w.sizes), 0
	}
	for size := 0; n < len(w.sizes); n++ {
		size += w.sizes[n]
		if n > 0 && (r.records.rate > 0 && float64(n+1) > r.records.has || r.bytes.rate > 0 && float64(size) > r.bytes.has) {
			break
		}
	}
	return n, 0
}

// until returns how long it takes until first may go, and a good part of all.
func (b *bucket) until(first, all int) time.Duration {
	want := min(float64(all), max(b.most/4, float64(first)), b.most)
	if b.rate == 0 || b.has >= want {
		return 0
	}
	return time.Duration((want - b.has) / b.rate * float64(time.Second))
}

func (r *rates) pay(records, bytes int) {
	r.records.has -= float64(records)
	r.bytes.has -= float64(bytes)
}

// limited shows what the sending of a Runner waits for: "" for nothing, or for a moment only.
func (r *Runner) limited(reason string) { r.waits(&r.status.own, reason) }

// slowed notes, for Env.Slowed, what bounds of the far side the sending waits for.
func (r *Runner) slowed(reason string) { r.waits(&r.status.far, reason) }

func (r *Runner) waits(by *string, reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if *by == reason {
		return
	}
	*by = reason
	r.status.Limit = cmp.Or(r.status.own, r.status.far)
	if reason != "" {
		r.log.Info("uplink waits", "for", reason)
	}
}

// handOver is how many records are encoded and handed to the driver at once: it has them on their way while the next are encoded.
const handOver = 2048

// allow waits until some of a batch may be sent and returns how many; none where the session ends or something else is to be done.
func (f *flight) allow(reading context.Context, batch []wal.Record) int {
	l := f.r.cfg.Limiter
	f.mu.Lock()
	whole := f.r.search.until > 0 // what is sent in search of a refused record must not be parted
	f.mu.Unlock()
	switch {
	case l == nil && !whole:
		return min(len(batch), handOver)
	case l == nil || len(batch) == 0:
		return len(batch)
	}
	w := load{sizes: f.payload(batch), whole: whole, backlog: f.r.backlog.Load()}
	for {
		ctx, cancel := context.WithCancel(reading)
		f.mu.Lock()
		leave := f.halted || len(f.letters) > 0
		f.interrupt = cancel
		f.mu.Unlock()
		n := 0
		if !leave {
			n = l.wait(ctx, w, f.r.limited)
		}
		f.mu.Lock()
		f.interrupt = nil
		f.mu.Unlock()
		cancel()
		if leave || n > 0 || reading.Err() != nil {
			f.r.limited("")
			return n
		}
	}
}

// payload returns the bytes that the records of a batch have at the far side. What cannot be decoded has none: it is not sent.
func (f *flight) payload(batch []wal.Record) []int {
	sizes := make([]int, len(batch))
	p := f.r.cfg.Limiter
	if p.rates.bytes.rate == 0 && p.quota.limit == 0 {
		return sizes
	}
	var text []byte
	var m pipeline.Message
	for i := range batch {
		if err := f.texts.Decode(&m, batch[i].Data); err != nil {
			continue
		}
		text = f.json.Append(text[:0], batch[i].Seq, &m)
		sizes[i] = len(text)
	}
	return sizes
}
