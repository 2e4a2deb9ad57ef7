package webui

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"

	"edgegateway/control"
)

const (
	staleForm  = "This page had gone stale. Please try again."
	wrongCode  = "That is not the set-up code. It stands in the gateway's log, and is new after each restart."
	wrongEntry = "That is not the password."
)

func (s *Server) showSetup(w http.ResponseWriter, r *http.Request) error {
	if s.account.isSetUp() {
		http.Redirect(w, r, "/sign-in", http.StatusSeeOther)
		return nil
	}
	return s.writeForm(w, r, http.StatusOK, "set-up", "")
}

func (s *Server) showSignIn(w http.ResponseWriter, r *http.Request) error {
	if !s.account.isSetUp() {
		http.Redirect(w, r, "/set-up", http.StatusSeeOther)
		return nil
	}
	if _, ok := s.session(r); ok {
		http.Redirect(w, r, "/", http.StatusSeeOther)
		return nil
	}
	return s.writeForm(w, r, http.StatusOK, "sign-in", "")
}

func (s *Server) writeForm(w http.ResponseWriter, r *http.Request, code int, name, text string) error {
	page, title := signInPage, "Sign in"
	if name == "set-up" {
		page, title = setUpPage, "Set up this gateway"
	}
	return writePage(w, code, page(form{
		frame:   frame{s.assets, title, s.Status().Gateway},
		token:   s.visitor(w, r),
		refusal: text,
	}))
}

// admit does what both forms begin with: token, then leave to try. It answers itself and returns false where there is
// none of either.
func (s *Server) admit(w http.ResponseWriter, r *http.Request, name string) (v verdict, ok bool, err error) {
	if err := r.ParseForm(); err != nil {
		if _, large := errors.AsType[*http.MaxBytesError](err); large {
			return v, false, err
		}
		return v, false, &httpError{http.StatusBadRequest, "The form could not be read."}
	}
	if !s.checkToken(r, visitCookie) {
		return v, false, s.writeForm(w, r, http.StatusForbidden, name, staleForm)
	}
	v = s.attempts.take(clientAddr(r))
	if v.wait == 0 {
		return v, true, nil
	}
	seconds := int(math.Ceil(v.wait.Seconds()))
	w.Header().Set("Retry-After", strconv.Itoa(seconds))
	text := fmt.Sprintf("Too many wrong tries. Please wait %s and try again.", control.DurationText(time.Duration(seconds)*time.Second))
	return v, false, s.writeForm(w, r, http.StatusTooManyRequests, name, text)
}

func (s *Server) setUp(w http.ResponseWriter, r *http.Request) error {
	if s.account.isSetUp() {
		http.Redirect(w, r, "/sign-in", http.StatusSeeOther)
		return nil
	}
	v, ok, err := s.admit(w, r, "set-up")
	if err != nil || !ok {
		return err
	}
	s.proving.Lock()
	defer s.proving.Unlock()
	code, password := r.PostForm.Get("code"), r.PostForm.Get("password")
	if s.account.rightCode(code) {
		if text := checkPassword(password, r.PostForm.Get("again")); text != "" {
			s.attempts.forgive(clientAddr(r))
			return s.writeForm(w, r, http.StatusUnprocessableEntity, "set-up", text)
		}
	}
	switch err := s.account.setUp(code, password); {
	case errors.Is(err, errWrong):
		s.noteRefusal(r, "set-up", v)
		return s.writeForm(w, r, http.StatusUnauthorized, "set-up", wrongCode)
	case err != nil:
		return err
	}
	s.Log.Info("page set up", "remote", clientAddr(r))
	s.begin(w, r)
	return nil
}

func (s *Server) signIn(w http.ResponseWriter, r *http.Request) error {
	v, ok, err := s.admit(w, r, "sign-in")
	if err != nil || !ok {
		return err
	}
	s.proving.Lock()
	defer s.proving.Unlock()
	if err := s.account.verify(r.PostForm.Get("password")); err != nil {
		s.noteRefusal(r, "sign-in", v)
		return s.writeForm(w, r, http.StatusUnauthorized, "sign-in", wrongEntry)
	}
	s.Log.Info("signed in", "remote", clientAddr(r), "wrong_tries", v.wrong-1)
	s.begin(w, r)
	return nil
}

// begin starts a session under a new id, whatever the browser sent, and ends the one that it had.
func (s *Server) begin(w http.ResponseWriter, r *http.Request) {
	s.attempts.forgive(clientAddr(r))
	if old, ok := s.session(r); ok {
		s.sessions.end(old)
	}
	setCookie(w, r, sessionCookie, s.sessions.begin())
	setCookie(w, r, visitCookie, "")
	http.Redirect(w, r, "/", http.StatusSeeOther)
}

// noteRefusal logs the first wrong try of an address and the one from which it has to wait, not those between.
func (s *Server) noteRefusal(r *http.Request, what string, v verdict) {
	switch v.wrong {
	case 1:
		s.Log.Warn("wrong entry on the page", "form", what, "remote", clientAddr(r))
	case freeTries:
		s.Log.Warn("wrong entries on the page, further ones are slowed down", "form", what, "remote", clientAddr(r), "tries", v.wrong)
	}
}

func (s *Server) signOut(w http.ResponseWriter, r *http.Request) error {
	if !s.checkToken(r, sessionCookie) {
		return &httpError{http.StatusForbidden, staleForm}
	}
	if id, ok := s.session(r); ok {
		s.sessions.end(id)
		s.Log.Info("signed out", "remote", clientAddr(r))
	}
	setCookie(w, r, sessionCookie, "")
	http.Redirect(w, r, "/sign-in", http.StatusSeeOther)
	return nil
}
