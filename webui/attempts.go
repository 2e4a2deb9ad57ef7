package webui

import (
	"net/netip"
	"sync"
	"time"
)

const (
	freeTries     = 5                // wrong tries of one address before it has to wait
	longestWait   = 5 * time.Minute  // between two tries of one address
	forgetAfter   = 15 * time.Minute // without a try, an address begins anew
	maxAddresses  = 1024
	globalTries   = 30              // wrong tries of all addresses together before all have to wait
	globalRefresh = 2 * time.Second // one more global try each
)

// attempts slows down who guesses. A try counts as wrong before it is checked and is forgiven when it was right, so that
// many at once gain nothing. Each address waits twice as long each time; all together wait a little, never so long that
// a stranger could keep the owner out.
type attempts struct {
	mu     sync.Mutex // guards the fields below
	byAddr map[netip.Prefix]*tries
	left   float64 // global tries left
	filled time.Time
}

type tries struct {
	wrong int
	last  time.Time
	until time.Time // no try before
}

func newAttempts() *attempts {
	return &attempts{byAddr: map[netip.Prefix]*tries{}, left: globalTries, filled: time.Now()}
}

// verdict is the answer to a try.
type verdict struct {
	wait  time.Duration // > 0: not now
	wrong int           // wrong tries of this address so far, with this one
}

// take asks for a try.
func (a *attempts) take(addr netip.Addr) verdict {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	t := a.ofLocked(network(addr), now)
	if wait := t.until.Sub(now); wait > 0 {
		return verdict{wait, t.wrong}
	}
	a.left = min(globalTries, a.left+float64(now.Sub(a.filled))/float64(globalRefresh))
	a.filled = now
	if a.left < 1 {
		return verdict{globalRefresh, t.wrong}
	}
	a.left--
	t.wrong++
	t.last = now
	if over := t.wrong - freeTries; over >= 0 {
		t.until = now.Add(min(longestWait, time.Second<<min(over, 20)))
	}
	return verdict{0, t.wrong}
}

// forgive takes back everything that was counted against an address.
func (a *attempts) forgive(addr netip.Addr) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.left = min(globalTries, a.left+1)
	delete(a.byAddr, network(addr))
}

func (a *attempts) ofLocked(net netip.Prefix, now time.Time) *tries {
	if t, ok := a.byAddr[net]; ok && now.Sub(t.last) < forgetAfter {
		return t
	}
	if len(a.byAddr) >= maxAddresses {
		a.makeRoomLocked(now)
	}
	t := &tries{last: now}
	a.byAddr[net] = t
	return t
}

func (a *attempts) makeRoomLocked(now time.Time) {
	var oldest netip.Prefix
	last := now.Add(time.Second)
	for net, t := range a.byAddr {
		if now.Sub(t.last) >= forgetAfter {
			delete(a.byAddr, net)
		} else if t.last.Before(last) {
			oldest, last = net, t.last
		}
	}
	if len(a.byAddr) >= maxAddresses {
		delete(a.byAddr, oldest)
	}
}

// network returns what counts as one address: in IPv6 each customer has 2^64 of them.
func network(addr netip.Addr) netip.Prefix {
	bits := addr.BitLen()
	if addr.Is6() {
		bits = 64
	}
	p, err := addr.Prefix(bits)
	if err != nil {
		return netip.Prefix{}
	}
	return p
}
