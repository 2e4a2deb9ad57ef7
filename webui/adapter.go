package webui

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"

	g "maragu.dev/gomponents"
)

// handler is a request handler that hands its error to the adapter. It returns an error only before it has begun to
// answer.
type handler func(w http.ResponseWriter, r *http.Request) error

// httpError is an answer that is not what was asked for, in words for the person who asked.
type httpError struct {
	code int
	text string
}

// Error implements error.
func (e *httpError) Error() string { return strconv.Itoa(e.code) + ": " + e.text }

// adapt turns a handler into an http.HandlerFunc: the one place where errors are answered and logged.
func (s *Server) adapt(h handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		err := h(w, r)
		if err == nil || errors.Is(err, context.Canceled) {
			return
		}
		answer, ours := errors.AsType[*httpError](err)
		if _, large := errors.AsType[*http.MaxBytesError](err); large {
			answer, ours = &httpError{http.StatusRequestEntityTooLarge, "The request is too large."}, true
		}
		if !ours {
			s.Log.Error("page request failed", "method", r.Method, "path", r.URL.Path, "err", err)
			answer = &httpError{http.StatusInternalServerError, "Something went wrong inside the gateway. Its log says what."}
		}
		s.answer(w, r, answer)
	}
}

func (s *Server) answer(w http.ResponseWriter, r *http.Request, e *httpError) {
	if strings.Contains(r.Header.Get("Accept"), "text/html") {
		title := http.StatusText(e.code)
		err := writePage(w, e.code, errorPage(frame{s.assets, title, s.Status().Gateway}, e.text))
		if err == nil {
			return
		}
		s.Log.Error("page request failed", "method", r.Method, "path", r.URL.Path, "err", err)
	}
	_ = writeText(w, e.code, e.text+"\n") // an error here is a connection that has gone
}

func writeText(w http.ResponseWriter, code int, text string) error {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	_, _ = w.Write([]byte(text)) // an error here is a connection that has gone
	return nil
}

func notFound(http.ResponseWriter, *http.Request) error {
	return &httpError{http.StatusNotFound, "There is no such page."}
}

func methodNotAllowed(http.ResponseWriter, *http.Request) error {
	return &httpError{http.StatusMethodNotAllowed, "That cannot be done with this page."}
}

// writePage renders into memory first: half a page is never sent.
func writePage(w http.ResponseWriter, code int, page g.Node) error {
	var b bytes.Buffer
	if err := page.Render(&b); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(code)
	_, _ = w.Write(b.Bytes()) // an error here is a connection that has gone
	return nil
}
