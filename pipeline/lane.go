package pipeline

import (
	"context"
	"strings"
	"sync"
)

// Beginnings of the keys that the pipeline uses in a lane's state.
const (
	processorPrefix = "processor/" // then STREAM/N-KIND/TOPIC
	oncePrefix      = "once/"      // then the Once name
)

// lane is the pipeline's side of one lane: it keeps processing and appending of each stream in one order, and holds the
// state that decides over the next message. Streams do not wait for each other: one of them may be at its quota.
type lane struct {
	name      string
	isDefault bool

	mu    sync.Mutex        // guards what follows; held for a moment only, while a turn may be held for long
	log   Lane              // nil until attached
	state map[string][]byte // as of the last Append, which is ahead of the last commit
	once  map[string]turn   // Once names whose batch is being put
}

// turn is a mutex whose wait a context can end, since appending may wait for room.
type turn chan struct{}

func newTurn() turn { return make(turn, 1) }

func (t turn) take(ctx context.Context) error {
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (t turn) give() { <-t }

// takeTurns waits until it is the turn of a batch: of its Once name, since the same batch may be sent again while the first one
// still waits for room, and in all of its streams, which come in one order for all batches. give ends it.
func (l *lane) takeTurns(ctx context.Context, once string, streams []*stream) (give func(), err error) {
	var held []func()
	release := func() {
		for _, done := range held {
			done()
		}
	}
	if once != "" {
		done, err := l.takeOnce(ctx, once)
		if err != nil {
			return nil, err
		}
		held = append(held, done)
	}
	for _, s := range streams {
		if err := s.turn.take(ctx); err != nil {
			release()
			return nil, err
		}
		held = append(held, s.turn.give)
	}
	return release, nil
}

func (l *lane) takeOnce(ctx context.Context, once string) (give func(), err error) {
	for {
		l.mu.Lock()
		other, busy := l.once[once]
		if !busy {
			mine := newTurn()
			mine <- struct{}{}
			l.once[once] = mine
			l.mu.Unlock()
			return func() {
				l.mu.Lock()
				delete(l.once, once)
				l.mu.Unlock()
				mine.give()
			}, nil
		}
		l.mu.Unlock()
		if err := other.take(ctx); err != nil {
			return nil, err
		}
		other.give() // for the next one that waits
	}
}

func (l *lane) attach(log Lane) {
	state := make(map[string][]byte)
	for _, prefix := range [...]string{processorPrefix, oncePrefix} {
		log.State(prefix, func(key string, value []byte) bool {
			state[key] = append([]byte(nil), value...)
			return true
		})
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.log, l.state = log, state
}

// concerns reports whether the lane must look at a batch that has no message for its streams.
func (l *lane) concerns(b *Batch) bool {
	return l.isDefault && b.Once != "" || len(b.Forget) > 0
}

// put processes the batch for the lane's streams and appends the result. The ticket learns of the commit.
func (l *lane) put(ctx context.Context, b *Batch, streams []*stream, t *ticket) error {
	give, err := l.takeTurns(ctx, b.Once, streams)
	if err != nil {
		return err
	}
	defer give()

	l.mu.Lock()
	log := l.log
	l.mu.Unlock()
	if log == nil {
		if len(streams) == 0 && !l.isDefault {
			return errNothing // what it remembers it will be told to forget when it is used again
		}
		return ErrStopped
	}
	d := draft{lane: l}
	var entries []Entry
	repeated := b.Once != "" && d.get(oncePrefix+b.Once) != nil
	if !repeated {
		entries = d.process(b, streams)
		if b.Once != "" {
			d.set(oncePrefix+b.Once, []byte{1})
		}
	}
	for _, name := range b.Forget {
		if d.get(oncePrefix+name) != nil {
			d.set(oncePrefix+name, nil)
		}
	}
	if len(streams) == 0 && len(d.changes) == 0 && !repeated {
		return errNothing
	}
	// A repeated batch is appended empty, so that its acknowledgement comes after the commit of the first one.
	t.expect()
	if err := log.Append(ctx, entries, d.changes, b.Urgent, t.committed); err != nil {
		t.withdraw()
		return err
	}
	d.keep()
	return nil
}

// remembered calls yield for each Once name with the prefix.
func (l *lane) remembered(prefix string, yield func(name string)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key := range l.state {
		if name, ok := strings.CutPrefix(key, oncePrefix); ok && strings.HasPrefix(name, prefix) {
			yield(name)
		}
	}
}

// draft is the state as it will be if a batch is taken.
type draft struct {
	lane    *lane
	changes []Change
	index   map[string]int // place in changes; made when there are many
}

func (d *draft) process(b *Batch, streams []*stream) []Entry {
	entries := make([]Entry, 0, len(b.Messages))
	for i := range b.Messages {
		for _, s := range streams {
			if !s.wants(&b.Messages[i]) {
				continue
			}
			if m, pass := s.process(b.Messages[i], d); pass {
				entries = append(entries, Entry{Stream: s.Name, Time: m.Time, Data: Encode(nil, &m)})
			}
		}
	}
	return entries
}

func (d *draft) get(key string) []byte {
	if i, ok := d.index[key]; ok {
		return d.changes[i].Value
	}
	d.lane.mu.Lock()
	defer d.lane.mu.Unlock()
	return d.lane.state[key]
}

func (d *draft) set(key string, value []byte) {
	if i, ok := d.index[key]; ok {
		d.changes[i].Value = value
		return
	}
	if d.index == nil {
		d.index = make(map[string]int)
	}
	d.index[key] = len(d.changes)
	d.changes = append(d.changes, Change{Key: key, Value: value})
}

// keep makes the draft the lane's state: the log has taken it.
func (d *draft) keep() {
	d.lane.mu.Lock()
	defer d.lane.mu.Unlock()
	for _, c := range d.changes {
		if c.Value == nil {
			delete(d.lane.state, c.Key)
		} else {
			d.lane.state[c.Key] = c.Value
		}
	}
}
