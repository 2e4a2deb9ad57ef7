package mqtt

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"net/netip"
	"sync"
	"time"
)

// Sign-in attempts that cost a hash, for each address: a burst, then one every refill.
const (
	signInBurst   = 10
	signInRefill  = 5 * time.Second
	maxAddresses  = 4096
	hashesAtATime = 1 // an argon2id hash takes 19 MiB and a core; more at a time would starve the pollers
)

var (
	errWrongPassword = errors.New("wrong user name or password")
	errTooMany       = errors.New("too many sign-in attempts from this address")
)

// signIn verifies passwords. What was verified once is remembered as a keyed hash, so that clients that come back do not
// cost an expensive one each.
type signIn struct {
	users map[string]passwordHash
	dummy passwordHash // verified for unknown users, so that the time does not tell them from known ones
	slots chan struct{}
	key   [32]byte

	mu       sync.Mutex // guards the fields below
	verified map[string][sha256.Size]byte
	tries    map[netip.Addr]allowance
}

// allowance is a token bucket: left tokens at time at.
type allowance struct {
	left float64
	at   time.Time
}

func newSignIn(users map[string]User) (*signIn, error) {
	s := &signIn{
		users:    make(map[string]passwordHash, len(users)),
		slots:    make(chan struct{}, hashesAtATime),
		verified: map[string][sha256.Size]byte{},
		tries:    map[netip.Addr]allowance{},
	}
	if _, err := rand.Read(s.key[:]); err != nil {
		return nil, err
	}
	for name, u := range users {
		h, err := parseHash(u.PasswordHash)
		if err != nil {
			return nil, err
		}
		s.users[name] = h
		s.dummy = h
	}
	return s, nil
}

// verify returns nil when the user exists and the password is the user's. It waits for its turn to hash until ctx ends.
func (s *signIn) verify(ctx context.Context, from netip.Addr, user string, password []byte) error {
	sum := s.sum(user, password)
	if s.known(user, sum) {
		return nil
	}
	if len(s.users) == 0 {
		return errWrongPassword
	}
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if s.known(user, sum) { // another client of the user was first
		return nil
	}
	// Only now, and given back for a right password: a hundred clients behind one address may come at once.
	if !s.allowed(from, time.Now()) {
		return errTooMany
	}
	hash, exists := s.users[user]
	if !exists {
		hash = s.dummy
	}
	if !hash.matches(password) || !exists {
		return errWrongPassword
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.verified[user] = sum
	delete(s.tries, bucket(from))
	return nil
}

func (s *signIn) sum(user string, password []byte) (sum [sha256.Size]byte) {
	mac := hmac.New(sha256.New, s.key[:])
	mac.Write([]byte(user))
	mac.Write([]byte{0}) // no user name holds a zero byte
	mac.Write(password)
	mac.Sum(sum[:0])
	return sum
}

func (s *signIn) known(user string, sum [sha256.Size]byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	want, ok := s.verified[user]
	return ok && hmac.Equal(want[:], sum[:])
}

func (s *signIn) allowed(from netip.Addr, now time.Time) bool {
	from = bucket(from)
	s.mu.Lock()
	defer s.mu.Unlock()
	a, ok := s.tries[from]
	if !ok {
		if len(s.tries) >= maxAddresses {
			s.forgetFullLocked(now)
		}
		a = allowance{left: signInBurst}
	} else {
		a.left = min(signInBurst, a.left+now.Sub(a.at).Seconds()/signInRefill.Seconds())
	}
	a.at = now
	if a.left < 1 {
		s.tries[from] = a
		return false
	}
	a.left--
	s.tries[from] = a
	return true
}

// forgetFullLocked drops the addresses whose burst has grown back, and all of them where there are none: somebody with
// that many addresses is not held back by counting them.
func (s *signIn) forgetFullLocked(now time.Time) {
	for addr, a := range s.tries {
		if now.Sub(a.at) > signInBurst*signInRefill {
			delete(s.tries, addr)
		}
	}
	if len(s.tries) >= maxAddresses {
		clear(s.tries)
	}
}

// bucket returns what is counted together: an IPv4 address, or the /64 network that one IPv6 host owns.
func bucket(a netip.Addr) netip.Addr {
	a = a.Unmap()
	if p, err := a.WithZone("").Prefix(64); err == nil && a.Is6() {
		return p.Addr()
	}
	return a
}
