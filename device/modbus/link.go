package modbus

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"edgegateway/device"
	"edgegateway/pipeline"
)

// link polls the units behind one connection. Everything but status and counters belongs to its one owner, the goroutine
// that calls Run.
type link struct {
	config Config
	name   string
	log    *slog.Logger
	sink   pipeline.Sink
	units  []*unit
	health *health
	count  counters

	conn    *conn // nil while there is none
	dialing bool
	dialed  chan dialResult
	wg      sync.WaitGroup // of the dial under way
	// failures counts connections in a row that could not be made or broke without an answer. While it is 0 a lost
	// connection is opened again at once, and due blocks wait for it; then they are told why instead.
	failures    int
	nextDial    time.Time
	reason      string // why there is no connection
	connected   bool   // has been connected before
	nextRequest time.Time
}

type dialResult struct {
	conn *conn
	err  error
}

// Waits between tries to connect, each shortened by up to half at random so that gateways do not knock in step.
const (
	redialFirst = time.Second
	redialLast  = 30 * time.Second
)

// newLink makes the link of a config that has passed Check.
func newLink(c Config, env device.Env) *link {
	l := &link{config: c, name: env.Name, log: env.Log, sink: env.Sink, dialed: make(chan dialResult, 1)}
	for i, uc := range c.Units {
		u := &unit{name: uc.Name, number: uint8(uc.Unit), index: i}
		points := make([]*point, 0, len(uc.Points))
		for _, pc := range uc.Points {
			points = append(points, newPoint(env.Name, uc, pc))
		}
		u.blocks = plan(u, points, uc.MaxRegisters, uc.MaxBits)
		l.units = append(l.units, u)
	}
	l.health = newHealth(env.Log, l.units)
	return l
}

func newPoint(device string, u Unit, p Point) *point {
	o := orders[u.WordOrder]
	if p.WordOrder != "" {
		o = orders[p.WordOrder]
	}
	width := typeWidths[p.Type]
	if p.Type == "string" {
		width = p.Length
	}
	return &point{
		topic:   device + "/" + u.Name + "/" + p.Name,
		measure: p.Unit,
		table:   tables[p.Table],
		addr:    p.Address - u.AddressBase,
		width:   width,
		every:   p.Every,
		decode:  newDecoder(p, o),
	}
}

// Status implements device.Device.
func (l *link) Status() device.Status {
	s := l.health.read()
	s.Counters = l.count.read()
	return s
}

// Run implements device.Device.
func (l *link) Run(ctx context.Context) error {
	defer l.shut()
	start := time.Now()
	for _, u := range l.units {
		for _, b := range u.blocks {
			b.due = start
		}
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		l.keepConnected(ctx)
		b, due := l.next(time.Now())
		if due && !l.holding() {
			l.serve(ctx, b)
			continue
		}
		timer.Reset(l.pause(b))
		select {
		case <-ctx.Done():
		case r := <-l.dialed:
			l.settle(r)
		case <-timer.C:
		}
	}
	return nil
}

// shut waits for what Run has started.
func (l *link) shut() {
	l.wg.Wait()
	select {
	case r := <-l.dialed:
		if r.conn != nil {
			r.conn.close()
		}
	default:
	}
	l.drop()
}

// next returns the due block with the earliest deadline, or the one that is due next and false.
func (l *link) next(now time.Time) (first *block, due bool) {
	for _, u := range l.units {
		for _, b := range u.blocks {
			isDue := !b.due.After(now)
			switch {
			case first == nil, isDue && !due:
				first, due = b, isDue
			case isDue && b.deadline().Before(first.deadline()):
				first = b
			case !due && b.due.Before(first.due):
				first = b
			}
		}
	}
	return first, due
}

// holding reports whether due blocks wait for a connection instead of going out without values: for the first one, and
// for the first one after a connection that had worked.
func (l *link) holding() bool { return l.dialing && l.failures == 0 }

// pause is how long the owner may sleep when b is what comes next.
func (l *link) pause(b *block) time.Duration {
	if l.holding() {
		return time.Hour // until the dial ends, which its timeout bounds
	}
	d := time.Until(b.due)
	if l.conn == nil && !l.dialing && l.failures > 0 {
		d = min(d, time.Until(l.nextDial))
	}
	return max(d, 0)
}

// keepConnected notices an ended connection or dial, and dials where there is reason to: at once when a block is due
// after a connection that had worked, else when the time between tries is over.
func (l *link) keepConnected(ctx context.Context) {
	select {
	case r := <-l.dialed:
		l.settle(r)
	default:
	}
	if l.conn != nil && l.conn.over() {
		cause, proven := l.conn.cause, l.conn.proven
		l.drop()
		if !proven {
			l.failed("server closed the connection", "err", cause)
		}
	}
	if l.conn != nil || l.dialing {
		return
	}
	now := time.Now()
	if l.failures > 0 && now.Before(l.nextDial) {
		return
	}
	if b, due := l.next(now); l.failures == 0 && (!due || b.unit.left(now)) {
		return
	}
	l.dialing = true
	l.wg.Go(func() {
		c, err := dial(ctx, l.config.Address, l.config.Timeout, l.config.ConnectDelay)
		l.dialed <- dialResult{c, err}
	})
}

// settle takes the result of a dial.
func (l *link) settle(r dialResult) {
	l.dialing = false
	if r.err != nil {
		l.count.errors.Add(1)
		l.failed("cannot connect to "+l.config.Address+": "+plain(r.err, l.config.Timeout, ""), "err", r.err)
		return
	}
	l.conn = r.conn
	if l.connected {
		l.count.reconnects.Add(1)
	}
	l.connected = true
}

// failed notes that there is no connection, and when to try again.
func (l *link) failed(reason string, attrs ...any) {
	l.reason = reason
	l.failures++
	wait := doubling(redialFirst, redialLast, l.failures)
	l.nextDial = time.Now().Add(wait - rand.N(wait/2))
	l.log.Debug("no connection", attrs...)
}

// drop closes the connection.
func (l *link) drop() {
	if l.conn != nil {
		l.conn.close()
		l.conn = nil
	}
}

// answered notes an answer of u, be it an exception reply.
func (l *link) answered(u *unit) {
	l.conn.proven = true
	l.failures = 0
	if u.silent >= 2 && l.alone(u) {
		// The first to answer after a time when none did: most likely the others are back too.
		for _, other := range l.units {
			other.probeAt = time.Time{}
		}
	}
	u.silent = 0
}

// alone reports whether no unit but u answers on this link.
func (l *link) alone(u *unit) bool {
	for _, other := range l.units {
		if other != u && other.silent < 2 {
			return false
		}
	}
	return true
}

// serve gives one due block its turn: its points go to the pipeline, with values or with the reason why not.
func (l *link) serve(ctx context.Context, b *block) {
	messages, again := l.poll(ctx, b)
	if again || ctx.Err() != nil {
		return // to be read on a new connection, or given up at the end
	}
	b.served, b.repeated = true, false
	l.deliver(ctx, messages)
	l.count.skipped.Add(b.advance(time.Now()))
	if b.heirs != nil {
		l.inherit(b)
	}
	l.tell(b.unit)
}

// tell brings the unit's state up to date for others.
func (l *link) tell(u *unit) {
	state, fault := u.state()
	switch {
	case u.silent >= 2:
		state, fault = device.Down, u.reason
	case l.conn == nil && l.failures > 0:
		state, fault = device.Down, l.reason
	}
	l.health.unit(u.index, state, fault)
}

// inherit puts the blocks that b has fallen apart into in its place.
func (l *link) inherit(b *block) {
	u := b.unit
	blocks := make([]*block, 0, len(u.blocks)+len(b.heirs)-1)
	for _, old := range u.blocks {
		if old != b {
			blocks = append(blocks, old)
			continue
		}
		for _, heir := range b.heirs {
			heir.due = b.due
			blocks = append(blocks, heir)
		}
	}
	u.blocks = blocks
}

// deliver hands a block's messages over. It waits for room in the log, and the schedule skips what it misses meanwhile.
func (l *link) deliver(ctx context.Context, messages []pipeline.Message) {
	n := uint64(len(messages))
	done := func(err error) {
		if err != nil {
			l.count.refused.Add(n)
		}
		l.health.stored(err)
	}
	if err := l.sink.Put(ctx, pipeline.Batch{Messages: messages}, done); err != nil && ctx.Err() == nil {
		done(err)
	}
}
