package main

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// subject is one log under measurement. append returns once p is on stable storage; where p has to wait in line until
// the turn is over it may give up with errOver instead.
type subject interface {
	append(p []byte, until time.Time) error
	close() error
}

var errOver = errors.New("the turn is over")

// contender is a kind of log that can be measured.
type contender struct {
	name string
	how  string // in which way it is used, for the table
	open func(dir string) (subject, error)
}

// peers are the other logs, each used in the fastest durable way that it offers.
func peers() []contender {
	return []contender{naiveBolt(), batchBolt(), tidwallWAL(), raftWAL(), sqliteWAL(), jetStream()}
}

// group makes one commit of all that waits, as our log does it by itself: for logs that can take several records at
// once, but leave it to the caller to bring them together.
type group struct {
	commit func(records [][]byte) error
	shut   func() error
	most   int // records in one commit; 0 means no bound

	mu      sync.Mutex // guards the fields below
	records [][]byte
	waiting []chan error

	poke  chan struct{}
	ended chan struct{}
}

func newGroup(most int, commit func([][]byte) error, shut func() error) *group {
	g := &group{commit: commit, shut: shut, most: most, poke: make(chan struct{}, 1), ended: make(chan struct{})}
	go g.run()
	return g
}

func (g *group) append(p []byte, _ time.Time) error {
	done := make(chan error, 1)
	g.mu.Lock()
	g.records = append(g.records, p)
	g.waiting = append(g.waiting, done)
	g.mu.Unlock()
	select {
	case g.poke <- struct{}{}:
	default:
	}
	return <-done
}

func (g *group) run() {
	defer close(g.ended)
	for range g.poke {
		for {
			g.mu.Lock()
			n := len(g.records)
			if g.most > 0 {
				n = min(n, g.most)
			}
			records, waiting := g.records[:n:n], g.waiting[:n:n]
			g.records, g.waiting = g.records[n:], g.waiting[n:]
			g.mu.Unlock()
			if n == 0 {
				break
			}
			err := g.commit(records)
			for _, done := range waiting {
				done <- err
			}
		}
	}
}

func (g *group) close() error {
	close(g.poke)
	<-g.ended
	return g.shut()
}

// gate lets few through at a time, for logs that commit each record by itself: of a thousand that stand in line when a
// turn ends, each would take its flush.
type gate struct {
	places chan struct{}
	one    func(p []byte) error
	shut   func() error
}

func newGate(places int, one func([]byte) error, shut func() error) *gate {
	return &gate{places: make(chan struct{}, places), one: one, shut: shut}
}

func (g *gate) append(p []byte, until time.Time) error {
	g.places <- struct{}{}
	defer func() { <-g.places }()
	if time.Now().After(until) {
		return errOver
	}
	return g.one(p)
}

func (g *gate) close() error { return g.shut() }

// turn is what a subject did in one turn.
type turn struct {
	records int64
	elapsed time.Duration
	counts
}

func (t turn) rate() float64 { return float64(t.records) / t.elapsed.Seconds() }

// takeTurn has producers append to s, each waiting for its record before the next one, for about d.
func takeTurn(disk *disk, s subject, p *payloads, producers int, d time.Duration) (turn, error) {
	disk.settle()
	before := disk.counts()
	start := time.Now()
	until := start.Add(d)
	var n atomic.Int64
	errs := make([]error, producers)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			for time.Now().Before(until) {
				if err := s.append(p.next(), until); errors.Is(err, errOver) {
					return
				} else if err != nil {
					errs[i] = err
					return
				}
				n.Add(1)
			}
		})
	}
	wg.Wait()
	t := turn{records: n.Load(), elapsed: time.Since(start)}
	t.counts = disk.counts().minus(before)
	return t, errors.Join(errs...)
}

// rawLog is the least that a durable queue costs: groups appended to a file that is written already, one flush each.
func rawLog(size int64) contender {
	return contender{name: "raw", how: "preallocated and written file, append and fdatasync for each group", open: func(dir string) (subject, error) {
		path := dir + "/raw"
		if err := writeZeroes(path, size); err != nil {
			return nil, err
		}
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		var off int64
		var buf []byte
		commit := func(records [][]byte) error {
			buf = buf[:0]
			for _, r := range records {
				buf = append(buf, r...)
			}
			if off+int64(len(buf)) > size {
				off = 0
			}
			if _, err := f.WriteAt(buf, off); err != nil {
				return err
			}
			// Each group begins with a page of its own: a shared one would have to be written twice.
			off += (int64(len(buf)) + 4095) &^ 4095
			return fdatasync(f)
		}
		return newGroup(0, commit, f.Close), nil
	}}
}
