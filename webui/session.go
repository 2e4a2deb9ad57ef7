package webui

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"sync"
	"time"
)

const (
	sessionCookie = "edge_session"
	visitCookie   = "edge_visit" // names a visitor before the sign-in, for the CSRF token of that form
	maxSessions   = 64
)

// sessions are the sign-ins, in memory only: a restart ends them all. They are kept by the hash of their id, so that
// looking one up takes the same time however much of an id was guessed right.
type sessions struct {
	idle, max time.Duration

	mu   sync.Mutex // guards the field below
	byID map[[sha256.Size]byte]*session
}

type session struct {
	began, used time.Time
}

func newSessions(idle, longest time.Duration) *sessions {
	return &sessions{idle: idle, max: longest, byID: map[[sha256.Size]byte]*session{}}
}

// begin returns the id of a new session. Where there are too many, the one unused for longest ends.
func (s *sessions) begin() string {
	id, now := randomID(), time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, old := range s.byID {
		if s.overLocked(old, now) {
			delete(s.byID, key)
		}
	}
	if len(s.byID) >= maxSessions {
		var oldest [sha256.Size]byte
		unused := now.Add(time.Hour)
		for key, old := range s.byID {
			if old.used.Before(unused) {
				oldest, unused = key, old.used
			}
		}
		delete(s.byID, oldest)
	}
	s.byID[sha256.Sum256([]byte(id))] = &session{began: now, used: now}
	return id
}

// use tells whether the session goes on, and notes that it is in use.
func (s *sessions) use(id string) bool {
	key, now := sha256.Sum256([]byte(id)), time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	found, ok := s.byID[key]
	if !ok {
		return false
	}
	if s.overLocked(found, now) {
		delete(s.byID, key)
		return false
	}
	found.used = now
	return true
}

func (s *sessions) overLocked(x *session, now time.Time) bool {
	return now.Sub(x.used) > s.idle || now.Sub(x.began) > s.max
}

func (s *sessions) end(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byID, sha256.Sum256([]byte(id)))
}

// randomID returns 256 random bits.
func randomID() string {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails: it ends the process instead
	return hex.EncodeToString(b[:])
}

// session returns the id of the request's session.
func (s *Server) session(r *http.Request) (string, bool) {
	c, err := r.Cookie(sessionCookie)
	if err != nil || !s.sessions.use(c.Value) {
		return "", false
	}
	return c.Value, true
}

func setCookie(w http.ResponseWriter, r *http.Request, name, value string) {
	c := &http.Cookie{Name: name, Value: value, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: r.TLS != nil}
	if value == "" {
		c.MaxAge = -1
	}
	http.SetCookie(w, c)
}

// tokens makes the CSRF tokens. A token belongs to the cookie of whoever got the form: a session's or a visitor's.
type tokens struct{ key []byte }

func newTokens() tokens { return tokens{[]byte(randomID())} }

func (t tokens) of(cookie string) string {
	mac := hmac.New(sha256.New, t.key)
	mac.Write([]byte(cookie))
	return hex.EncodeToString(mac.Sum(nil))
}

// visitor returns the token for a form shown before the sign-in, and names the visitor by a cookie if needed.
func (s *Server) visitor(w http.ResponseWriter, r *http.Request) string {
	if c, err := r.Cookie(visitCookie); err == nil && len(c.Value) == 64 {
		return s.tokens.of(c.Value)
	}
	id := randomID()
	setCookie(w, r, visitCookie, id)
	return s.tokens.of(id)
}

// checkToken tells whether the form was made for this cookie.
func (s *Server) checkToken(r *http.Request, cookie string) bool {
	c, err := r.Cookie(cookie)
	return err == nil && c.Value != "" && equal(r.PostFormValue("token"), s.tokens.of(c.Value))
}
